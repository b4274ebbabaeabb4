//! Assembles commands from their steps.

use std::collections::{HashMap, VecDeque};

use tofu_abi::desc::{Command, Header1, MAX_MTU, MTU_UNIT};
use tofu_abi::regs::{CqReg, Register};
use tofu_abi::{CqId, Rcode, TniId};
use tofu_control::protocol::{TracedCommand, TracedInterrupt, TracedPart, TracedTarget};
use tofu_fabric::{Class, NodeId, Route, Shape};
use tofu_icc::{Event, Tag, Which, burst_size};
use tofu_machine::trace::{Reason, Record, What};

/// The most parts of a command that are kept.
const PARTS: usize = 64;
/// The most interrupts of a node that wait for an access.
const INTERRUPTS: usize = 16;
/// The most reasons that wait for their commands.
const REASONS: usize = 4096;

/// The time after the end of a packet's command for which the packet may still arrive. The command
/// ends as soon as the network has taken the packet.
const ON_ITS_WAY_NS: u64 = 100_000_000;
/// The most packets kept on their way. The oldest are dropped first.
const PACKETS: usize = 4096;

/// A queue: node, interface and control queue.
type QueueKey = (u32, TniId, CqId);
/// A place in a queue's table of outstanding commands.
type CommandKey = (u32, TniId, CqId, u16);
/// A command of a queue that may have reasons.
type ReasonKey = (u32, TniId, CqId, Which);

/// Assembles commands.
pub struct Assembler {
    shape: Shape,
    /// Outstanding commands, with their generations and codes, at most one for each place.
    open: HashMap<CommandKey, (u32, u8, TracedCommand)>,
    /// Packets that have ended but have not been seen at their targets yet, in the order of their
    /// ends.
    on_their_way: VecDeque<(CommandKey, u32, u8, TracedCommand)>,
    /// The time of a doorbell that no command has followed yet.
    doorbells: HashMap<QueueKey, u64>,
    /// Interrupts that no access has followed yet, by node.
    interrupts: HashMap<u32, Vec<TracedInterrupt>>,
    /// Reasons by node, interface and queue of the command: first the target's, then those of its
    /// own node.
    reasons: HashMap<ReasonKey, [Option<String>; 2]>,
}

/// Commands and interrupts that have ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// Commands, with the codes of their descriptors.
    pub commands: Vec<(u8, TracedCommand)>,
    /// Interrupts, with the access that followed, if one has.
    pub interrupts: Vec<TracedInterrupt>,
}

