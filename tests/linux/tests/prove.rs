//! `tofu prove`: the shipped driver and the one for learners break nothing, and wrong variants of
//! the latter are named by the rule that they break. Drivers that do not load, hang or take their
//! node with them end with one line, and leave nothing running.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tofu_linux_tests::prove::Named::{self, Left, Rule, Scene, Warning};
use tofu_linux_tests::prove::{PLAIN, broken, missed, nothing_runs, prove, report};
use tofu_linux_tests::{PATIENCE, Place, driver, skip};

/// Lines of the driver that variants replace.
const HEADER: &str = "#include <linux/pci.h>\n";
const WITH_DELAY: &str = "#include <linux/delay.h>\n#include <linux/pci.h>\n";
const WITH_SLAB: &str = "#include <linux/pci.h>\n#include <linux/slab.h>\n";
const OPEN: &str = "\terror = open_queue(this);\n";
const DONE: &str = "\tdma_rmb();\n\tdev_info";
const CLOSE: &str = "\tclose_queue(this);\n\tpci_clear_master";
const DRVDATA: &str = "\tpci_set_drvdata(pdev, this);\n";
const SOURCE: &str = "../../guest-lib/kernel/samples/first_put";

/// A wrong variant of the driver for learners.
struct Wrong {
    name: &'static str,
    /// Texts that are replaced, and the new ones.
    edits: &'static [(&'static str, &'static str)],
    /// The rule that it breaks, or the beginning of what else the report has.
    named: Named,
}

