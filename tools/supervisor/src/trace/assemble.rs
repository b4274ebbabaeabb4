//! Assembles commands from their steps.

use std::collections::HashMap;

use tofu_abi::desc::{Command, Header1, MAX_MTU, MTU_UNIT};
use tofu_abi::regs::{CqReg, Register};
use tofu_abi::{CqId, Rcode, TniId};
use tofu_control::protocol::{TracedCommand, TracedInterrupt, TracedPart, TracedTarget};
use tofu_fabric::{Class, NodeId, Route, Shape};
use tofu_icc::{Event, Tag, Which, burst_size};
use tofu_machine::trace::{Reason, Record, What};

/// Parts of a command that are kept.
const PARTS: usize = 64;
/// Interrupts of a node that wait for an access.
const INTERRUPTS: usize = 16;
/// Reasons that wait for their commands.
const REASONS: usize = 4096;

/// A place in a queue's table of outstanding commands.
type Place = (u32, u8, CqId, u16);

/// Puts commands together.
pub struct Assembler {
    shape: Shape,
    /// Outstanding commands, with their generations and codes. There is at most one for each place.
    open: HashMap<Place, (u32, u8, TracedCommand)>,
    /// The time of a doorbell that no command has followed yet.
    doorbells: HashMap<(u32, TniId, CqId), u64>,
    /// Interrupts that no access has followed yet, by node.
    interrupts: HashMap<u32, Vec<TracedInterrupt>>,
    /// Reasons by node, interface and queue of the command: the target's, and those of its own
    /// node.
    reasons: HashMap<(u32, u8, CqId, Which), [Option<String>; 2]>,
}

/// What has ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// Commands, with the codes of their descriptors.
    pub commands: Vec<(u8, TracedCommand)>,
    /// Interrupts, with the access that followed, if one has.
    pub interrupts: Vec<TracedInterrupt>,
}

