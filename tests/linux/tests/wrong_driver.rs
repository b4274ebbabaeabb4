//! Mutations of `tofu.ko` are named by `tofu prove`, and the driver itself is not.
//!
//! They are compiled as one module, which makes one of its mistakes: the one whose number is in a
//! variable, which copies of the module's file have set.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tofu_linux_tests::prove::Named::{self, Any, Crash, Left, Rule, Scene, Unmet, Warning};
use tofu_linux_tests::prove::{PLAIN, broken, missed, nothing_runs, prove, report};
use tofu_linux_tests::{PATIENCE, Place, driver};

/// The folder that has the crates of the module.
const SOURCE: &str = "../../guest-lib";
/// Modules that are proved by one command.
const SOME: usize = 8;
/// Words before the number of the mistake, by which it is found in the module.
const MAGIC: [u32; 3] = [0x70f0_bad1, 0x70f0_bad2, 0x70f0_bad3];

/// A mistake.
struct Mutation {
    name: &'static str,
    /// Files with texts and what stands there instead: statements, or expressions.
    edits: &'static [(&'static str, &'static str, &'static str)],
    /// The part of the report that names it.
    named: Named,
}

const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "no_master",
        edits: &[("tofu_main.rs", "pdev.set_master();", "")],
        named: Rule("T-CQ-001"),
    },
    Mutation {
        name: "no_packets_after_reset",
        edits: &[(
            "device.rs",
            "self.let_packets_in();\n\
             \x20       if self.epoch().is_err() {\n\
             \x20           self.epoch.add(1, Relaxed);\n\
             \x20       }",
            "if self.epoch().is_err() { self.epoch.add(1, Relaxed); }",
        )],
        named: Scene("traffic after reset", "node 0 does not reach "),
    },
    Mutation {
        name: "frames_not_flushed",
        edits: &[("packets.rs", "self.device.write(self.id, CqsReg::CacheFlush, 1);", "")],
        named: Rule("T-AT-017"),
    },
    Mutation {
        name: "stags_not_flushed",
        edits: &[("cq/registration.rs", "self.device.flush_cq(self.id)", "Ok(())")],
        named: Rule("T-AT-017"),
    },
    Mutation {
        name: "freed_before_its_end",
        edits: &[
            (
                "netdev/tx/rendezvous.rs",
                "sender.unshare(|slot| requests.is_under_way(slot));",
                "sender.unshare(|_| false);",
            ),
            (
                "netdev/tx/rendezvous.rs",
                "!memory.is_free(*slot) && !requests.is_under_way(*slot)",
                "!memory.is_free(*slot)",
            ),
        ],
        named: Rule("T-AT-004"),
    },
    Mutation {
        name: "notices_ahead",
        edits: &[(
            "packets.rs",
            "self.device.write(self.id, CqReg::MrqFullPointer, count);",
            "self.device.write(self.id, CqReg::MrqFullPointer, count + 1);",
        )],
        named: Rule("T-MRQ-003"),
    },
    Mutation {
        name: "packets_ahead",
        edits: &[(
            "packets.rs",
            "self.write(TniReg::PrqFullPointer, count);",
            "self.write(TniReg::PrqFullPointer, count + 64);",
        )],
        named: Rule("T-PKT-006"),
    },
    Mutation {
        name: "packets_not_counted",
        edits: &[("packets.rs", "self.write(TniReg::PrqFullPointer, count);", "let _ = count;")],
        named: Rule("T-PKT-003"),
    },
    Mutation {
        name: "buffer_lost",
        edits: &[(
            "packets.rs",
            "if let Some(at) = self.queues.buffer(entry) {\n            self.post(at);\n        }",
            "",
        )],
        named: Rule("T-PKT-002"),
    },
    Mutation {
        name: "not_mapped",
        edits: &[(
            "netdev.c",
            "*addr = dma_map_page(dev, page, 0, TOFU_CHUNK, DMA_BIDIRECTIONAL);",
            "*addr = page_to_phys(page);",
        )],
        named: Rule("T-AT-015"),
    },
    Mutation {
        name: "direction",
        edits: &[(
            "netdev.c",
            "*addr = dma_map_page(dev, page, 0, TOFU_CHUNK, DMA_BIDIRECTIONAL);",
            "*addr = dma_map_page(dev, page, 0, TOFU_CHUNK, DMA_TO_DEVICE);",
        )],
        named: Rule("T-AT-015"),
    },
    Mutation {
        name: "chunk_stays_mapped",
        edits: &[("netdev.c", "dma_unmap_page(dev, addr, TOFU_CHUNK, DMA_BIDIRECTIONAL);", "")],
        named: Left("node 1: # bytes are mapped for the device"),
    },
    Mutation {
        name: "area_stays_mapped",
        edits: &[("netdev.c", "dma_unmap_page(areas->dev, addr, TOFU_AREA, DMA_TO_DEVICE);", "")],
        named: Left("node 0: # bytes are mapped for the device"),
    },
    Mutation {
        name: "queue_left",
        edits: &[("packets.rs", "self.device.enable_cq(self.id, false).is_err()", "false")],
        named: Rule("T-CQ-005"),
    },
    Mutation {
        name: "packet_queues_left",
        edits: &[(
            "packets.rs",
            "for (reg, value) in PacketQueues::CLOSED {\n\
             \x20           self.write(reg, value);\n\
             \x20       }",
            "",
        )],
        named: Rule("T-PKT-004"),
    },
    Mutation {
        name: "timer_left",
        edits: &[("netdev.c", "timer_delete_sync(&net->service);", "")],
        named: Crash,
    },
    Mutation {
        name: "work_left",
        edits: &[("shim.c", "cancel_delayed_work_sync(&looks);", "")],
        named: Crash,
    },
    Mutation {
        name: "napi_left",
        edits: &[("netdev.c", "napi_disable(&queue->napi);", "")],
        named: Crash,
    },
    Mutation {
        name: "vectors_left",
        edits: &[("device.rs", "drop(vectors);", "core::mem::forget(vectors);")],
        named: Left("node 0: MSI-X is enabled"),
    },
    Mutation {
        name: "handlers_left",
        edits: &[("netdev/link.rs", "drop(irqs);", "core::mem::forget(irqs);")],
        named: Warning("node 0, in unload: "),
    },
    Mutation {
        name: "sent_frames_kept",
        edits: &[("netdev.c", "dev_consume_skb_any(skb);", "")],
        named: Left("node 0: # frames of the network stack"),
    },
    Mutation {
        name: "state_not_freed",
        edits: &[("shim.c", "kfree(watched.saved);", "")],
        named: Left("node 0: # objects of pci_store_saved_state"),
    },
    Mutation {
        name: "devlink_left",
        edits: &[("shim.c", "\tdevlink_remove();", "")],
        named: Left("node 0: 1 objects of __devlink_alloc"),
    },
    Mutation {
        name: "file_left",
        edits: &[("shim.c", "\tproc_remove(entry);", "")],
        named: Left("node 0: /proc/tofu"),
    },
    Mutation {
        name: "not_disabled",
        edits: &[(
            "tofu_main.rs",
            "unsafe { kernel::bindings::pci_disable_device(raw) };",
            "let _: *mut kernel::bindings::pci_dev = raw;",
        )],
        named: Left("node 0: Bus Master Enable is set"),
    },
    Mutation {
        name: "not_unpinned",
        edits: &[("pin.rs", "!self.pages.is_empty()", "false")],
        named: Left("node 0: # pinned pages"),
    },
    Mutation {
        name: "pages_stay_mapped",
        edits: &[(
            "pin.rs",
            "bindings::dma_iova_unlink(dev, state, lead, linked, direction, 0);",
            "",
        )],
        named: Left("node 0: # bytes are mapped for the device"),
    },
    Mutation {
        name: "ring_too_long",
        edits: &[("packets.rs", "PacketQueues::SIZE_CODE", "3")],
        named: Rule("T-TOQ-001"),
    },
    Mutation {
        name: "rings_late",
        edits: &[(
            "packets.rs",
            "device.write_all(this.id, &rings.registers());",
            "device.write(this.id, CqsReg::Enable, 1);\n\
             device.write_all(this.id, &rings.registers());",
        )],
        named: Rule("T-CQ-005"),
    },
    Mutation {
        name: "no_detach",
        edits: &[("reset.rs", "interface.detach();", "")],
        named: Rule("T-CQ-006"),
    },
    Mutation {
        name: "never_woken",
        edits: &[("netdev/link.rs", "goes_on && queue.is_stopped()", "false")],
        // The queue is stopped only if the device is thousands of frames behind.
        named: Unmet,
    },
    Mutation {
        name: "length",
        edits: &[(
            "packets.rs",
            "self.push(posted, target.descriptor(frame, len, ask));",
            "self.push(posted, target.descriptor(frame, len.saturating_sub(1), ask));",
        )],
        named: Scene("traffic", "node 0 does not reach "),
    },
    Mutation {
        name: "no_interrupts",
        edits: &[("netdev/link.rs", "rx.receiver.as_ref().is_some_and(Receiver::rearm)", "false")],
        named: Scene("traffic", "node 0 does not reach "),
    },
    Mutation {
        name: "doorbell_late",
        edits: &[("netdev/tx/xmit.rs", "!later || full", "false")],
        named: Scene("traffic", "node 0: the fastest answer of "),
    },
    Mutation {
        name: "gate_left",
        edits: &[("bch.rs", "self.device.write(gate, BgsReg::Enable, 0);", "")],
        named: Left("node 0: TNI 0 gate 5 is enabled"),
    },
    Mutation {
        name: "users_queue_left",
        edits: &[("cq/queue.rs", "self.stop_for_good()", "true")],
        named: Left("node 0: TNI 0 CQ 10 is enabled"),
    },
    Mutation {
        name: "freed_twice",
        edits: &[(
            "netdev.c",
            "dev_consume_skb_any(skb);",
            "dev_consume_skb_any(skb); dev_consume_skb_any(skb);",
        )],
        named: Any(&[Warning("node 0, in load: #Object corrupt"), Crash]),
    },
    Mutation {
        name: "page_reused",
        edits: &[("netdev.c", "return page_ref_count(page) == 1;", "return true;")],
        named: Scene("traffic", "a stream of 4194304 bytes did not arrive as it was"),
    },
    Mutation {
        name: "interface_not_freed",
        edits: &[(
            "netdev.c",
            "unregister_netdev(dev);\n\tfree_netdev(dev);",
            "unregister_netdev(dev);",
        )],
        named: Left("node 0: # objects of alloc_netdev_mqs"),
    },
    Mutation {
        name: "buffer_used_twice",
        edits: &[("packets.rs", "self.free.pop()", "self.free.last().copied()")],
        named: Scene("traffic", "node 0 does not reach "),
    },
    Mutation {
        name: "no_system_mode",
        edits: &[(
            "packets.rs",
            "CqsMode(0).with_system(true).with_failures(true).0",
            "CqsMode(0).with_failures(true).0",
        )],
        named: Rule("T-CMD-008"),
    },
    Mutation {
        name: "index_wraps_late",
        edits: &[("packets.rs", "entry.flip() != self.reap.flip()", "!entry.flip()")],
        named: Scene("traffic", "node 0: 200 long packets to "),
    },
];