const WRONG: [Wrong; 39] = [
    Wrong {
        name: "no_master",
        edits: &[("\tpci_set_master(pdev);\n", "")],
        named: Rule("T-CQ-001"),
    },
    Wrong {
        name: "mrq_size",
        edits: &[("writeq(0, bar + CQS_MRQ_SIZE)", "writeq(6, bar + CQS_MRQ_SIZE)")],
        named: Rule("T-CQ-002"),
    },
    Wrong {
        name: "tcq_address",
        edits: &[("writeq(address(this, m->tcq), bar", "writeq(address(this, m->tcq) + 4, bar")],
        named: Rule("T-CQ-003"),
    },
    Wrong {
        name: "late_ring",
        edits: &[(
            "\treturn readq_poll_timeout(bar + CQS_STATUS, status, status &",
            "\twriteq(1, bar + CQS_TOQ_SIZE);\n\
             \treturn readq_poll_timeout(bar + CQS_STATUS, status, status &",
        )],
        named: Rule("T-CQ-005"),
    },
    Wrong {
        name: "early_doorbell",
        edits: &[(
            "\twriteq(1, bar + CQS_ENABLE);",
            "\twriteq(1, bar + CQ_FETCH_START);\n\twriteq(1, bar + CQS_ENABLE);",
        )],
        named: Rule("T-CQ-006"),
    },
    Wrong {
        name: "doorbell_value",
        edits: &[(
            "writeq(1, this->bar + CQ_FETCH_START)",
            "writeq(3, this->bar + CQ_FETCH_START)",
        )],
        named: Rule("T-CQ-007"),
    },
    Wrong {
        name: "short_write",
        edits: &[(
            "writeq(1, this->bar + TNI_ENABLE)",
            "writew(1, this->bar + TNI_ENABLE); writeq(1, this->bar + TNI_ENABLE)",
        )],
        named: Rule("T-REG-001"),
    },
    Wrong {
        name: "clears_status",
        edits: &[(
            "writeq(1, this->bar + TNI_ENABLE)",
            "writeq(0, this->bar + CQS_STATUS); writeq(1, this->bar + TNI_ENABLE)",
        )],
        named: Rule("T-REG-003"),
    },
    Wrong { name: "mtu", edits: &[("(240ULL << 16)", "(241ULL << 16)")], named: Rule("T-CMD-003") },
    Wrong {
        name: "wrong_node",
        edits: &[("target = x << 32", "target = (x + 9) << 32")],
        named: Rule("T-CMD-009"),
    },
    Wrong {
        name: "wrong_queue",
        edits: &[("cpu_to_le64((u64)TO << 40)", "cpu_to_le64((u64)TO << 40 | 3ULL << 58)")],
        named: Rule("T-RMT-004"),
    },
    Wrong {
        name: "not_registered",
        edits: &[("\t\tregister_page(this, FROM);\n", "")],
        named: Rule("T-AT-004"),
    },
    Wrong {
        name: "peer_not_registered",
        edits: &[("\t\tregister_page(this, TO);\n", "")],
        named: Rule("T-RMT-007"),
    },
    Wrong {
        name: "beyond_the_stag",
        edits: &[("cpu_to_le64((u64)LENGTH << 32)", "cpu_to_le64((u64)8192 << 32)")],
        named: Rule("T-AT-005"),
    },
    Wrong {
        name: "no_pages",
        edits: &[(
            "m->blocks[stag].length = cpu_to_le64(1)",
            "m->blocks[stag].length = cpu_to_le64(0)",
        )],
        named: Rule("T-AT-012"),
    },
    Wrong {
        name: "physical_address",
        edits: &[(
            "m->pages[stag][0] = cpu_to_le64(address(this, m->page[stag]) | VALID)",
            "m->pages[stag][0] = cpu_to_le64(0xffffff0000ULL | VALID)",
        )],
        named: Rule("T-AT-015"),
    },
    // The memory may be freed now, but the device still has it.
    Wrong {
        name: "no_flush",
        edits: &[(
            "\tdma_rmb();\n\tdev_info",
            "\tdma_rmb();\n\tm->steering[TO].what = 0;\n\tdev_info",
        )],
        named: Rule("T-AT-017"),
    },
    Wrong {
        name: "left_open",
        edits: &[(CLOSE, "\tpci_clear_master")],
        // Node 0 is reset before.
        named: Left("node 1: TNI 0 CQ 0 is enabled"),
    },
    Wrong {
        name: "enabled_twice",
        edits: &[("\tpci_clear_master(pdev);", "\tif (pci_enable_device(pdev))\n\t\treturn;")],
        named: Left("node 0: Bus Master Enable is set"),
    },
    Wrong {
        name: "complains",
        edits: &[("\tpci_clear_master", "\tWARN_ON(1);\n\tpci_clear_master")],
        named: Warning("node 0, in unload: "),
    },
    Wrong {
        name: "no_device",
        edits: &[("\tpci_set_master(pdev);\n", "\treturn -ENODEV;\n")],
        named: Scene("load", "node 0: the module is loaded, but no driver has taken the device"),
    },
    // The index is not taken modulo the size of the queue.
    Wrong {
        name: "wraps",
        edits: &[
            ("m->toq[0][1]", "m->toq[ENTRIES][1]"),
            ("m->toq[0][2]", "m->toq[ENTRIES][2]"),
            ("m->toq[0][3]", "m->toq[ENTRIES][3]"),
            ("m->toq[0][0]", "m->toq[ENTRIES][0]"),
        ],
        named: Scene("load", "node 0: the module is loaded, but no driver has taken the device"),
    },
    Wrong {
        name: "freed_before_its_end",
        edits: &[("by writeq. */\n", "by writeq. */\n\tm->steering[FROM].what = 0;\n")],
        named: Rule("T-AT-004"),
    },
    Wrong {
        name: "direction",
        edits: &[
            (
                "\tm->pages[stag][0] = cpu_to_le64(address(this, m->page[stag]) | VALID);",
                "\tvoid *page = (void *)__get_free_page(GFP_KERNEL);\n\n\
                 \tm->pages[stag][0] = cpu_to_le64(VALID |\n\
                 \t\tdma_map_single(this->dev, page, PAGE_SIZE, DMA_TO_DEVICE));",
            ),
            ("\tdma_addr_t address;\n", "\tdma_addr_t address;\n\tstruct device *dev;\n"),
            (DRVDATA, "\tthis->dev = &pdev->dev;\n\tpci_set_drvdata(pdev, this);\n"),
        ],
        named: Rule("T-AT-015"),
    },
    // An error later in probe, whose way out leaves the queue on.
    Wrong {
        name: "error_path",
        edits: &[
            ("\tdma_rmb();\n\tdev_info", "\treturn -EIO;\n\tdma_rmb();\n\tdev_info"),
            ("\t\tclose_queue(this);\n\t\treturn", "\t\treturn"),
        ],
        named: Left("node 0: TNI 0 CQ 0 is enabled"),
    },
    // After a reset the registers have to be written again.
    Wrong {
        name: "half_of_a_reset",
        edits: &[
            (HEADER, WITH_DELAY),
            (
                "static const struct pci_device_id",
                "static void reset_done(struct pci_dev *pdev)\n{\n\
                 \tstruct first_put *this = pci_get_drvdata(pdev);\n\n\
                 \twriteq(1, this->bar + CQS_ENABLE);\n\
                 \twriteq(1, this->bar + TNI_ENABLE);\n\
                 \tmsleep(20);\n\
                 \twriteq(1, this->bar + CQ_FETCH_START);\n}\n\n\
                 static const struct pci_error_handlers handlers = {\n\
                 \t.reset_done = reset_done,\n};\n\n\
                 static const struct pci_device_id",
            ),
            (
                "\t.remove = first_put_remove,",
                "\t.remove = first_put_remove,\n\t.err_handler = &handlers,",
            ),
        ],
        named: Rule("T-TOQ-001"),
    },
    // A timer that outlives the driver takes the node with it.
    Wrong {
        name: "used_after_remove",
        edits: &[
            ("struct first_put {\n", "struct first_put {\n\tstruct timer_list timer;\n"),
            (
                "static int first_put_probe(",
                "static void look(struct timer_list *timer)\n{\n\
                 \tstruct first_put *this = timer_container_of(this, timer, timer);\n\n\
                 \treadq(this->bar + CQS_STATUS);\n\tmod_timer(timer, jiffies + 1);\n}\n\n\
                 static int first_put_probe(",
            ),
            (
                DRVDATA,
                "\ttimer_setup(&this->timer, look, 0);\n\
                 \tmod_timer(&this->timer, jiffies + 1);\n\tpci_set_drvdata(pdev, this);\n",
            ),
        ],
        named: Scene("unload", "node "),
    },
    Wrong {
        name: "interrupt_left",
        edits: &[
            (HEADER, "#include <linux/interrupt.h>\n#include <linux/pci.h>\n"),
            (
                "static int first_put_probe(",
                "static irqreturn_t handle(int irq, void *data)\n{\n\
                 \treturn IRQ_HANDLED;\n}\n\nstatic int first_put_probe(",
            ),
            (
                DRVDATA,
                "\terror = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSIX);\n\
                 \tif (error < 0)\n\t\treturn error;\n\
                 \terror = request_irq(pci_irq_vector(pdev, 0), handle, 0, \"put\", this);\n\
                 \tif (error)\n\t\treturn error;\n\tpci_set_drvdata(pdev, this);\n",
            ),
        ],
        named: Warning("node 0, in unload: "),
    },
    Wrong {
        name: "short_read",
        edits: &[(DRVDATA, "\tpci_set_drvdata(pdev, this);\n\treadw(this->bar + CQS_STATUS);\n")],
        named: Rule("T-REG-001"),
    },
    Wrong {
        name: "late_doorbell",
        edits: &[(
            CLOSE,
            "\tclose_queue(this);\n\twriteq(1, this->bar + CQ_FETCH_START);\n\
             \tpci_clear_master",
        )],
        named: Rule("T-CQ-006"),
    },
    // Memory goes while its queue is still on.
    Wrong {
        name: "freed_before_the_queue",
        edits: &[(
            CLOSE,
            "\tdmam_free_coherent(&pdev->dev, sizeof(*this->memory), this->memory,\n\
             \t\t\t   this->address);\n\
             \twriteq(1, this->bar + TNI_ENABLE);\n\twriteq(1, this->bar + CQ_FETCH_START);\n\
             \tclose_queue(this);\n\tpci_clear_master",
        )],
        named: Rule("T-TOQ-001"),
    },
    // A ring from memory that was not zeroed.
    Wrong {
        name: "not_zeroed",
        edits: &[(OPEN, "\tmemset(this->memory->mrq, 0xa5, 8192);\n\terror = open_queue(this);\n")],
        named: Rule("T-MRQ-004"),
    },
    // The entries of the first life are those of the second one at once.
    Wrong {
        name: "opened_again",
        edits: &[(
            DONE,
            "\tclose_queue(this);\n\tm->toq[0][0] = 0;\n\terror = open_queue(this);\n\
             \tif (error)\n\t\treturn error;\n\tdma_rmb();\n\tdev_info",
        )],
        named: Rule("T-TCQ-002"),
    },
    Wrong {
        name: "notice_read_twice",
        edits: &[(
            DONE,
            "\tfor (i = 1; i <= 2; i++) {\n\
             \t\tread_poll_timeout(le64_to_cpu, done, done & VALID, 10, 1000000, false,\n\
             \t\t\t\t  READ_ONCE(m->mrq[0][0]));\n\
             \t\twriteq(i, this->bar + 0x48);\n\t}\n\tdma_rmb();\n\tdev_info",
        )],
        named: Rule("T-MRQ-003"),
    },
    Wrong {
        name: "does_not_wait",
        edits: &[(
            "\tif (readq_poll_timeout(this->bar + CQS_STATUS, status, !(status &",
            "\tif (0 && readq_poll_timeout(this->bar + CQS_STATUS, status, !(status &",
        )],
        named: Rule("T-CQ-008"),
    },
    Wrong {
        name: "not_unmapped",
        edits: &[(
            DRVDATA,
            "\tdma_map_single(&pdev->dev, this, 64, DMA_TO_DEVICE);\n\
             \tpci_set_drvdata(pdev, this);\n",
        )],
        named: Left("node 0: 4096 bytes are mapped for the device"),
    },
    Wrong {
        name: "not_freed",
        edits: &[
            (
                DRVDATA,
                "\tvoid *lost = kmalloc(100, GFP_KERNEL);\n\n\tOPTIMIZER_HIDE_VAR(lost);\n\
             \tpci_set_drvdata(pdev, this);\n",
            ),
            (HEADER, WITH_SLAB),
        ],
        named: Left("node 0: memory of the heap"),
    },
    Wrong {
        name: "beyond_its_memory",
        edits: &[
            (HEADER, WITH_SLAB),
            (
                CLOSE,
                "\tchar *name = kmalloc(60, GFP_KERNEL);\n\n\tOPTIMIZER_HIDE_VAR(name);\n\
                 \tif (name)\n\t\tname[66] = 1;\n\tkfree(name);\n\tclose_queue(this);\n\
                 \tpci_clear_master",
            ),
        ],
        named: Warning("node 0, in unload: "),
    },
    Wrong {
        name: "file_left",
        edits: &[
            (HEADER, "#include <linux/pci.h>\n#include <linux/proc_fs.h>\n"),
            (DRVDATA, "\tproc_create(\"put\", 0, NULL, NULL);\n\tpci_set_drvdata(pdev, this);\n"),
        ],
        named: Left("node 0: /proc/put"),
    },
];

