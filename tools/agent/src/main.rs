//! The agent: runs in a Linux guest, started by its init, and serves `tofu exec` and `tofu cp` on
//! the host.
//!
//! `tofu-agent [PORT]` serves a virtio port, or a UNIX socket, for ever; `tofu-agent pack PATH` and
//! `tofu-agent unpack PATH NAME` move files as archives over the standard streams;
//! `tofu-agent pack-changed PATH FOLDER` packs only those that have changed since the folder was
//! put there, and `tofu-agent unpack-alone PATH` never goes into a folder that exists.
//! `tofu-agent pmi SIZE MAPPING` serves the ranks of an MPI job. Its first line of output tells
//! where, and later lines tell which rank has aborted the job with which code.
//! `tofu-agent relay` carries connections to a port of this node over the standard streams. Its
//! first line of output tells which port.
//! `tofu-agent as USER PROGRAM` becomes a program run by that user, where users can have the
//! device. `tofu-agent terminal PATH PROGRAM` becomes a program that the terminal at that path
//! controls.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, setrlimit};
use tofu_agent::{files, pmi, relay, session, startup, terminal, unpack, user, wakeup};

/// The port that the host gives its nodes.
const PORT: &str = "/dev/virtio-ports/org.tofu.agent";
/// Pause between two checks for a port, or a host, that is not there yet.
const PAUSE: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["pack", path] => files::pack(Path::new(path), io::stdout().lock()).map(|skipped| {
            if skipped > 0 {
                eprintln!("{skipped} that are neither files, folders nor links were left out");
            }
        }),
        ["pack-changed", path, since] => {
            files::pack_changed(Path::new(path), Path::new(since), io::stdout().lock()).map(drop)
        }
        ["unpack", path, name] => {
            unpack::unpack(io::stdin().lock(), Path::new(path), OsStr::new(name))
        }
        ["unpack-alone", path] => unpack::unpack_alone(io::stdin().lock(), Path::new(path)),
        ["pmi", size, mapping] => match size.parse() {
            Ok(size) => serve_ranks(size, mapping),
            Err(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a number of ranks")),
        },
        ["relay"] => relay_connections(),
        [terminal::WORD, path, ref words @ ..] => {
            return not_run(words, &terminal::become_program(path, words));
        }
        [user::WORD, number, ref words @ ..] => {
            return not_run(words, &user::become_program(number, words));
        }
        [] => {
            startup::wait();
            serve(Path::new(PORT))
        }
        [port] if !port.starts_with('-') => serve(Path::new(port)),
        _ => {
            eprintln!(
                "usage: tofu-agent [PORT] | tofu-agent pack PATH | \
                 tofu-agent pack-changed PATH FOLDER | tofu-agent unpack PATH NAME | \
                 tofu-agent unpack-alone PATH | tofu-agent pmi SIZE MAPPING | tofu-agent relay"
            );
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Reports why this process has not become a program.
fn not_run(words: &[&str], error: &io::Error) -> ExitCode {
    eprintln!("cannot run {}: {error}", words.first().unwrap_or(&"nothing"));
    let missing = error.kind() == io::ErrorKind::NotFound;
    ExitCode::from(if missing { 127 } else { 126 })
}

fn serve(path: &Path) -> io::Result<()> {
    // For all programs, as clusters have it: memory that the device reaches is locked.
    let unlimited = Rlimit { current: None, maximum: None };
    // Where the agent may not, it stays as it is.
    let _ = setrlimit(Resource::Memlock, unlimited);
    loop {
        let (input, output) = open(path)?;
        if input.may_return
            && let Err(error) = wakeup::watch(path, &output)
        {
            eprintln!("a node that was suspended may not answer again: {error}");
        }
        match session::serve(input, output) {
            Ok(()) => return Ok(()),
            Err(error) => eprintln!("{}: {error}", path.display()),
        }
        sleep(PAUSE);
    }
}

/// Serves the ranks of an MPI job until the program is killed.
fn serve_ranks(size: u32, mapping: &str) -> io::Result<()> {
    let listener = TcpListener::bind((address(), 0))?;
    println!("{}", listener.local_addr()?);
    let report = |report: pmi::Report| {
        let mut out = io::stdout().lock();
        let told = writeln!(out, "{report}").and_then(|()| out.flush());
        if let Err(error) = told {
            eprintln!("{error}");
        }
    };
    pmi::serve(&listener, size, mapping, report)
}

/// Carries connections of this node's programs until the host ends its input.
fn relay_connections() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?);
    relay::serve(listener, io::stdin(), io::stdout())
}

