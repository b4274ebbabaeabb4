//! Datagrams: a stream to the machine for each client, with lengths in front of datagrams.

use std::collections::HashMap;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tofu_abi::Coords;
use tofu_sync::lock;

use super::way::{MOST, Way};

/// The time for which an unused stream of a client is kept.
const IDLE: Duration = Duration::from_secs(60);

/// The way of a client's datagrams.
struct Flow {
    node: UnixStream,
    /// When it was used last, in milliseconds since the beginning.
    used: Arc<AtomicU64>,
}

type Flows = Arc<Mutex<HashMap<SocketAddr, Flow>>>;

/// Serves a port until the process ends.
pub(super) fn serve(socket: &Arc<UdpSocket>, way: &Arc<Way>) {
    let (flows, start) = (Flows::default(), Instant::now());
    let mut buffer = vec![0; 2 + usize::from(u16::MAX)];
    loop {
        let (length, client) = match socket.recv_from(&mut buffer[2..]) {
            Ok(received) => received,
            Err(error) => {
                // An error of earlier datagrams, which nothing received.
                log::debug!("forward: {error}");
                thread::sleep(Duration::from_millis(1));
                continue;
            }
        };
        buffer[..2].copy_from_slice(&(length as u16).to_be_bytes());
        let result = pass_on(socket, way, &flows, start, client, &buffer[..2 + length]);
        if let Err(error) = result {
            let at = Coords::from_array(way.node.at);
            way.complain(&format!("tofu: UDP port {} of {at}: {error:#}", way.port));
        }
    }
}

fn pass_on(
    socket: &Arc<UdpSocket>,
    way: &Arc<Way>,
    flows: &Flows,
    start: Instant,
    client: SocketAddr,
    datagram: &[u8],
) -> anyhow::Result<()> {
    let now = start.elapsed().as_millis() as u64;
    let mut all = lock(flows);
    if let Some(flow) = all.get_mut(&client) {
        flow.used.store(now, SeqCst);
        if flow.node.write_all(datagram).is_ok() {
            return Ok(());
        }
        // The gateway has closed the stream; a new one may work.
        all.remove(&client);
    }
    let oldest = now.saturating_sub(IDLE.as_millis() as u64);
    all.retain(|_, flow| {
        let idle = flow.used.load(SeqCst) < oldest;
        if idle {
            // Ends its thread.
            let _ = flow.node.shutdown(Shutdown::Both);
        }
        !idle
    });
    if all.len() >= MOST {
        bail!("{MOST} clients have sent within {} s, the maximum", IDLE.as_secs());
    }
    let (mut node, from_node) = way.connect(true)?;
    node.write_all(datagram)?;
    let used = Arc::new(AtomicU64::new(now));
    all.insert(client, Flow { node, used: Arc::clone(&used) });
    drop(all);
    let (socket, flows) = (Arc::clone(socket), Arc::clone(flows));
    let answers = move || {
        let touch = || used.store(start.elapsed().as_millis() as u64, SeqCst);
        answer(&socket, client, from_node, touch);
        let mut all = lock(&flows);
        // There may be a new one by now.
        if all.get(&client).is_some_and(|flow| Arc::ptr_eq(&flow.used, &used)) {
            all.remove(&client);
        }
    };
    thread::Builder::new().name("forward".into()).spawn(answers).context("no threads left")?;
    Ok(())
}

/// Sends a client its node's answers, until the stream ends.
fn answer(
    socket: &UdpSocket,
    client: SocketAddr,
    mut node: BufReader<UnixStream>,
    touch: impl Fn(),
) {
    let mut data = vec![0; u16::MAX.into()];
    let mut length = [0; 2];
    while node.read_exact(&mut length).is_ok() {
        let data = &mut data[..u16::from_be_bytes(length).into()];
        if node.read_exact(data).is_err() {
            break;
        }
        touch();
        // As on any way, it may be lost.
        let _ = socket.send_to(data, client);
    }
}