/// A call stack that the report about a wrong driver has: the driver, the rule, the access, and
/// the function that makes it. Others of the source's functions are inlined.
const STACKS: [(&str, &str, &str, &str); 6] = [
    ("doorbell_value", "T-CQ-007", "write to TNI 0 CQ 0 TOQ_FETCH_START", "first_put_probe"),
    ("mrq_size", "T-CQ-002", "write to TNI 0 CQ 0 ENABLE", "first_put_probe"),
    ("short_read", "T-REG-001", "read of TNI 0 CQ 0 STATUS", "first_put_probe"),
    // Found by what the doorbell is about.
    ("mtu", "T-CMD-003", "write to TNI 0 CQ 0 TOQ_FETCH_START", "first_put_probe"),
    ("not_registered", "T-AT-004", "write to TNI 0 CQ 0 TOQ_FETCH_START", "first_put_probe"),
    ("late_doorbell", "T-CQ-006", "write to TNI 0 CQ 0 TOQ_FETCH_START", "first_put_remove"),
];

/// The outcome of a scene, and its line.
fn scene<'a>(report: &'a Value, name: &str) -> (&'a str, &'a str) {
    let mut scenes = report["scenes"].as_array().unwrap().iter();
    let scene = scenes.find(|scene| scene["name"] == name).unwrap();
    (scene["outcome"].as_str().unwrap(), scene["says"].as_str().unwrap())
}

