//! TNW: latency of messages between the first node and its neighbour on X+.
//!
//! `rounds=N`: the rounds for each length (10). `windows=registers`: each store to a window causes
//! an exit, as if windows could not be memory that the device polls.
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::vec;

use tofu_abi::Coords;
use tofu_driver::{DmaBuffer, Platform};
use tofu_guests::tnw::{How, PATIENCE_NS, leave};
use tofu_guests::{
    Error, NodeBuffer, NodePlatform, fail, find_nwp, now_ns, number, option, println,
};
use tofu_tnw::{Channel, Link, Outcome, Status, Stream};

tofu_guests::entry!(pingpong);

const LENGTHS: [usize; 4] = [128, 1 << 10, 8 << 10, 64 << 10];
/// The longest that is sent by stores if each of them leaves the guest.
const LONGEST_PPUT: usize = 8 << 10;

/// Sends a message and waits until it may be changed.
fn send(
    stream: &mut Stream<'_, NodePlatform>,
    how: How,
    message: &[u8],
    source: &NodeBuffer,
) -> Result<(), Error> {
    match how {
        How::Pput => stream.send(message, PATIENCE_NS)?,
        How::Nget => {
            let ticket = stream.send_from(source, 0, message.len())?;
            if stream.wait(ticket, PATIENCE_NS).is_err() {
                return Err(fail!("{} bytes are not fetched", message.len()));
            }
        }
    }
    Ok(())
}

fn pingpong() -> Result<(), Error> {
    let rounds = number("rounds", 10)?.max(1);
    let registers = match option("windows") {
        None | Some("memory") => false,
        Some("registers") => true,
        Some(other) => return Err(fail!("windows={other}: memory or registers")),
    };
    let nwp = find_nwp()?;
    let first = nwp.coords() == Coords::default();
    let link = match nwp.coords() {
        _ if first => Link::ALL[1],
        at if at == Coords::new(1, 0, 0, 0, 0, 0) => Link::ALL[0],
        // The others look on.
        _ => return Ok(()),
    };
    let mut stream = nwp.open(link, Channel::ALL[0])?;
    if registers {
        stream.use_registers();
    }
    for length in LENGTHS {
        let source = nwp.platform().alloc_dma(length, 64)?;
        let sink = nwp.platform().alloc_dma(length, 64)?;
        let message = vec![length.ilog2() as u8; length];
        source.write(0, &message);
        let pput = (!registers || length <= LONGEST_PPUT).then_some(How::Pput);
        for how in pput.into_iter().chain([How::Nget]) {
            let start = now_ns();
            for _ in 0..rounds {
                let credit = stream.credit(&sink, 0, length)?;
                if first {
                    send(&mut stream, how, &message, &source)?;
                }
                let outcome = stream.wait(credit, PATIENCE_NS);
                if outcome != Ok(Outcome { status: Status::Ok, length: length as u32 }) {
                    return Err(fail!("{length} bytes by {how:?}: {outcome:?}"));
                }
                if !first {
                    send(&mut stream, how, &message, &source)?;
                }
            }
            if first {
                let ns = (now_ns() - start) / rounds / 2;
                println!("{length} bytes by {how:?}: {ns} ns");
            }
            let mut got = vec![0; length];
            sink.read(0, &mut got);
            if got != message {
                return Err(fail!("{length} bytes by {how:?} are wrong"));
            }
        }
    }
    leave(&nwp);
    Ok(())
}