/// A text of a file, or the other one if the module makes this mistake.
fn either(file: &str, number: usize, (from, to): (&str, &str)) -> String {
    if file.ends_with(".rs") {
        return format!("if crate::shim::tofu_wrong({number}) {{ {to} }} else {{ {from} }}");
    }
    match from.ends_with(';') {
        true => format!("if (tofu_wrong({number})) {{ {to} }} else {{ {from} }}"),
        false => format!("(tofu_wrong({number}) ? ({to}) : ({from}))"),
    }
}

fn replace(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{}: {from}", file.display());
    fs::write(file, text.replacen(from, to, 1)).unwrap();
}

/// The source of the module with all mistakes: a folder, with the module's own one in it.
fn source(place: &Place) -> PathBuf {
    let base = place.path().join("source");
    for part in ["kernel", "abi/src", "ipotofu/src"] {
        fs::create_dir_all(base.join(part).parent().unwrap()).unwrap();
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(Path::new(SOURCE).join(part)).arg(base.join(part));
        assert!(copy.status().unwrap().success(), "{part}");
    }
    let kernel = base.join("kernel");
    for (number, Mutation { edits, .. }) in (1..).zip(MUTATIONS) {
        for (file, from, to) in *edits {
            replace(&kernel.join(file), from, &either(file, number, (from, to)));
        }
    }
    let [a, b, c] = MAGIC;
    let shim = fs::read_to_string(kernel.join("shim.c")).unwrap();
    let number = format!(
        "volatile u32 tofu_mistake[4] = {{ {a:#x}, {b:#x}, {c:#x}, 0 }};\n\
         bool tofu_wrong(u32 number)\n{{\n\treturn tofu_mistake[3] == number;\n}}\n"
    );
    fs::write(kernel.join("shim.c"), shim + &number).unwrap();
    for header in ["shim.h", "netdev.h"] {
        let include = "#include <linux/types.h>\n";
        let with = format!("{include}bool tofu_wrong(u32 number);\n");
        replace(&kernel.join(header), include, &with);
    }
    let functions = "unsafe extern \"C\" {\n";
    let with = format!("{functions}    pub(crate) safe fn tofu_wrong(number: u32) -> bool;\n");
    replace(&kernel.join("shim.rs"), functions, &with);
    base
}