/// The call stacks of a broken rule.
fn stacks<'a>(report: &'a Value, id: &str) -> &'a [Value] {
    let mut rules = report["rules"].as_array().unwrap().iter();
    rules.find(|rule| rule["id"] == id).unwrap()["stacks"].as_array().unwrap()
}

/// Returns true if one of the stacks is of this access, and begins in this function of the module.
/// The kernel's functions that have called it follow.
fn has_stack(stacks: &[Value], driver: &str, access: &str, function: &str) -> bool {
    let begins = |stack: &Value| {
        let functions = stack["functions"].as_array().unwrap();
        let first = functions.first().and_then(Value::as_str).unwrap_or_default();
        let is_called = functions.iter().skip(1).any(|name| {
            let name = name.as_str().unwrap();
            name.starts_with("pci_device_") && !name.contains('[')
        });
        let is_function = first.starts_with(&format!("{function}+0x"));
        stack["access"] == access
            && is_called
            && is_function
            && first.ends_with(&format!(" [{driver}]"))
    };
    stacks.iter().any(begins)
}

/// A driver from a folder has debug information, so its calls have lines, also those of functions
/// that were compiled into others; SARIF has the line in which the rule was broken.
#[test]
fn calls_have_the_lines_of_the_source() {
    let Some(place) = driver::place() else { return };
    let edit = ("writeq(1, this->bar + CQ_FETCH_START)", "writeq(3, this->bar + CQ_FETCH_START)");
    let folder = variant(&place, "lines", &[edit]);
    let source = fs::read_to_string(folder.join("first_put.c")).unwrap();
    let line = 1 + source.lines().position(|line| line.contains(edit.1)).unwrap();
    let sarif = place.file("lines.sarif");
    let said = prove(&place, &[folder.to_str().unwrap(), "--quick", "--sarif", &sarif]);
    let report = report(&said);
    if !report["monitor"].as_str().unwrap().contains("emulated") {
        return skip("only emulated processors can be watched");
    }
    let stacks = stacks(&report, "T-CQ-007");
    let says = format!("put (first_put.c:{line}) [first_put]");
    assert!(
        stacks.iter().any(|stack| stack["functions"].as_array().unwrap().contains(&json!(says))),
        "{stacks:#?}"
    );
    let sarif: Value = serde_json::from_slice(&fs::read(sarif).unwrap()).unwrap();
    let found = &sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
    assert_eq!(found["artifactLocation"]["uri"], "first_put.c", "{sarif:#}");
    assert_eq!(found["region"]["startLine"], line, "{sarif:#}");
    nothing_runs(&place);
}

