//! Captures as text: a line for each packet.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use pcap_file::pcapng::{Block, PcapNgParser};
use tofu_links::Dllp;
use tofu_machine::capture::{LinkPart, PacketKind, RecordHeader, TnwPart};

use super::file::name;

/// Writes a line for each packet of a capture file. Takes whole blocks, as
/// [`WholeBlocks`](super::file::WholeBlocks) passes them on.
pub struct TextLines<W> {
    out: W,
    parser: Option<PcapNgParser>,
}

impl<W: Write> TextLines<W> {
    /// Creates a writer of lines to `out`.
    pub const fn new(out: W) -> Self {
        Self { out, parser: None }
    }
}

impl<W: Write> Write for TextLines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bad = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut rest = bytes;
        while !rest.is_empty() {
            let Some(parser) = &mut self.parser else {
                let (left, parser) = PcapNgParser::new(rest).map_err(bad)?;
                self.parser = Some(parser);
                rest = left;
                continue;
            };
            let (left, block) = parser.next_block(rest).map_err(bad)?;
            rest = left;
            if let Block::EnhancedPacket(packet) = block {
                let line = line(packet.timestamp, &packet.data);
                writeln!(self.out, "{line}")?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Formats a packet as one line.
fn line(time: Duration, record: &[u8]) -> String {
    let (seconds, micros) = (time.as_secs() % 86_400, time.subsec_micros());
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let mut line = format!("{hours:02}:{minutes:02}:{:02}.{micros:06} ", seconds % 60);
    // Writing to a String cannot fail.
    let Some(header) = RecordHeader::parse(record) else {
        let _ = write!(line, "{} bytes that are no record of this version", record.len());
        return line;
    };
    let direction = match header.direction {
        0 => "out",
        1 => "in",
        _ => "lost",
    };
    let ((from, from_tni), (to, to_tni)) = (header.source, header.target);
    let _ = write!(line, "{:7} {direction:4} {:6} ", name(header.place), word(header.kind));
    if let Some(dllp) = header.dllp {
        let _ = write!(line, "{from} > {to}, {}", said(dllp));
    } else if let Some(part) = header.tnw {
        let _ = write!(line, "{from} > {to}, {}", said_by_tnw(part));
    } else {
        let bytes = header.bytes;
        let _ = write!(line, "{from} tni{from_tni} > {to} tni{to_tni}, {bytes} bytes");
    }
    if header.tlps > 1 {
        let _ = write!(line, " in {} TLPs", header.tlps);
    }
    if let Some(part) = header.message {
        let _ = write!(line, ", cq {}, {} from {}", part.cq, part.length, part.position);
    }
    if let Some(rcode) = header.rcode {
        let _ = write!(line, ", rcode {:#04x}", rcode.raw());
    }
    if let Some(vc) = header.vc.filter(|_| header.tnw.is_none()) {
        let _ = write!(line, ", vc {vc}");
    }
    if header.nullified {
        line.push_str(", marked as bad");
    }
    if let Some(link) = header.link {
        let _ = link_part(&mut line, header.dllp.is_some(), &link);
    }
    line.push_str(match header.direction {
        2 => ", the link is down",
        3 => ", there is no such node",
        4 => ", there is no such path",
        5.. => ", for another reason",
        _ => "",
    });
    line
}

/// Appends what a link did with a frame.
fn link_part(line: &mut String, is_dllp: bool, link: &LinkPart) -> std::fmt::Result {
    if !is_dllp {
        write!(line, ", frame {}", link.seq)?;
    }
    if link.again {
        line.push_str(" again");
    }
    let lanes: Vec<_> = (0..u8::BITS).filter(|lane| link.spoilt >> lane & 1 != 0).collect();
    for lane in lanes {
        write!(line, ", spoilt on lane {lane}")?;
    }
    if link.damaged {
        line.push_str(if is_dllp { ", lost" } else { ", damaged" });
    }
    Ok(())
}

fn said_by_tnw(part: TnwPart) -> String {
    match part {
        TnwPart::Data(header) => {
            let last = if header.last() { ", the last of its message" } else { "" };
            let (channel, offset) = (header.channel(), header.offset());
            format!("channel {channel}, packet {offset}{last}, sequence {}", header.sequence())
        }
        TnwPart::Command(sequence) => format!("sequence {sequence}"),
    }
}

fn said(dllp: Dllp) -> String {
    match dllp {
        Dllp::Ack(seq) => format!("ack {}", seq.get()),
        Dllp::Nack(seq) => format!("nack {}", seq.get()),
        Dllp::UpdateFc { vc, total } => format!("credit vc {vc}, {total} rows"),
        Dllp::Poll => "poll".to_owned(),
    }
}

/// Returns the word of `--kind` for a kind; answers get the word of what they answer.
const fn word(kind: PacketKind) -> &'static str {
    match kind {
        PacketKind::System => "system",
        PacketKind::Raw => "raw",
        PacketKind::Put => "put",
        PacketKind::Get => "get",
        PacketKind::Atomic => "atomic",
        PacketKind::PutAnswer => "put-answer",
        PacketKind::GetAnswer => "get-answer",
        PacketKind::AtomicAnswer => "atomic-answer",
        PacketKind::Signal => "barrier",
        PacketKind::Dllp => "dllp",
        PacketKind::TnwData => "data",
        PacketKind::TnwHello => "hello",
        PacketKind::TnwAck => "ack",
        PacketKind::TnwNack => "nack",
        PacketKind::TnwRestart => "restart",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_abi::tnw::Header;
    use tofu_links::Seq;

    #[test]
    fn packets_are_lines() {
        // A Put's burst at port A, with the first fields of its command.
        let mut record = vec![0; 56 + 16 + 56];
        record[..8].copy_from_slice(&[1, 56, 16, 0, 2, 0, 3, 0]);
        record[14..16].copy_from_slice(&[4, 5]);
        record[27] = 1;
        record[36] = 2;
        record[40..42].copy_from_slice(&1000u16.to_le_bytes());
        record[72] = 11;
        record[112..114].copy_from_slice(&512u16.to_le_bytes());
        record[116..118].copy_from_slice(&900u16.to_le_bytes());
        let time = Duration::new(86_400 + 3661, 5_000);
        let expected = "01:01:01.000005 port-A  out  put    (0,0,0,0,0,0) tni4 > (0,0,0,0,0,1) \
                        tni5, 1000 bytes in 2 TLPs, cq 11, 900 from 512, vc 2";
        assert_eq!(line(time, &record), expected);
        // The same as a frame on a modelled link.
        let mut frame = record.clone();
        frame[1] = 80;
        let link = [0x34, 2, 2, 0, 2, 2, 3, 0];
        frame.splice(56..56, link.into_iter().chain([0; 16]));
        let expected = "900 from 512, vc 2, frame 564 again, spoilt on lane 1, damaged";
        assert!(line(time, &frame).ends_with(expected), "{}", line(time, &frame));
        (frame[6], frame[36]) = (10, 0);
        frame.truncate(96);
        frame.extend(Dllp::Nack(Seq::new(9)).to_bytes());
        let expected = " dllp   (0,0,0,0,0,0) > (0,0,0,0,0,1), nack 9, vc 2 again";
        assert!(line(time, &frame).contains(expected), "{}", line(time, &frame));
        record[3] = 2;
        assert!(line(time, &record).ends_with(", vc 2, the link is down"));
        record[6] = 6;
        record[73] = 0x10;
        assert!(line(time, &record).contains(" put-answer "), "{}", line(time, &record));
        assert!(line(time, &record).contains(", rcode 0x10"));
        // A packet of TNW, and a command.
        let mut record = vec![0; 56 + 136];
        record[..8].copy_from_slice(&[1, 56, 16 + 5, 0, 3, 255, 11, 2]);
        record[22] = 1;
        record[35] = 16;
        let header = Header(0).with_channel(3).with_last(true).with_sequence(7).with_offset(12);
        record[56..60].copy_from_slice(&(header.0 as u32).to_le_bytes());
        let expected = "01:01:01.000005 port-X+ out  data   (0,0,0,0,0,0) > (1,0,0,0,0,0), \
                        channel 3, packet 12, the last of its message, sequence 7";
        assert_eq!(line(time, &record), expected);
        (record[4], record[6], record[62]) = (255, 14, 9);
        record.truncate(56 + 32);
        let line_of_command = line(time, &record);
        assert!(line_of_command.ends_with("nack   (0,0,0,0,0,0) > (1,0,0,0,0,0), sequence 9"));
        assert!(line(time, &[2; 60]).ends_with("60 bytes that are no record of this version"));
        assert!(line(time, &[]).ends_with("0 bytes that are no record of this version"));
    }
}