/// Compiles the module, and returns the names and files of its copies: one without a mistake, and
/// one with each.
fn modules(place: &Place) -> Vec<(&'static str, String)> {
    let base = source(place);
    let (kernel, image) = (base.join("kernel"), driver::image());
    let (kernel, base) = (kernel.to_str().unwrap(), base.to_str().unwrap());
    let out = place.file("out");
    fs::create_dir(&out).unwrap();
    let compile = ["image", "module", kernel, "--base", base, "--kernel", &image, "--out", &out];
    place.run_for(&[&compile[..], &["--"], &PLAIN].concat(), 8 * PATIENCE, b"").ok();
    let module = fs::read(Path::new(&out).join("tofu.ko")).unwrap();
    let magic: Vec<u8> = MAGIC.iter().flat_map(|word| word.to_le_bytes()).collect();
    let found = module.windows(magic.len()).position(|bytes| bytes == magic).unwrap();
    let at = found + magic.len();
    let names = ["none"].into_iter().chain(MUTATIONS.iter().map(|mutation| mutation.name));
    let copy = |(number, name): (u32, &'static str)| {
        let mut copy = module.clone();
        copy[at..at + 4].copy_from_slice(&number.to_le_bytes());
        let path = format!("{out}/{name}.ko");
        fs::write(&path, copy).unwrap();
        (name, path)
    };
    (0..).zip(names).map(copy).collect()
}

#[test]
#[ignore = "it takes minutes, by the tier driver-wrong"]
fn mutations_are_named() {
    let Some(place) = driver::place() else { return };
    let modules = modules(&place);
    let mut missed_by = Vec::new();
    // Some at a time, so that what has been found is known before the end.
    for modules in modules.chunks(SOME) {
        let files = modules.iter().map(|(_, file)| file.as_str());
        let command: Vec<&str> = files.chain(["--quick"]).collect();
        let all = report(&prove(&place, &command));
        let reports = all.as_array().cloned().unwrap_or_else(|| vec![all]);
        assert_eq!(reports.len(), modules.len());
        for ((name, _), report) in modules.iter().zip(&reports) {
            let missed = match MUTATIONS.iter().find(|mutation| mutation.name == *name) {
                Some(mutation) => missed(name, &mutation.named, report),
                None if report["ok"] == true => None,
                None => Some(format!("{name}: {:?} {report:#}", broken(report))),
            };
            println!(
                "{name}: {} s, {}",
                report["seconds"],
                missed.as_deref().unwrap_or("as expected")
            );
            missed_by.extend(missed);
        }
    }
    assert_eq!(missed_by, [""; 0]);
    nothing_runs(&place);
}
