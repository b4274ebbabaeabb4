//! Traces as text: a line for each command, and one more if it has failed.

use std::fmt::Write as _;
use std::io::{self, Write};

use tofu_abi::Coords;
#[cfg(test)]
use tofu_control::protocol::TracedPart;
use tofu_control::protocol::{TracedCommand, TracedTarget};
use tofu_ui::printable;

/// Writes a command.
pub(super) fn command(out: &mut dyn Write, command: &TracedCommand) -> io::Result<()> {
    writeln!(out, "{}", line(command))?;
    if let Some(why) = &command.why {
        writeln!(out, "    {}", printable(why))?;
    }
    Ok(())
}

/// Nanoseconds as microseconds.
fn us(ns: u64) -> String {
    format!("{}.{:03} us", ns / 1000, ns % 1000)
}

/// A command in one line.
pub(super) fn line(command: &TracedCommand) -> String {
    let TracedCommand { node, tni, cq, slot, length, tlps, begin_ns, end_ns, .. } = command;
    let (seconds, ns) = (begin_ns / 1_000_000_000 % 86_400, begin_ns % 1_000_000_000);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let mut line = format!(
        "{hours:02}:{minutes:02}:{:02}.{ns:09} node {node} TNI {tni} CQ {cq} slot {slot}: {}",
        seconds % 60,
        printable(&command.command)
    );
    // Writing to a String cannot fail.
    if let Some(TracedTarget { node, at, tni, address }) = &command.to {
        let _ = write!(line, " of {length} bytes in {tlps} TLPs to ");
        let _ = match node {
            Some(node) => write!(line, "node {node} TNI {tni}"),
            None => write!(line, "{} TNI {tni}", Coords::from_array(*at)),
        };
        if let Some((cq, stag, offset)) = address {
            let _ = write!(line, " CQ {cq} STag {stag:#x} offset {offset:#x}");
        }
        if !command.hops.is_empty() {
            let _ = write!(line, " by {}", printable(&command.hops.join(" ")));
        }
    }
    let took = end_ns.saturating_sub(*begin_ns);
    if took > 0 {
        let _ = write!(line, ", {}", us(took));
    }
    if let (Some(first), Some(last)) = (command.parts.first(), command.parts.last()) {
        let there = first.begin_ns.saturating_sub(*begin_ns);
        let work = last.end_ns.saturating_sub(first.begin_ns);
        let back = end_ns.saturating_sub(last.end_ns);
        let _ = match (command.is_packet(), first.done) {
            (true, 0) => write!(line, " (there {}, discarded there)", us(there)),
            (true, _) => write!(line, " (there {})", us(there)),
            _ => write!(line, " (there {}, work {}, back {})", us(there), us(work), us(back)),
        };
    }
    if let Some(rung) = command.doorbell_ns {
        let _ = write!(line, ", doorbell {} before", us(begin_ns.saturating_sub(rung)));
    }
    let _ = write!(line, ", {}", printable(&command.result));
    line
}

/// A command that has failed, with texts that would steer a terminal.
#[cfg(test)]
pub(super) fn example() -> TracedCommand {
    TracedCommand {
        node: 0,
        tni: 0,
        cq: 3,
        slot: 7,
        tag: Some((0, 9)),
        command: "Put".to_owned(),
        to: Some(TracedTarget {
            node: Some(1),
            at: [0, 0, 0, 0, 0, 1],
            tni: 2,
            address: Some((4, 5, 0x1000)),
        }),
        length: 8,
        tlps: 1,
        hops: vec!["C".to_owned()],
        doorbell_ns: Some(3_723_000_000_900),
        begin_ns: 3_723_000_001_000,
        end_ns: 3_723_000_002_500,
        parts: vec![TracedPart {
            node: 1,
            thread: 2,
            begin_ns: 3_723_000_001_400,
            end_ns: 3_723_000_001_600,
            position: 0,
            done: 8,
            rcode: 0x33,
        }],
        answers: 0,
        rcode: 0x33,
        result: "0x33 STAG_DISABLED remote".to_owned(),
        sent: 0,
        why: Some("bit\x1b[31m 7 is 0\n<b>".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_one_escaped_line() {
        let mut out = Vec::new();
        command(&mut out, &example()).unwrap();
        let out = String::from_utf8(out).unwrap();
        let lines: Vec<_> = out.lines().collect();
        assert_eq!(
            lines[0],
            "01:02:03.000001000 node 0 TNI 0 CQ 3 slot 7: Put of 8 bytes in 1 TLPs to node 1 TNI 2 \
             CQ 4 STag 0x5 offset 0x1000 by C, 1.500 us (there 0.400 us, work 0.200 us, back 0.900 \
             us), doorbell 0.100 us before, 0x33 STAG_DISABLED remote"
        );
        assert_eq!(lines.len(), 2);
        assert!(!lines[1].contains('\x1b') && lines[1].contains("7 is 0"), "{lines:?}");
    }
}
