//! The live state of a device as a tree, for debugging. See [`tofu_inspect`].
//!
//! Each queue is copied under its own locks, one after the other, and then shown. So the state of a
//! queue's transmitting side is a snapshot of one moment, and so is the state of its completions. A
//! queue never waits longer than a copy takes.

use tofu_abi::desc::{Command, Descriptor, Header1, source_type};
use tofu_abi::regs::BgsReg;
use tofu_abi::{BgId, CqId, StagOffset, TniId};
use tofu_fabric::Port;
use tofu_inspect::{Inspect, Said, Time, Tree, Visit};
use tofu_sync::lock;

use crate::command::{self, Action, PacketRoute};
use crate::cq::Cq;
use crate::device::Icc;
use crate::map::{RegisterNow, Unit};
use crate::memory::{Access, DmaMemory};
use crate::observe::explain::{self, Walk};

/// Most waiting descriptors of a transmit order queue that are shown.
const WAITING: u64 = 16;

impl Inspect for Icc {
    fn inspect(&self, visit: Visit<'_>) {
        let tnis = self.description().tni_ids();
        visit.tree(|tree| {
            tree.add("node", &Said(self.coords()));
            tree.add("generation", &Said(self.generation()));
            tree.add("bus_master", &self.dma_enabled());
            tree.add("mapped_bytes", &self.faultless_memory().mapped_bytes());
            tree.add("now_ns", &self.host().now_ns());
            tree.add("next_deadline_ns", &Time(self.next_deadline()));
            tree.add("accesses", self.faults());
            tree.add("ecc", &self.ecc);
            tree.add("failed", &self.failed);
            tree.add("refused", &self.refused);
            tree.add_with("rules", |visit| self.rules().inspect(visit));
            tree.add("registers", &Registers { icc: self, unit: Unit::Tofu, all: true });
            tree.add("interrupts", &self.tnr);
            tree.add("crossbar", &Registers { icc: self, unit: Unit::Crossbar, all: true });
            tree.add("statistics", &self.statistics);
            tree.add_with("tni", |visit| {
                visit
                    .tree(|tree| tnis.for_each(|tni| tree.add(tni, &Interface { icc: self, tni })));
            });
            tree.add_with("port", |visit| {
                visit.tree(|tree| {
                    for port in Port::ALL {
                        let unit = Unit::Port(port);
                        tree.add(port, &Registers { icc: self, unit, all: true });
                    }
                });
            });
        });
    }
}

impl Icc {
    /// A walk through the tables of a control queue, from an STag and an offset to memory, with
    /// what the device would answer. `None` if there is no such queue.
    pub fn translation(
        &self,
        tni: TniId,
        cq: CqId,
        at: StagOffset,
        length: u32,
        access: Access,
    ) -> Option<impl Inspect + use<>> {
        let description = self.description();
        let there = description.has_tni(tni) && description.has_cq(cq);
        there.then(|| {
            let tables = &self.queue(tni, cq).tables;
            Walk::of(tables, self.memory(), at, length, access)
        })
    }
}

/// The registers of a part of the device: all, or those that are neither 0 nor all ones.
struct Registers<'a> {
    icc: &'a Icc,
    unit: Unit,
    all: bool,
}

impl Inspect for Registers<'_> {
    fn inspect(&self, visit: Visit<'_>) {
        visit.tree(|tree| {
            for register in self.icc.registers(self.unit) {
                let says = self.all || !matches!(register.value, 0 | u64::MAX);
                if says {
                    tree.add(register.name, &register);
                }
            }
        });
    }
}

impl Inspect for RegisterNow {
    fn inspect(&self, visit: Visit<'_>) {
        visit.register(self.value, &self.fields());
    }
}

/// A network interface.
struct Interface<'a> {
    icc: &'a Icc,
    tni: TniId,
}

impl Inspect for Interface<'_> {
    fn inspect(&self, visit: Visit<'_>) {
        let Self { icc, tni } = *self;
        let unit = icc.tni(tni);
        visit.tree(|tree| {
            tree.add("enabled", &unit.enabled());
            tree.add("registers", &Registers { icc, unit: Unit::Tni(tni), all: true });
            tree.add("interrupts", &unit.irq);
            tree.add_with("packets", |visit| {
                let packets = lock(&unit.packets).clone();
                packets.inspect(visit);
            });
            tree.add("waiting_for_network", &unit.waiting);
            let failed = icc.failed_commands(tni);
            tree.add("failed_commands", &failed);
            tree.add("model_time", &icc.model_time(tni));
            tree.add_with("cq", |visit| {
                visit.tree(|tree| {
                    for cq in icc.description().cq_ids() {
                        tree.add(cq, &Queue { icc, queue: icc.queue(tni, cq) });
                    }
                });
            });
            if tni.get() < icc.description().barrier.tnis {
                // There are none before one of their registers is written.
                tree.add_with("gate", |visit| visit.tree(|tree| gates(tree, icc, tni)));
                tree.add_with("channel", |visit| match icc.barrier.get(tni) {
                    Some(unit) => unit.inspect(visit),
                    None => visit.tree(|_| ()),
                });
            }
        });
    }
}

