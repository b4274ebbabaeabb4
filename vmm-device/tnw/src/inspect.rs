//! The live state of a device as a tree, for debugging. See [`tofu_inspect`].
//!
//! A link is shown with its lock held. This takes a short time, because a link has few parts, and
//! only the lengths of its queues are shown.

use tofu_abi::tnw::{Channel, ChannelReg, Link, LinkReg, NwpReg, Register};
use tofu_inspect::{Inspect, Said, Time, Tree, Visit};

use crate::device::Nwp;
use crate::regfile::register_fields;

impl Inspect for Nwp {
    fn inspect(&self, visit: Visit<'_>) {
        visit.tree(|tree| {
            tree.add("node", &Said(self.config.coords));
            tree.add("shape", &Said(self.config.shape));
            tree.add("bus_master", &self.is_bus_master());
            tree.add("next_deadline_ns", &Time(self.next_deadline()));
            tree.add("rules", &self.rules());
            tree.add_with("registers", |visit| {
                visit.tree(|tree| {
                    let own = NwpReg::ALL.iter();
                    own.for_each(|&reg| show(tree, self, reg.name(), Register::Nwp(reg)));
                });
            });
            tree.add_with("link", |visit| {
                visit.tree(|tree| {
                    for link in Link::ALL.into_iter().filter(|link| self.leads_somewhere(*link)) {
                        tree.add(link.port(), &LinkView { nwp: self, link });
                    }
                });
            });
        });
    }
}

/// Adds a register.
fn show(tree: &mut Tree<'_>, nwp: &Nwp, name: &str, register: Register) {
    tree.add_with(name, |visit| {
        let value = nwp.read_register(register);
        visit.register(value, &register_fields(register, value));
    });
}

/// A link and its channels.
struct LinkView<'a> {
    nwp: &'a Nwp,
    link: Link,
}

impl Inspect for LinkView<'_> {
    fn inspect(&self, visit: Visit<'_>) {
        let Self { nwp, link } = *self;
        visit.tree(|tree| {
            tree.add_with("registers", |visit| {
                visit.tree(|tree| {
                    let regs = LinkReg::ALL.iter();
                    regs.for_each(|&reg| show(tree, nwp, reg.name(), Register::Link(link, reg)));
                });
            });
            tree.add("arrived", &nwp.arrived(link));
            tree.add_with("end", |visit| nwp.with_link(link, |state| state.end.inspect(visit)));
            tree.add_with("channel", |visit| {
                visit.tree(|tree| {
                    for channel in Channel::ALL {
                        tree.add(channel.index(), &ChannelView { nwp, link, channel });
                    }
                });
            });
        });
    }
}

struct ChannelView<'a> {
    nwp: &'a Nwp,
    link: Link,
    channel: Channel,
}

impl Inspect for ChannelView<'_> {
    fn inspect(&self, visit: Visit<'_>) {
        let Self { nwp, link, channel } = *self;
        visit.tree(|tree| {
            tree.add_with("registers", |visit| {
                visit.tree(|tree| {
                    for &reg in ChannelReg::ALL.iter() {
                        let register = Register::Channel(link, channel, reg);
                        if nwp.read_register(register) != 0 {
                            show(tree, nwp, reg.name(), register);
                        }
                    }
                });
            });
            let n = channel.index();
            tree.add_with("transmit", |visit| {
                nwp.with_link(link, |state| state.tx[n].inspect(visit));
            });
            tree.add_with("receive", |visit| {
                nwp.with_link(link, |state| state.rx[n].inspect(visit));
            });
        });
    }
}
