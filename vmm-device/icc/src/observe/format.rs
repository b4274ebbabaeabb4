//! The format of values of the register map for debugging.

use tofu_abi::desc::Descriptor;
use tofu_abi::irq::IrqSet;
use tofu_abi::queue::RingIndex;
use tofu_abi::{Rcode, StagOffset};
use tofu_inspect::{Inspect, Visit};

/// A place in a ring.
pub(crate) struct Ring(pub(crate) RingIndex);

impl Inspect for Ring {
    fn inspect(&self, visit: Visit<'_>) {
        visit.tree(|tree| {
            tree.add("slot", &self.0.slot());
            tree.add("flip", &self.0.flip());
            tree.add("count", &self.0.count());
            tree.add("entries", &self.0.entries());
        });
    }
}

/// A result code, in words.
pub(crate) struct Code(pub(crate) Rcode);

impl Inspect for Code {
    fn inspect(&self, visit: Visit<'_>) {
        visit.text(format_args!("{:?}: {}", self.0, self.0));
    }
}

/// An address of an STag.
pub(crate) struct Address(pub(crate) StagOffset);

impl Inspect for Address {
    fn inspect(&self, visit: Visit<'_>) {
        visit.text(format_args!("STag {:#x} offset {:#x}", self.0.stag(), self.0.offset()));
    }
}

/// Interrupt requests, by name.
pub(crate) struct Requests<S>(pub(crate) S);

impl<S: IrqSet> Inspect for Requests<S> {
    fn inspect(&self, visit: Visit<'_>) {
        // Bits that are not requests have no meaning.
        let raw = self.0.raw() & S::ALL.raw();
        if raw == 0 {
            return visit.text("none");
        }
        if raw == S::ALL.raw() {
            return visit.text("all");
        }
        // A set of names in quotes.
        let names = format!("{:?}", S::from_raw(raw));
        visit.text(names.replace(['{', '}', '"', ','], ""));
    }
}

/// The raw words of a register or descriptor.
pub(crate) struct Words<const N: usize>(pub(crate) [u64; N]);

impl<const N: usize> Inspect for Words<N> {
    fn inspect(&self, visit: Visit<'_>) {
        let words = self.0.map(|word| format!("{word:#x}"));
        visit.text(words.join(" "));
    }
}

/// A descriptor, if there is one.
pub(crate) struct Maybe(pub(crate) Option<Descriptor>);

impl Inspect for Maybe {
    fn inspect(&self, visit: Visit<'_>) {
        Inspect::inspect(&self.0.map(|descriptor| Words(descriptor.0)), visit);
    }
}
