//! Configuration space and MSI-X as a tree, for debugging. See [`tofu_inspect`].

use tofu_inspect::{Hex, Inspect, Visit};

use crate::config::{ConfigSpace, regs};
use crate::endpoint::Endpoint;
use crate::msix::{Assigned, MsixTable};

/// Capabilities that are shown at most: as many as fit.
const MAX_CAPABILITIES: usize = 48;

impl Inspect for Endpoint {
    fn inspect(&self, visit: Visit<'_>) {
        visit.tree(|tree| {
            tree.add_with("config", |visit| self.config_space().inspect(visit));
            tree.add("bus_master", &self.bus_master());
            tree.add_with("bar", |visit| {
                let (bars, layout) = (self.bars(), self.layout());
                visit.tree(|tree| {
                    for (n, (range, bar)) in bars.iter().zip(layout).enumerate() {
                        let Some(bar) = bar else { continue };
                        tree.add_with(n, |visit| {
                            visit.tree(|tree| {
                                tree.add("size", &Hex(bar.size));
                                tree.add("prefetchable", &bar.prefetchable);
                                let at = range.map_or(0, |range| range.address);
                                tree.add("address", &Assigned(at));
                            });
                        });
                    }
                });
            });
            tree.add("msix", &self.msix());
        });
    }
}

impl Inspect for ConfigSpace {
    fn inspect(&self, visit: Visit<'_>) {
        let word = |offset| Hex(self.u16(offset).into());
        visit.tree(|tree| {
            tree.add("vendor", &word(regs::VENDOR_ID));
            tree.add("device", &word(regs::DEVICE_ID));
            tree.add("subsystem_vendor", &word(regs::SUBSYSTEM_VENDOR_ID));
            tree.add("subsystem", &word(regs::SUBSYSTEM_ID));
            tree.add("class", &Hex((self.u32(regs::REVISION_ID) >> 8).into()));
            tree.add_with("command", |visit| {
                let command = self.u16(regs::COMMAND);
                visit.tree(|tree| {
                    tree.add("value", &Hex(command.into()));
                    tree.add("memory", &(command & regs::COMMAND_MEMORY != 0));
                    tree.add("bus_master", &(command & regs::COMMAND_BUS_MASTER != 0));
                    tree.add("intx_disable", &(command & regs::COMMAND_INTX_DISABLE != 0));
                });
            });
            tree.add("status", &word(regs::STATUS));
            tree.add_with("capability", |visit| {
                visit.tree(|tree| {
                    let mut at = self.u16(regs::CAPABILITIES) & 0xfc;
                    for _ in 0..MAX_CAPABILITIES {
                        if at == 0 {
                            break;
                        }
                        let header = self.u16(at);
                        let name = match header as u8 {
                            regs::CAP_POWER_MANAGEMENT => "power management",
                            regs::CAP_VENDOR => "vendor-specific",
                            regs::CAP_PCI_EXPRESS => "PCI Express",
                            regs::CAP_MSIX => "MSI-X",
                            _ => "other",
                        };
                        tree.add(format_args!("{at:#x}"), &name);
                        at = header >> 8 & 0xfc;
                    }
                });
            });
        });
    }
}

impl Inspect for MsixTable {
    /// Of the vectors those that are unmasked or pending.
    fn inspect(&self, visit: Visit<'_>) {
        visit.tree(|tree| {
            tree.add("enabled", &self.enabled());
            tree.add("function_mask", &self.function_mask());
            tree.add("vectors", &self.len());
            tree.add_with("vector", |visit| {
                visit.tree(|tree| {
                    for (n, vector) in self.vectors() {
                        if !vector.masked || vector.pending {
                            tree.add(n, &vector);
                        }
                    }
                });
            });
        });
    }
}
