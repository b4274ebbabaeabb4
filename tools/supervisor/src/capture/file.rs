//! Capture files: pcapng with an interface for each TNI and port.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption, InterfaceTsResolution,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{Block, PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, Endianness};
use tofu_abi::Coords;
use tofu_fabric::{Direction, TapPoint};
use tofu_machine::capture::{Capture, CaptureConfig, Record, interfaces, place};

/// Writes a capture file.
pub(crate) struct Writer<'a> {
    file: PcapNgWriter<&'a mut dyn Write>,
    /// The interfaces, in their order in the file.
    interfaces: Vec<usize>,
}

/// Returns the name of an interface.
pub fn name(place: TapPoint) -> String {
    match place {
        TapPoint::Tni(tni) => format!("tni{tni}"),
        TapPoint::Port(port) => format!("port-{port}"),
    }
}

impl<'a> Writer<'a> {
    /// Writes the file's head.
    pub(crate) fn new(
        out: &'a mut dyn Write,
        at: Coords,
        config: &CaptureConfig,
    ) -> io::Result<Self> {
        let (interconnect, machine) = config.interconnect.titles();
        let hardware = format!("emulated {interconnect} interconnect ({machine})");
        let program = concat!("tofu ", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            endianness: Endianness::Little,
            options: vec![
                SectionHeaderOption::Hardware(hardware.into()),
                SectionHeaderOption::UserApplication(program.into()),
            ],
            ..SectionHeaderBlock::default()
        };
        let file = PcapNgWriter::with_section_header(out, section).map_err(io::Error::other)?;
        let all: Vec<_> = interfaces(config.interconnect).collect();
        let mut writer = Self { file, interfaces: all.clone() };
        for place in all.into_iter().filter_map(place) {
            let what = match place {
                TapPoint::Tni(tni) => format!("TNI {tni} of node {at}"),
                TapPoint::Port(port) => format!("link port {port} of node {at}"),
            };
            let options = vec![
                InterfaceDescriptionOption::IfName(name(place).into()),
                InterfaceDescriptionOption::IfDescription(what.into()),
                InterfaceDescriptionOption::IfTsResol(InterfaceTsResolution::NANO),
            ];
            // Record headers are our own, and so is the link type that announces them.
            let linktype = DataLink::USER0;
            let snaplen = config.snaplen as u32;
            writer.block(InterfaceDescriptionBlock { linktype, snaplen, options })?;
        }
        Ok(writer)
    }

    /// Returns the number of an interface in the file.
    fn number(&self, interface: usize) -> u32 {
        let place = self.interfaces.iter().position(|known| *known == interface);
        place.unwrap_or_default() as u32
    }

    /// Writes a packet.
    pub(crate) fn record(&mut self, record: &Record) -> io::Result<()> {
        // epb_flags: 1 is inbound, 2 outbound.
        let direction = if record.direction == Direction::In { 1 } else { 2 };
        self.block(EnhancedPacketBlock {
            interface_id: self.number(record.interface),
            timestamp: Duration::from_nanos(record.time_ns),
            original_len: record.length.max(record.bytes.len() as u32),
            data: Cow::Borrowed(&record.bytes),
            options: vec![EnhancedPacketOption::Flags(direction)],
        })
    }

    /// Writes the interfaces' counts since `start_ns` by the capture's clock. Returns how many
    /// packets were dropped.
    pub(crate) fn finish(mut self, capture: &Capture, start_ns: u64) -> io::Result<u64> {
        let [start, end] = [start_ns, capture.now_ns()].map(Duration::from_nanos);
        let mut dropped = 0;
        for interface in self.interfaces.clone() {
            let counters = capture.counters(interface);
            dropped += counters.dropped;
            self.block(InterfaceStatisticsBlock {
                interface_id: self.number(interface),
                timestamp: end,
                options: vec![
                    InterfaceStatisticsOption::IsbStartTime(start),
                    InterfaceStatisticsOption::IsbEndTime(end),
                    InterfaceStatisticsOption::IsbIfRecv(counters.seen),
                    InterfaceStatisticsOption::IsbIfDrop(counters.dropped),
                ],
            })?;
        }
        self.flush()?;
        Ok(dropped)
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file.get_mut().flush()
    }

    fn block<'b>(&mut self, block: impl PcapNgBlock<'b>) -> io::Result<()> {
        let block: Block<'b> = block.into_block();
        self.file.write_block(&block).map(drop).map_err(io::Error::other)
    }
}

/// Passes on only whole blocks of a capture file, so that the output is a valid file even if its
/// source stops in the middle of a block.
pub struct WholeBlocks<W> {
    out: W,
    partial: Vec<u8>,
}

/// The longest block that is passed on, in bytes: more than a record of the longest burst.
const LONGEST_BLOCK: usize = 16 << 20;

impl<W: Write> WholeBlocks<W> {
    /// Creates a filter that writes to `out`.
    pub const fn new(out: W) -> Self {
        Self { out, partial: Vec::new() }
    }

