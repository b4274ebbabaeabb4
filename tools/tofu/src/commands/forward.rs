//! `tofu forward`: ports of this host that lead to ports of nodes.
//!
//! This process listens. For each connection, or each sender of datagrams, it requests a stream to
//! the node from the machine, and relays bytes. So a machine's process, which gives up its rights,
//! opens no port.

mod tcp;
mod udp;
mod way;

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use serde_json::json;
use tofu_abi::Coords;
use tofu_control::protocol::Request;
use tofu_control::{Connection, find_node, rundir};
use tofu_ui::signals;

use self::way::Way;

/// Forward ports of this host to ports of a machine's nodes
///
/// The machine must have a gateway: tofu up --gateway. Ports are TCP ports, except with --udp. Each
/// connection to the host's port is continued by one from the gateway to the node, over the torus.
/// Needs no privileges. Runs until Ctrl-C, or until the machine ends.
#[derive(Debug, Clone, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ForwardArgs {
    /// PORT:NODE:PORT or ADDRESS:PORT:NODE:PORT: where to listen, and where to connect to
    ///
    /// ADDRESS is 127.0.0.1 by default; IPv6 addresses are written in brackets. PORT 0 chooses a
    /// free port. NODE is as for `tofu exec`.
    #[arg(value_name = "FORWARD", required_unless_present = "udp")]
    forwards: Vec<Forward>,

    /// The same for a UDP port; can be repeated
    ///
    /// Each sender gets a port of the gateway for itself, until there has been no traffic for a
    /// minute. Datagrams have up to MTU - 28 bytes.
    #[arg(long, value_name = "FORWARD")]
    udp: Vec<Forward>,

    /// Print one JSON object for each forwarded port
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tofu forward 8080:0:80 2222:t-0-0-0-0-0-1:22
  tofu forward 0.0.0.0:8080:lab/0,0,0,1,2,1:80     also for other hosts; to the machine lab
  tofu forward --udp 5353:0:53 8053:0:53           UDP and TCP
  tofu forward --json 0:3:80                       prints which port it chose";

/// The interval at which it is checked whether the machine still exists.
const LOOK: Duration = Duration::from_millis(500);

/// One of the user's wishes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Forward {
    listen: SocketAddr,
    node: String,
    port: u16,
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = || {
            format!(
                "{text}: a forward is [ADDRESS:]PORT:NODE:PORT, \
                 such as 8080:0:80 or 127.0.0.1:8080:0:80"
            )
        };
        let (rest, port) = text.rsplit_once(':').ok_or_else(allowed)?;
        let (listen, node) = rest.rsplit_once(':').ok_or_else(allowed)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(allowed)?;
        let listen = match listen.parse::<u16>() {
            Ok(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            Err(_) => listen.parse().map_err(|_| allowed())?,
        };
        if node.is_empty() {
            return Err(allowed());
        }
        Ok(Self { listen, node: node.to_owned(), port })
    }
}

/// Runs `tofu forward` and returns the exit code.
pub(crate) fn run(args: &ForwardArgs) -> anyhow::Result<u8> {
    let (sender, ended) = mpsc::channel();
    let _signals = signals::forward(signals::GRACE, move |signal| {
        // The receiver is gone if it is over.
        let _ = sender.send(signal);
    })?;
    let open = Arc::new(AtomicUsize::new(0));
    let mut controls = Vec::new();
    let mut listening = Vec::new();
    let tcp = args.forwards.iter().map(|forward| (forward, false));
    for (forward, udp) in tcp.chain(args.udp.iter().map(|forward| (forward, true))) {
        let found = find_node(&forward.node)?;
        Connection::open(&found.control, &Request::Gateway)?
            .answer()
            .with_context(|| format!("node {}", forward.node))?;
        let cannot = || format!("cannot listen at {}", forward.listen);
        let listener = match udp {
            false => Listener::Tcp(TcpListener::bind(forward.listen).with_context(cannot)?),
            true => Listener::Udp(UdpSocket::bind(forward.listen).with_context(cannot)?),
        };
        controls.push(found.control.clone());
        let (node, port, open) = (found.node, forward.port, Arc::clone(&open));
        let way = Way::new(found.control, node, port, open);
        listening.push((listener, way));
    }
    for (listener, way) in listening {
        print(args, &listener, &way)?;
        let accept = move || match listener {
            Listener::Tcp(listener) => tcp::serve(&listener, &Arc::new(way)),
            Listener::Udp(socket) => udp::serve(&Arc::new(socket), &Arc::new(way)),
        };
        thread::Builder::new().name("forward".into()).spawn(accept).context("no threads left")?;
    }
    loop {
        match ended.recv_timeout(LOOK) {
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(0),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if controls.iter().all(|control| rundir::is_gone(control)) {
            bail!("the machine has ended");
        }
    }
}

/// The socket to which clients connect.
enum Listener {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

fn print(args: &ForwardArgs, listener: &Listener, way: &Way) -> io::Result<()> {
    let (protocol, listen) = match listener {
        Listener::Tcp(listener) => ("tcp", listener.local_addr()?),
        Listener::Udp(socket) => ("udp", socket.local_addr()?),
    };
    let (listen, port) = (listen.to_string(), way.port);
    let mut out = io::stdout().lock();
    if args.json {
        let at = way.node.at;
        let line = json!({ "protocol": protocol, "listen": listen, "node": at, "port": port });
        writeln!(out, "{line}")?;
    } else {
        let at = Coords::from_array(way.node.at);
        let protocol = if protocol == "udp" { "UDP " } else { "" };
        writeln!(out, "{protocol}{listen} leads to {protocol}port {port} of {at}")?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_are_read() {
        let parse =
            |text: &str| text.parse::<Forward>().map(|f| (f.listen.to_string(), f.node, f.port));
        for (text, listen, node, port) in [
            ("8080:0:80", "127.0.0.1:8080", "0", 80),
            ("0:t-0-0-0-1-2-1:22", "127.0.0.1:0", "t-0-0-0-1-2-1", 22),
            ("0.0.0.0:8080:lab/0,0,0,1,2,1:80", "0.0.0.0:8080", "lab/0,0,0,1,2,1", 80),
            ("[::1]:8080:0:80", "[::1]:8080", "0", 80),
        ] {
            assert_eq!(parse(text), Ok((listen.to_owned(), node.to_owned(), port)), "{text}");
        }
        for text in [
            "",
            "8080",
            "8080:0",
            "8080:0:0",
            "8080:0:x",
            "8080::80",
            "host:8080:0:80",
            "65536:0:80",
        ] {
            assert!(parse(text).is_err_and(|error| error.contains("such as 8080:0:80")), "{text}");
        }
    }
}