/// The source of a variant of the driver.
fn source(name: &str, edits: &[(&str, &str)]) -> String {
    let mut source = fs::read_to_string(Path::new(SOURCE).join("first_put.c")).unwrap();
    for (from, to) in edits {
        assert!(source.contains(from), "{name}: {from}");
        source = source.replacen(from, to, 1);
    }
    source
}

/// Writes a variant of the driver, and returns its folder.
fn variant(place: &Place, name: &str, edits: &[(&str, &str)]) -> PathBuf {
    let folder = place.path().join(name);
    fs::create_dir(&folder).unwrap();
    fs::copy(Path::new(SOURCE).join("Kbuild"), folder.join("Kbuild")).unwrap();
    fs::write(folder.join("first_put.c"), source(name, edits)).unwrap();
    folder
}

/// Compiles all wrong variants at once, and returns their modules in order.
fn wrong_modules(place: &Place) -> Vec<String> {
    let folder = place.path().join("wrong");
    fs::create_dir(&folder).unwrap();
    let mut kbuild = String::from("obj-m :=");
    for Wrong { name, edits, .. } in &WRONG {
        fs::write(folder.join(name).with_extension("c"), source(name, edits)).unwrap();
        kbuild += &format!(" {name}.o");
    }
    fs::write(folder.join("Kbuild"), kbuild + "\n").unwrap();
    let (folder, image) = (folder.to_str().unwrap(), driver::image());
    let compile = ["image", "module", folder, "--kernel", &image, "--out", folder, "--"];
    place.run_for(&[&compile[..], &PLAIN].concat(), 2 * PATIENCE, b"").ok();
    WRONG.iter().map(|Wrong { name, .. }| format!("{folder}/{name}.ko")).collect()
}