/// The address at which other nodes reach this one: the one that the kernel's command line gives
/// its Ethernet (as this project's init reads it), or that of its Tofu interface, or an address for
/// this node alone.
fn address() -> IpAddr {
    let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let mut words = line.split_ascii_whitespace().filter_map(|word| word.strip_prefix("tofu.ip="));
    // As everywhere on that line, the last word counts.
    let address = words.next_back().and_then(|word| word.split('/').next()?.parse().ok());
    address.or_else(tofu_address).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The address from which this node would send to the network of its Tofu interface, if that is up.
fn tofu_address() -> Option<IpAddr> {
    let routes = std::fs::read_to_string("/proc/net/route").ok()?;
    let inside = routes.lines().find_map(|line| address_behind(line, "tofu0"))?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Nothing is sent.
    socket.connect((inside, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// An address of the network that a line of `/proc/net/route` gives for an interface. The line has
/// interface, network, gateway, five numbers, mask and more, with addresses in hexadecimal digits
/// of the processor's byte order.
fn address_behind(line: &str, interface: &str) -> Option<Ipv4Addr> {
    let mut words = line.split_ascii_whitespace();
    let named = words.next().filter(|name| *name == interface);
    let mut address = || {
        let digits = u32::from_str_radix(words.next()?, 16).ok()?;
        Some(u32::from_be_bytes(digits.to_ne_bytes()))
    };
    let (network, gateway) = named.and(address().zip(address()))?;
    (network != 0 && gateway == 0).then(|| Ipv4Addr::from(network | 1))
}

/// Opens the port; waits for it, because its driver may be a module that is loaded later.
fn open(path: &Path) -> io::Result<(Input, File)> {
    loop {
        match path.metadata() {
            Ok(metadata) if metadata.file_type().is_socket() => {
                let socket = OwnedFd::from(UnixStream::connect(path)?);
                let output = File::from(socket.try_clone()?);
                return Ok((Input { file: socket.into(), may_return: false }, output));
            }
            Ok(_) => {
                let file = OpenOptions::new().read(true).write(true).open(path)?;
                let output = file.try_clone()?;
                return Ok((Input { file, may_return: true }, output));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
}

/// Input from the host. A port reports an end whenever no host is connected, and has data again
/// later.
struct Input {
    file: File,
    may_return: bool,
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.file.read(buffer)?;
            if n > 0 || !self.may_return {
                return Ok(n);
            }
            wait(&self.file)?;
        }
    }
}

/// Waits for a moment if no host is connected, otherwise until there is something to read.
fn wait(file: &impl AsFd) -> io::Result<()> {
    let mut fds = [PollFd::new(file, PollFlags::IN)];
    poll(&mut fds, None)?;
    // Without a host the port is always readable: it reports the end.
    if fds[0].revents().contains(PollFlags::HUP) {
        sleep(PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_behind_an_interface_is_found() {
        let line = |name: &str, network: [u8; 4], gateway: [u8; 4]| {
            let [network, gateway] = [network, gateway].map(u32::from_ne_bytes);
            let line = format!("{name}\t{network:08X}\t{gateway:08X}\t0001\t0\t0\t0\tC0FFFFFF\t0");
            address_behind(&line, "tofu0")
        };
        let found = Some(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(line("tofu0", [10, 0, 0, 0], [0; 4]), found);
        assert_eq!(line("eth0", [10, 84, 0, 0], [0; 4]), None);
        assert_eq!(line("tofu0", [0; 4], [10, 0, 0, 5]), None);
        assert_eq!(line("tofu0", [192, 0, 2, 0], [10, 0, 0, 5]), None);
        for other in ["Iface\tDestination\tGateway", "tofu0", "tofu0 x y", ""] {
            assert_eq!(address_behind(other, "tofu0"), None);
        }
    }
}