impl Assembler {
    /// Creates an assembler for a machine of this shape.
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            open: HashMap::new(),
            on_their_way: VecDeque::new(),
            doorbells: HashMap::new(),
            interrupts: HashMap::new(),
            reasons: HashMap::new(),
        }
    }

    /// Returns how many commands have begun and have not ended.
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

    /// Processes a step. Commands and interrupts that it ends go into `ended`.
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

    /// Moves packets that must have been lost by `now_ns` to `ended`, and the oldest if there are
    /// too many. `now_ns` is in nanoseconds since 1970.
    pub fn settle(&mut self, now_ns: u64, ended: &mut Ended) {
        let since = now_ns.saturating_sub(ON_ITS_WAY_NS);
        while self.on_their_way.len() > PACKETS
            || self.on_their_way.front().is_some_and(|(.., packet)| packet.end_ns < since)
        {
            let packet = self.on_their_way.pop_front();
            ended.commands.extend(packet.map(|(.., code, command)| (code, command)));
        }
    }

    /// Moves packets that were not seen at their targets, and interrupts that no access has
    /// followed, to `ended`.
    pub fn finish(&mut self, ended: &mut Ended) {
        let packets = self.on_their_way.drain(..);
        ended.commands.extend(packets.map(|(.., code, command)| (code, command)));
        ended.interrupts.extend(self.interrupts.drain().flat_map(|(_, waiting)| waiting));
    }

    fn step(&mut self, node: u32, thread: u32, time: u64, event: Event, ended: &mut Ended) {
        match event {
            Event::Begun { tni, tag, slot, header1, header2, remote, local: _, length } => {
                let code = header1.command();
                let mut command = self.command((node, tni, tag.cq), slot, header1, time);
                let place = (node, tni, tag.cq, tag.index);
                command.tag = Some((tag.index, tag.generation));
                command.length = length;
                command.tlps = tlps(header1, length, header2.padding());
                let address = (remote.cqid(), remote.stag(), remote.offset());
                self.route(&mut command, node, header1, address);
                self.open.insert(place, (tag.generation, code, command));
            }
            Event::AtOnce { tni, cq, slot, header1, rcode } => {
                let mut command = self.command((node, tni, cq), slot, header1, time);
                let key = (node, tni, cq, Which::Slot(slot));
                self.end(&mut command, key, rcode, rcode, time);
                ended.commands.push((header1.command(), command));
            }
            Event::Served { since, tni: _, from, from_tni, tag, position, done, rcode } => {
                let Some(from) = self.shape.node_id(from) else { return };
                let begin_ns = if since == 0 { time } else { since.min(time) };
                let (end_ns, rcode) = (time, rcode.raw());
                let part = TracedPart { node, thread, begin_ns, end_ns, position, done, rcode };
                if let Some(command) = self.find(from.0, from_tni, tag) {
                    serve(command, part);
                } else if let Some((code, mut packet)) = self.arrived(from.0, from_tni, tag) {
                    serve(&mut packet, part);
                    ended.commands.push((code, packet));
                }
            }
            Event::Answered { tni, tag, .. } => {
                if let Some(command) = self.find(node, tni, tag) {
                    command.answers += 1;
                }
            }
            Event::Ended { tni, tag, rcode, sent } => {
                let place = (node, tni, tag.cq, tag.index);
                let known = self.open.get(&place).is_some_and(|open| open.0 == tag.generation);
                // A command that is not known began before the trace, or its first step was lost.
                if let Some((_, code, mut command)) =
                    known.then(|| self.open.remove(&place)).flatten()
                {
                    let key = (node, tni, tag.cq, Which::Tag(tag.index, tag.generation));
                    self.end(&mut command, key, rcode, sent, time);
                    let lost = !rcode.is_success() || !sent.is_success();
                    if is_packet(code) && command.parts.is_empty() && !lost {
                        self.on_their_way.push_back((place, tag.generation, code, command));
                    } else {
                        ended.commands.push((code, command));
                    }
                }
            }
        }
    }

    /// Notes the target of a command's packets, and the address there.
    fn route(
        &self,
        command: &mut TracedCommand,
        node: u32,
        header1: Header1,
        address: (u8, u32, u64),
    ) {
        let code = header1.command();
        let address = (!is_packet(code)).then_some(address);
        let from = self.shape.coords(NodeId(node)).unwrap_or_default();
        let (to, path) = (header1.target(), header1.path());
        // The header of a system packet has distances in place of X, Y and Z.
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
        command.to = at.map(|at| TracedTarget { node: number, at: at.to_array(), tni, address });
        if let Ok((_, route)) = way {
            command.hops = route.map(|hop| hop.port.to_string()).collect();
        }
        // Only the port of such a packet determines where it goes.
        if code == Command::TransmitRawPacket2 as u8 {
            command.to = None;
            command.hops.clear();
        }
    }

    /// Removes and returns a packet that was on its way.
    fn arrived(&mut self, node: u32, tni: TniId, tag: Tag) -> Option<(u8, TracedCommand)> {
        let wanted = ((node, tni, tag.cq, tag.index), tag.generation);
        let found = self
            .on_their_way
            .iter()
            .position(|(place, generation, ..)| (*place, *generation) == wanted)?;
        self.on_their_way.remove(found).map(|(.., code, packet)| (code, packet))
    }

    fn find(&mut self, node: u32, tni: TniId, tag: Tag) -> Option<&mut TracedCommand> {
        let (generation, _, command) = self.open.get_mut(&(node, tni, tag.cq, tag.index))?;
        (*generation == tag.generation).then_some(command)
    }

    fn end(
        &mut self,
        command: &mut TracedCommand,
        key: ReasonKey,
        rcode: Rcode,
        sent: Rcode,
        time: u64,
    ) {
        let parts = command.parts.iter().map(|part| part.end_ns);
        command.end_ns = parts.fold(time, u64::max).max(command.begin_ns);
        (command.rcode, command.sent) = (rcode.raw(), sent.raw());
        command.result = format!("{rcode:?}");
        if !rcode.is_success() || !sent.is_success() {
            let found = self.reasons.remove(&key);
            command.why = found.and_then(|[there, own]| there.or(own));
        }
    }

    /// Creates a command that has begun.
    fn command(
        &mut self,
        queue: QueueKey,
        slot: u32,
        header1: Header1,
        begin_ns: u64,
    ) -> TracedCommand {
        let (node, tni, cq) = queue;
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
            doorbell_ns: self.doorbells.remove(&queue).map(|rung| rung.min(begin_ns)),
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

/// Adds work done for a command at its target.
fn serve(command: &mut TracedCommand, part: TracedPart) {
    if command.parts.len() < PARTS {
        // Processors' clocks may differ slightly, by less than any step takes.
        let begin_ns = part.begin_ns.max(command.begin_ns);
        command.parts.push(TracedPart { begin_ns, end_ns: part.end_ns.max(begin_ns), ..part });
    }
}

fn is_packet(code: u8) -> bool {
    (Command::TransmitRawPacket1 as u8..=Command::TransmitSystemPacket2 as u8).contains(&code)
}

fn is_system_packet(code: u8) -> bool {
    code == Command::TransmitSystemPacket1 as u8 || code == Command::TransmitSystemPacket2 as u8
}

/// Returns the number of TLPs that a command's data takes.
fn tlps(header1: Header1, length: u32, padding: bool) -> u32 {
    let code = header1.command();
    // Atomics and packets have one TLP, and use the MTU bits for something else.
    if is_packet(code) || code == Command::AtomicReadModifyWrite as u8 {
        return 1;
    }
    let mtu = match u32::from(header1.mtu()) * MTU_UNIT {
        0 => MAX_MTU,
        mtu => mtu.min(MAX_MTU),
    };
    burst_size(length, mtu, padding).0
}

#[cfg(test)]
mod tests {
    use tofu_abi::desc::Header2;
    use tofu_abi::{Coords, StagOffset};

    use super::*;

    const TNI: TniId = TniId::ALL[0];

    /// A packet of node 0, or its arrival at node 1.
    fn record(time_ns: u64, node: u32, event: Event) -> Record {
        Record { time_ns, node: NodeId(node), thread: 0, what: What::Command(event) }
    }

    fn tag(generation: u32) -> Tag {
        Tag { cq: CqId::KERNEL, index: 0, generation }
    }

    fn sent(time_ns: u64, generation: u32) -> [Record; 2] {
        let begun = Event::Begun {
            tni: TNI,
            tag: tag(generation),
            slot: generation,
            header1: Header1(0).with_command(Command::TransmitSystemPacket1 as u8),
            header2: Header2(0),
            remote: StagOffset(0),
            local: StagOffset(0),
            length: 100,
        };
        let (rcode, sent) = (Rcode::SUCCESS, Rcode::SUCCESS);
        let ended = Event::Ended { tni: TNI, tag: tag(generation), rcode, sent };
        [record(time_ns, 0, begun), record(time_ns + 10, 0, ended)]
    }

    fn received(time_ns: u64, generation: u32, done: u32) -> Record {
        let (from, rcode) = (Coords::default(), Rcode::SUCCESS);
        let (tni, from_tni, tag) = (TNI, TNI, tag(generation));
        let event = Event::Served { since: 0, tni, from, from_tni, tag, position: 0, done, rcode };
        record(time_ns, 1, event)
    }

    #[test]
    fn packets_arrive_before_or_after_their_end() {
        let mut assembler = Assembler::new("2x1x1x1x1x1".parse().unwrap());
        let mut ended = Ended::default();
        let [begun, end] = sent(1000, 0);
        for record in [begun, received(1005, 0, 100), end] {
            assembler.take(&record, &mut ended);
        }
        // Two packets use the same place in the queue's table before either arrives.
        for record in [sent(2000, 1), sent(3000, 2)].as_flattened() {
            assembler.take(record, &mut ended);
        }
        assert_eq!((ended.commands.len(), assembler.open()), (1, 0));
        assembler.take(&received(4000, 2, 0), &mut ended);
        assembler.settle(5000, &mut ended);
        let seen = |ended: &Ended| -> Vec<_> {
            let commands = ended.commands.iter().map(|(_, command)| command);
            let part = |command: &TracedCommand| command.parts.first().map(|p| (p.end_ns, p.done));
            commands.map(|command| (command.slot, command.end_ns, part(command))).collect()
        };
        let arrived = [(0, 1010, Some((1005, 100))), (2, 3010, Some((4000, 0)))];
        assert_eq!(seen(&ended), arrived);
        // One is lost, and one is on its way when the trace ends.
        assembler.settle(2011 + ON_ITS_WAY_NS, &mut ended);
        assert_eq!(seen(&ended)[2..], [(1, 2010, None)]);
        sent(6000, 3).iter().for_each(|record| assembler.take(record, &mut ended));
        assembler.finish(&mut ended);
        assert_eq!(seen(&ended)[3..], [(3, 6010, None)]);
        assembler.take(&received(7000, 3, 100), &mut ended);
        assert_eq!(ended.commands.len(), 4);
        // The number of packets that are kept is bounded.
        for generation in 4..4 + 2 * PACKETS as u32 {
            let sent = sent(8000, generation);
            sent.iter().for_each(|record| assembler.take(record, &mut ended));
        }
        assembler.settle(8010, &mut ended);
        assert_eq!((assembler.on_their_way.len(), ended.commands.len()), (PACKETS, 4 + PACKETS));
    }
}