/// The barrier gates that are enabled.
fn gates(tree: &mut Tree<'_>, icc: &Icc, tni: TniId) {
    for bg in BgId::ALL.into_iter().filter(|bg| icc.description().has_gate(tni, *bg)) {
        if icc.read_bgs(tni, bg, BgsReg::Enable) & 1 != 0 {
            tree.add(bg, &Registers { icc, unit: Unit::Gate(tni, bg), all: true });
        }
    }
}

/// A control queue.
struct Queue<'a> {
    icc: &'a Icc,
    queue: &'a Cq,
}

impl Inspect for Queue<'_> {
    fn inspect(&self, visit: Visit<'_>) {
        let Self { icc, queue } = *self;
        let enabled = queue.enabled();
        visit.tree(|tree| {
            tree.add("enabled", &enabled);
            let unit = Unit::Queue(queue.tni, queue.id);
            tree.add("registers", &Registers { icc, unit, all: enabled });
            if !enabled {
                return;
            }
            tree.add("interrupts", &queue.irq);
            tree.add_with("transmit", |visit| {
                let transmit = queue.transmit.lock().clone();
                Inspect::inspect(&transmit, visit);
            });
            tree.add_with("waiting", |visit| visit.tree(|tree| self.waiting(tree)));
            tree.add("direct", &*lock(&queue.direct));
            tree.add_with("completions", |visit| {
                let completions = queue.lock_completions().clone();
                Inspect::inspect(&completions, visit);
            });
            tree.add("tables", &*queue.tables);
            if icc.dma_enabled() {
                let (tables, memory) = (&*queue.tables, icc.memory());
                let stags = |visit: Visit<'_>| visit.tree(|t| explain::stags(t, tables, memory));
                let blocks = |visit: Visit<'_>| visit.tree(|t| explain::blocks(t, tables, memory));
                tree.add_with("stags", stags);
                tree.add_with("blocks", blocks);
            }
        });
    }
}

impl Queue<'_> {
    /// The descriptors in the transmit order queue that were not taken yet, by slot.
    fn waiting(&self, tree: &mut Tree<'_>) {
        let Self { icc, queue } = *self;
        let Some(mut transmit) = queue.transmit.lock().clone() else { return };
        if !icc.dma_enabled() {
            return;
        }
        for _ in 0..WAITING.min(transmit.ring.entries().into()) {
            let entry = icc.memory().load_entry(transmit.entry());
            let Ok(words) = entry else { return };
            if Header1(words[0]).flip() != transmit.ring.flip() {
                return;
            }
            let slot = transmit.ring.slot();
            tree.add_with(slot, |visit| visit.text(self.words(Descriptor(words))));
            transmit.ring.advance();
        }
    }

    /// A descriptor in words.
    fn words(&self, descriptor: Descriptor) -> String {
        let Self { icc, queue } = *self;
        if descriptor.header1().source_type() == source_type::DIRECT {
            return "the place of a direct descriptor".to_owned();
        }
        match command::parse(&descriptor, queue.id, queue.mode(), icc.description()) {
            Ok(Action::Nop) => "Nop".to_owned(),
            Ok(Action::WritePiggybackBuffer(_)) => "WritePiggybackBuffer".to_owned(),
            Ok(Action::Transfer(message) | Action::PutPiggyback(message, _)) => message.to_string(),
            Ok(Action::Armw(message, op, _)) => format!("{op:?}: {message}"),
            Ok(Action::Packet(packet)) => {
                let kind = match packet.route {
                    PacketRoute::System => "system packet".to_owned(),
                    PacketRoute::Raw => "raw packet".to_owned(),
                    PacketRoute::Hop(port) => format!("raw packet by port {port}"),
                };
                let (length, to) = (packet.message.length, packet.message.header1.target());
                format!("{kind} of {length} bytes at {:#x} to node {to}", packet.at)
            }
            Err(fault) => {
                let code = descriptor.header1().command();
                let name = Command::from_code(code).map(|command| format!(" {command:?}"));
                let rcode = fault.rcode;
                format!(
                    "command {code:#x}{}, to be refused: {rcode:?}, {rcode}",
                    name.unwrap_or_default()
                )
            }
        }
    }
}