#[test]
fn shipped_driver_breaks_nothing() {
    let Some(place) = driver::place() else { return };
    let (junit, sarif) = (place.file("report.xml"), place.file("report.sarif"));
    let said = prove(&place, &["--reloads", "3", "--junit", &junit, "--sarif", &sarif]);
    let report = report(&said);
    assert_eq!((said.code, &report["ok"]), (Some(0), &Value::Bool(true)), "{report:#}");
    let (outcome, says) = scene(&report, "PCIe errors");
    assert!(outcome == "passed" && says.starts_with("recovered from"), "{report:#}");
    let kept = report["rules"].as_array().unwrap().iter().filter(|rule| rule["kept"] != 0);
    // Nine tenths of all.
    let all = report["rules"].as_array().unwrap().len();
    assert!(kept.count() * 10 >= all * 9, "{report:#}");
    assert!(fs::read_to_string(junit).unwrap().contains("failures=\"0\""));
    let sarif: Value = serde_json::from_slice(&fs::read(sarif).unwrap()).unwrap();
    assert_eq!(sarif["runs"][0]["results"], Value::Array(Vec::new()));
    let faults = ["--fault", "msix-lost=30%,seed=7", "--fault", "late=20ms", "--fault", "stuck"];
    let said = prove(&place, &[&["--quick"], &faults[..]].concat());
    assert_eq!(said.code, Some(0), "{said:?}");
    let bad = prove(&place, &["--fault", "msix-lost=2"]);
    assert!(bad.code == Some(2) && bad.err.contains("msix-lost, msix-doubled"), "{bad:?}");
    nothing_runs(&place);
}

#[test]
fn wrong_drivers_are_named_by_their_rules() {
    let Some(place) = driver::place() else { return };
    let right = prove(&place, &[SOURCE, "--reloads", "2"]);
    assert_eq!(right.code, Some(0), "{right:?}");
    let report_of_right = report(&right);
    let (outcome, says) = scene(&report_of_right, "PCIe errors");
    assert_eq!((outcome, says), ("passed", "no recovery: the driver has no error_detected"));
    let rules = &report_of_right["rules"];
    assert!(rules.as_array().unwrap().iter().all(|rule| rule["stacks"] == json!([])), "{rules:#}");
    let modules = wrong_modules(&place);
    let command: Vec<&str> = modules.iter().map(String::as_str).chain(["--quick"]).collect();
    let said = prove(&place, &command);
    let reports = report(&said);
    let reports = reports.as_array().unwrap();
    assert_eq!((said.code, reports.len()), (Some(1), WRONG.len()));
    let missed = WRONG
        .iter()
        .zip(reports)
        .filter_map(|(wrong, report)| missed(wrong.name, &wrong.named, report));
    assert_eq!(missed.collect::<Vec<_>>(), [""; 0]);
    // Only emulated processors can be watched.
    if reports[0]["monitor"].as_str().unwrap().contains("emulated") {
        for (name, id, access, function) in STACKS {
            let place = WRONG.iter().position(|wrong| wrong.name == name).unwrap();
            let stacks = stacks(&reports[place], id);
            assert!(has_stack(stacks, name, access, function), "{name}: {stacks:#?}");
        }
    }
    nothing_runs(&place);
}