    /// # Errors
    ///
    /// If writing to `out` fails, or the input is not pcapng.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.partial.extend_from_slice(bytes);
        let mut whole = 0;
        while let Some(length) = self.partial.get(whole + 4..whole + 8) {
            let length = length.try_into().map_or(0, u32::from_le_bytes) as usize;
            if !(12..=LONGEST_BLOCK).contains(&length) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "not a capture"));
            }
            if self.partial.len() - whole < length {
                break;
            }
            whole += length;
        }
        self.out.write_all(&self.partial[..whole])?;
        self.partial.drain(..whole);
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::PcapNgReader;
    use std::sync::Arc;
    use tofu_abi::Generation;
    use tofu_abi::generation::Description;
    use tofu_fabric::{NodeId, Port};
    use tofu_machine::{Machine, MachineConfig};

    fn capture() -> Capture {
        let shape = "unit".parse().unwrap();
        let machine = Machine::new(MachineConfig::new(shape)).unwrap();
        let network = machine.network().clone();
        network.capture(CaptureConfig::new(NodeId(0)))
    }

    fn example() -> Vec<u8> {
        let (capture, mut bytes) = (capture(), Vec::new());
        let mut writer = Writer::new(&mut bytes, Coords::default(), capture.config()).unwrap();
        for (interface, direction) in [(0, Direction::Out), (9, Direction::In)] {
            let time_ns = 1_700_000_000_123_456_789;
            let record = Record { time_ns, interface, direction, bytes: vec![7; 57], length: 2000 };
            writer.record(&record).unwrap();
        }
        writer.finish(&capture, capture.now_ns()).unwrap();
        bytes
    }

    #[test]
    fn files_are_good_pcapng() {
        let bytes = example();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let (mut names, mut packets, mut statistics) = (Vec::new(), Vec::new(), 0);
        while let Some(block) = reader.next_block() {
            match block.unwrap().0 {
                Block::InterfaceDescription(interface) => {
                    assert_eq!(interface.linktype, DataLink::USER0);
                    assert_eq!(interface.ts_resolution(), InterfaceTsResolution::NANO);
                    for option in &interface.options {
                        if let InterfaceDescriptionOption::IfName(name) = option {
                            names.push(name.to_string());
                        }
                    }
                }
                Block::EnhancedPacket(packet) => packets.push(packet.into_owned()),
                Block::InterfaceStatistics(_) => statistics += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((names.len(), statistics), (16, 16));
        assert_eq!((names[0].as_str(), names[9].as_str()), ("tni0", "port-B+"));
        assert_eq!(place(9), Some(TapPoint::Port(Port::BPlus)));
        assert_eq!(packets.len(), 2);
        assert_eq!(packets[0].timestamp, Duration::from_nanos(1_700_000_000_123_456_789));
        assert_eq!((packets[1].data.len(), packets[1].original_len), (57, 2000));
        let flags: Vec<_> = packets.iter().map(|packet| packet.options.clone()).collect();
        let expected = [2, 1].map(|flag| vec![EnhancedPacketOption::Flags(flag)]);
        assert_eq!(flags, expected);
    }

    #[test]
    fn interfaces_are_those_of_the_generation() {
        let shape = "unit".parse().unwrap();
        let machine = Machine::new(MachineConfig::of(Generation::K, shape)).unwrap();
        let capture = machine.network().capture(CaptureConfig::new(NodeId(0)));
        let mut bytes = Vec::new();
        let writer = Writer::new(&mut bytes, Coords::default(), capture.config()).unwrap();
        assert_eq!([0, 3, 6, 15].map(|interface| writer.number(interface)), [0, 3, 4, 13]);
        writer.finish(&capture, capture.now_ns()).unwrap();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let hardware =
            SectionHeaderOption::Hardware("emulated Tofu interconnect (K computer)".into());
        assert!(reader.section().options.contains(&hardware));
        let mut names = Vec::new();
        while let Some(block) = reader.next_block() {
            let Block::InterfaceDescription(interface) = block.unwrap().0 else { continue };
            for option in &interface.options {
                if let InterfaceDescriptionOption::IfName(name) = option {
                    names.push(name.to_string());
                }
            }
        }
        assert_eq!(names.len(), 14);
        assert_eq!([&names[3], &names[4]], ["tni3", "port-A"]);
    }

    /// The dissector's table equals that of the descriptions.
    #[test]
    fn dissector_knows_the_generations() {
        let dissector = include_str!("../../../wireshark/tofu.lua");
        let table = dissector.split_once("local GENERATIONS = {\n").unwrap().1;
        let table = table.split_once("\n}").unwrap().0;
        let lines = Generation::ALL.map(|generation| {
            let Description { tnis, cqs, barrier, address, atomics, .. } = generation.description();
            format!(
                "    [{}] = {{ name = \"{generation}\", tnis = {tnis}, cqs = {cqs}, \
                 barrier_tnis = {}, gates = {}, atomics = {atomics}, queue = {}, stag = {} }},",
                generation.number(),
                barrier.tnis,
                barrier.gates,
                address.queue,
                address.stag,
            )
        });
        // Long entries are on two lines.
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(table), words(&lines.concat()));
    }

    #[test]
    fn whole_blocks_come_through_in_any_pieces() {
        let bytes = Arc::new(example());
        for size in [1, 3, 100, 4096] {
            let mut out = Vec::new();
            let mut blocks = WholeBlocks::new(&mut out);
            bytes.chunks(size).for_each(|chunk| blocks.add(chunk).unwrap());
            assert_eq!(out, **bytes);
        }
        // Cut anywhere, it can be read to the end.
        for cut in (0..bytes.len()).step_by(41) {
            let mut out = Vec::new();
            WholeBlocks::new(&mut out).add(&bytes[..cut]).unwrap();
            if !out.is_empty() {
                let mut reader = PcapNgReader::new(&out[..]).unwrap();
                while let Some(block) = reader.next_block() {
                    block.unwrap();
                }
            }
        }
        let mut out = Vec::new();
        assert!(WholeBlocks::new(&mut out).add(&[0; 12]).is_err());
    }
}