impl Assembler {
    /// For a machine of this shape.
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            open: HashMap::new(),
            doorbells: HashMap::new(),
            interrupts: HashMap::new(),
            reasons: HashMap::new(),
        }
    }

    /// Commands that have begun and have not ended.
    pub fn open(&self) -> u64 {
        self.open.len() as u64
    }

    /// Keeps reasons for commands that end later.
    pub fn learn(&mut self, reasons: Vec<Reason>) {
        for Reason { subject, by, why } in reasons {
            let Some(node) = self.shape.node_id(subject.node) else { continue };
            if self.reasons.len() >= REASONS {
                self.reasons.clear();
            }
            let key = (node.0, subject.tni, subject.cq, subject.which);
            let own = by == subject.node && !matches!(&self.reasons.get(&key), Some([_, Some(_)]));
            self.reasons.entry(key).or_default()[usize::from(own)] = Some(why);
        }
    }

    /// Takes a step; commands and interrupts that it ends go into `ended`.
    pub fn take(&mut self, record: &Record, ended: &mut Ended) {
        let (node, time) = (record.node.0, record.time_ns);
        match record.what {
            What::Command(event) => self.step(node, record.thread, time, event, ended),
            What::Interrupt(vector) => {
                let waiting = self.interrupts.entry(node).or_default();
                if waiting.len() >= INTERRUPTS {
                    ended.interrupts.push(waiting.remove(0));
                }
                let (access_ns, offset) = (None, None);
                waiting.push(TracedInterrupt { node, vector, at_ns: time, access_ns, offset });
            }
            What::Access { offset, write } => {
                if let Some(waiting) = self.interrupts.get_mut(&node) {
                    ended.interrupts.extend(waiting.drain(..).map(|interrupt| TracedInterrupt {
                        access_ns: Some(time),
                        offset: Some(offset),
                        ..interrupt
                    }));
                }
                if let (true, Some(Register::Cq { tni, cq, reg: CqReg::FetchStart })) =
                    (write, Register::decode(offset))
                {
                    self.doorbells.insert((node, tni, cq), time);
                }
            }
        }
    }

    /// Adds the interrupts that no access has followed to `ended`.
    pub fn finish(&mut self, ended: &mut Ended) {
        ended.interrupts.extend(self.interrupts.drain().flat_map(|(_, waiting)| waiting));
    }

    fn step(&mut self, node: u32, thread: u32, time: u64, event: Event, ended: &mut Ended) {
        match event {
            Event::Begun { tni, tag, slot, header1, header2, remote, local: _, length } => {
                let code = header1.command();
                let mut command = self.command(node, tni, tag.cq, slot, header1, time);
                command.tag = Some((tag.index, tag.generation));
                command.length = length;
                command.tlps = tlps(header1, length, header2.padding());
                let address = (remote.cqid(), remote.stag(), remote.offset());
                let address = (!is_packet(code)).then_some(address);
                let from = self.shape.coords(NodeId(node)).unwrap_or_default();
                let (to, path) = (header1.target(), header1.path());
                // For system packets, the header has distances in place of X, Y and Z.
                let way = if is_system_packet(code) {
                    let hops = header1.distances();
                    Route::by_distances(&self.shape, from, to, hops, path, Class::System)
                } else {
                    let route = Route::new(&self.shape, from, to, path, Class::Request);
                    route.map(|route| (to, route))
                };
                let at = match &way {
                    Ok((at, _)) => Some(*at),
                    Err(_) => (!is_system_packet(code)).then_some(to),
                };
                let number = at.and_then(|at| self.shape.node_id(at)).map(|to| to.0);
                let tni = header1.ri();
                command.to =
                    at.map(|at| TracedTarget { node: number, at: at.to_array(), tni, address });
                if let Ok((_, route)) = way {
                    command.hops = route.map(|hop| hop.port.to_string()).collect();
                }
                // Only the port of such a packet tells where it goes.
                if code == Command::TransmitRawPacket2 as u8 {
                    command.to = None;
                    command.hops.clear();
                }
                let place = (node, command.tni, tag.cq, tag.index);
                self.open.insert(place, (tag.generation, code, command));
            }
            Event::AtOnce { tni, cq, slot, header1, rcode } => {
                let mut command = self.command(node, tni, cq, slot, header1, time);
                self.end(&mut command, Which::Slot(slot), rcode, rcode, time);
                ended.commands.push((header1.command(), command));
            }
            Event::Served { since, tni: _, from, from_tni, tag, position, done, rcode } => {
                let from = self.shape.node_id(from).map(|from| from.0);
                let command = from.and_then(|from| self.find(from, from_tni, tag));
                let Some(command) = command.filter(|command| command.parts.len() < PARTS) else {
                    return;
                };
                // Clocks of processors may differ by less than anything takes.
                let begin_ns = if since == 0 { time } else { since.min(time) };
                let begin_ns = begin_ns.max(command.begin_ns);
                let (end_ns, rcode) = (time.max(begin_ns), rcode.raw());
                let part = TracedPart { node, thread, begin_ns, end_ns, position, done, rcode };
                command.parts.push(part);
            }
            Event::Answered { tni, tag, .. } => {
                if let Some(command) = self.find(node, tni.get(), tag) {
                    command.answers += 1;
                }
            }
            Event::Ended { tni, tag, rcode, sent } => {
                let place = (node, tni.get(), tag.cq, tag.index);
                let known = self.open.get(&place).is_some_and(|open| open.0 == tag.generation);
                // Other commands began before the trace did, or their beginning was lost.
                if let Some((_, code, mut command)) =
                    known.then(|| self.open.remove(&place)).flatten()
                {
                    let which = Which::Tag(tag.index, tag.generation);
                    self.end(&mut command, which, rcode, sent, time);
                    ended.commands.push((code, command));
                }
            }
        }
    }

    fn find(&mut self, node: u32, tni: u8, tag: Tag) -> Option<&mut TracedCommand> {
        let (generation, _, command) = self.open.get_mut(&(node, tni, tag.cq, tag.index))?;
        (*generation == tag.generation).then_some(command)
    }

    fn end(
        &mut self,
        command: &mut TracedCommand,
        which: Which,
        rcode: Rcode,
        sent: Rcode,
        time: u64,
    ) {
        let parts = command.parts.iter().map(|part| part.end_ns);
        command.end_ns = parts.fold(time, u64::max).max(command.begin_ns);
        (command.rcode, command.sent) = (rcode.raw(), sent.raw());
        command.result = format!("{rcode:?}");
        if !rcode.is_success() || !sent.is_success() {
            let cq = CqId::new(command.cq).unwrap_or(CqId::KERNEL);
            let found = self.reasons.remove(&(command.node, command.tni, cq, which));
            command.why = found.and_then(|[there, own]| there.or(own));
        }
    }

    /// A command that has begun.
    fn command(
        &mut self,
        node: u32,
        tni: TniId,
        cq: CqId,
        slot: u32,
        header1: Header1,
        begin_ns: u64,
    ) -> TracedCommand {
        let code = header1.command();
        let name = match Command::from_code(code) {
            Some(command) => format!("{command:?}"),
            None => format!("{code:#04x}"),
        };
        TracedCommand {
            node,
            tni: tni.get(),
            cq: cq.get(),
            slot,
            tag: None,
            command: name,
            to: None,
            length: 0,
            tlps: 0,
            hops: Vec::new(),
            doorbell_ns: self.doorbells.remove(&(node, tni, cq)).map(|rung| rung.min(begin_ns)),
            begin_ns,
            end_ns: begin_ns,
            parts: Vec::new(),
            answers: 0,
            rcode: 0,
            result: String::new(),
            sent: 0,
            why: None,
        }
    }
}

fn is_packet(code: u8) -> bool {
    (Command::TransmitRawPacket1 as u8..=Command::TransmitSystemPacket2 as u8).contains(&code)
}

fn is_system_packet(code: u8) -> bool {
    code == Command::TransmitSystemPacket1 as u8 || code == Command::TransmitSystemPacket2 as u8
}

/// TLPs of the data of a command.
fn tlps(header1: Header1, length: u32, padding: bool) -> u32 {
    let code = header1.command();
    // The MTU bits have another meaning in atomics and packets, which have one TLP.
    if is_packet(code) || code == Command::AtomicReadModifyWrite as u8 {
        return 1;
    }
    let mtu = match u32::from(header1.mtu()) * MTU_UNIT {
        0 => MAX_MTU,
        mtu => mtu.min(MAX_MTU),
    };
    burst_size(length, mtu, padding).0
}