/// A driver that gives its device up at the first error has not recovered.
#[test]
fn driver_that_gives_up_after_a_pcie_error_is_not_proved() {
    let Some(place) = driver::place() else { return };
    let handlers = "static pci_ers_result_t error_detected(struct pci_dev *pdev,\n\
                    \t\t\t\t\tpci_channel_state_t state)\n{\n\
                    \treturn PCI_ERS_RESULT_DISCONNECT;\n}\n\n\
                    static const struct pci_error_handlers handlers = {\n\
                    \t.error_detected = error_detected,\n};\n\n\
                    static const struct pci_device_id";
    let registered = "\t.remove = first_put_remove,\n\t.err_handler = &handlers,";
    let edits = [
        ("static const struct pci_device_id", handlers),
        ("\t.remove = first_put_remove,", registered),
    ];
    let folder = variant(&place, "gives_up", &edits);
    let said = prove(&place, &[folder.to_str().unwrap(), "--reloads", "1"]);
    let report = report(&said);
    let (outcome, says) = scene(&report, "PCIe errors");
    assert_eq!((said.code, outcome), (Some(1), "failed"), "{report:#}");
    assert!(says.contains("AER: device recovery failed"), "{report:#}");
    nothing_runs(&place);
}

#[test]
fn drivers_that_end_badly_end_in_time() {
    let Some(place) = driver::place() else { return };
    for (name, to, says) in [
        ("hangs", "\tfor (;;)\n\t\tmsleep(1000);\n", "has not ended after 10 s"),
        ("panics", "\tpanic(\"lost\");\n", "node "),
        ("crashes", "\t*(volatile int *)8 = 1;\n", ""),
    ] {
        let from = "\tpci_set_master(pdev);\n";
        let folder = variant(&place, name, &[(from, to)]);
        let header = "#include <linux/pci.h>\n";
        let file = folder.join("first_put.c");
        let source = fs::read_to_string(&file).unwrap();
        let with = format!("{header}#include <linux/delay.h>\n");
        fs::write(&file, source.replacen(header, &with, 1)).unwrap();
        let said = prove(&place, &[folder.to_str().unwrap(), "--quick", "--patience", "10s"]);
        let report = report(&said);
        assert_eq!(said.code, Some(1), "{name}: {report:#}");
        let load = &report["scenes"][0];
        assert_eq!(load["outcome"], "failed", "{name}: {report:#}");
        assert!(load["says"].as_str().unwrap().contains(says), "{name}: {load}");
        assert_eq!(report["scenes"][1]["outcome"], "not_run", "{name}: {report:#}");
        assert!(report["seconds"].as_f64().unwrap() < Duration::from_secs(90).as_secs_f64());
        nothing_runs(&place);
    }
}

#[test]
fn what_is_no_driver_is_refused_at_once() {
    let Some(place) = driver::place() else { return };
    let text = place.file("text.ko");
    fs::write(&text, "not a module").unwrap();
    let said = prove(&place, &[&text]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("neither a module (.ko), nor a program"), "{said:?}");
    let folder = variant(&place, "typo", &[("writeq(0, bar", "wrietq(0, bar")]);
    let said = prove(&place, &[folder.to_str().unwrap()]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("does not compile") && said.err.contains("wrietq"), "{said:?}");
    // A module of another kernel.
    let foreign = place.file("foreign.ko");
    fs::copy("/bin/true", &foreign).unwrap();
    let said = prove(&place, &[&foreign, "--quick"]);
    let report = report(&said);
    let says = report["scenes"][0]["says"].as_str().unwrap();
    assert!(says.starts_with("node 0 does not load it: "), "{report:#}");
    nothing_runs(&place);
}

/// A program of small guests, as Linux runs it, drives the device through VFIO.
#[test]
fn vfio_program_is_proved() {
    let Some(place) = driver::place() else { return };
    let folder = place.file("programs");
    place.run_for(&["image", "programs", &folder], PATIENCE, b"").ok();
    let program = format!("{folder}/puts");
    let said = prove(&place, &[&program, "--reloads", "2", "--", "count=50", "max=8"]);
    let report = report(&said);
    assert_eq!(said.code, Some(0), "{report:#}");
    assert_eq!(broken(&report), [""; 0], "{report:#}");
    nothing_runs(&place);
}
