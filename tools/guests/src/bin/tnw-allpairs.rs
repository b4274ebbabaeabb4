//! TNW: every node sends to all neighbours on every channel, by stores and by fetching, with all
//! data verified.
//!
//! `rounds=N`: how often (once).
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use tofu_abi::Coords;
use tofu_driver::{DmaBuffer, Platform};
use tofu_guests::tnw::{PATIENCE_NS, leave, torus};
use tofu_guests::{Error, fail, fill_pattern, find_nwp, now_ns, number, println};
use tofu_tnw::{Channel, Link, Outcome, Status};

tofu_guests::entry!(allpairs);

/// Lengths of the messages, by stores and by fetching: several packets, and not a multiple of a
/// packet.
const LENGTHS: [usize; 2] = [1_001, 9_999];

/// The data that a node sends over one of its links.
fn contents(from: Coords, link: Link, channel: Channel, round: u64, which: usize) -> Vec<u8> {
    let place = from.to_array().iter().fold(0, |n, &c| n << 5 | u64::from(c));
    let stream = (link.index() * 8 + channel.index()) as u64;
    let mut bytes = vec![0; LENGTHS[which]];
    fill_pattern(place << 24 | stream << 8 | round << 1 | which as u64, &mut bytes);
    bytes
}

/// Checks that a message has arrived whole in `sink`.
fn check(outcome: Option<Outcome>, sink: &impl DmaBuffer, expected: &[u8]) -> Result<(), String> {
    if outcome != Some(Outcome { status: Status::Ok, length: expected.len() as u32 }) {
        return Err(format!("{outcome:?}"));
    }
    let mut got = vec![0; expected.len()];
    sink.read(0, &mut got);
    if got == expected { Ok(()) } else { Err("wrong data".into()) }
}

fn allpairs() -> Result<(), Error> {
    let rounds = number("rounds", 1)?;
    let nwp = find_nwp()?;
    let shape = torus(&nwp)?;
    let links: Vec<Link> = Link::ALL.into_iter().filter(|link| nwp.is_present(*link)).collect();
    let start = now_ns();
    for round in 0..rounds {
        for channel in Channel::ALL {
            let mut open = Vec::new();
            for &link in &links {
                let mut stream = nwp.open(link, channel)?;
                let mut credits = Vec::new();
                for length in LENGTHS {
                    let sink = nwp.platform().alloc_dma(length, 8)?;
                    let credit = stream.credit(&sink, 0, length)?;
                    credits.push((sink, credit));
                }
                open.push((stream, credits));
            }
            // Fetching needs no waiting; stores may have to wait for the neighbour.
            let mut fetched = Vec::new();
            for (stream, _) in &mut open {
                let bytes = contents(nwp.coords(), stream.link(), channel, round, 0);
                stream.send(&bytes, PATIENCE_NS)?;
                let bytes = contents(nwp.coords(), stream.link(), channel, round, 1);
                let source = nwp.platform().alloc_dma(bytes.len(), 8)?;
                source.write(0, &bytes);
                let ticket = stream.send_from(&source, 0, bytes.len())?;
                fetched.push((source, ticket));
            }
            for ((stream, credits), (source, ticket)) in open.iter_mut().zip(fetched) {
                let link = stream.link();
                let from = shape.neighbor(nwp.coords(), link.port()).unwrap_or_default();
                for (which, (sink, credit)) in credits.drain(..).enumerate() {
                    let outcome = stream.wait(credit, PATIENCE_NS).ok();
                    let expected = contents(from, link.opposite(), channel, round, which);
                    check(outcome, &sink, &expected)
                        .map_err(|what| fail!("message {which} of {link:?} {channel:?}: {what}"))?;
                }
                if stream.wait(ticket, PATIENCE_NS).is_err() {
                    return Err(fail!("what was sent over {link:?} {channel:?} was not fetched"));
                }
                drop(source);
            }
        }
    }
    let us = (now_ns() - start) / 1000;
    let counters = links.iter().map(|link| nwp.link_counters(*link));
    let (sent, resent) = counters.fold((0, 0), |(s, r), c| (s + c.sent, r + c.resent));
    println!(
        "{} neighbours, {} channels: Pput and Nget verified {rounds} times, {sent} packets, \
         {resent} sent again, {us} us",
        links.len(),
        Channel::ALL.len(),
    );
    leave(&nwp);
    Ok(())
}
