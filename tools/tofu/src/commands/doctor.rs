//! `tofu doctor`: what this host can do, in plain words.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tofu_image::{Arch, Cache};
use tofu_linux_nodes::boot_files as linux;
use tofu_sandbox::Support;
use tofu_spec::units::MemorySize;
use tofu_supervisor::memory;
use tofu_vmm::{HostSupport, Virtualisation};

use crate::commands::host;

/// Check what this host can and cannot do
///
/// Checks KVM, processors, memory, limits and the programs that some commands run, and explains in
/// plain words what the findings mean.
/// Exits with 0 if machines can run here, otherwise with 1.
#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The effect of a finding on running machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// As it should be.
    Good,
    /// Works, with a consequence worth knowing.
    Note,
    /// Machines cannot run.
    Problem,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    level: Level,
    what: &'static str,
    text: String,
}

/// Everything that was found out about a host.
#[derive(Debug, Clone, Serialize)]
struct Report {
    can_run: bool,
    version: &'static str,
    rustc: &'static str,
    kernel: Option<String>,
    cores: usize,
    memory_total: Option<u64>,
    memory_available: Option<u64>,
    open_files: Option<u64>,
    open_files_limit: Option<u64>,
    kvm: HostSupport,
    linux: LinuxReport,
    sandbox: SandboxReport,
    findings: Vec<Finding>,
}

/// The resources for Linux nodes.
#[derive(Debug, Clone, Serialize)]
struct LinuxReport {
    /// Linux nodes can run, if necessary after something was fetched.
    can_run: bool,
    /// The monitor that runs them: `tofu`, our own monitor, or `qemu-tcg`.
    vmm: &'static str,
    /// The support of Linux in our own monitor here.
    own_monitor: tofu_vmm::LinuxSupport,
    /// Version of the QEMU there is.
    qemu: Option<String>,
    /// Nodes with Fugaku's processor can run, if necessary after something was fetched or built.
    arm64: bool,
    /// Their resources.
    about_arm64: String,
    /// Names of the images.
    images: Vec<String>,
    /// The folder that has them.
    cache: Option<PathBuf>,
    /// Memory can be shared between processes.
    shared_memory: bool,
}

/// The kernel's means to restrict our own processes.
#[derive(Debug, Clone, Serialize)]
struct SandboxReport {
    seccomp: bool,
    /// Version of Landlock's interface.
    landlock: Option<u32>,
    finding: Finding,
}

impl SandboxReport {
    fn of_host() -> Self {
        let support = Support::probe();
        let lacks: Vec<String> = [
            support.seccomp.as_ref().err().map(|why| format!("no system call filters: {why}")),
            support.landlock.as_ref().err().map(|why| format!("no Landlock: {why}")),
        ]
        .into_iter()
        .flatten()
        .chain(support.landlock_gaps())
        .collect();
        let (level, text) = match lacks.as_slice() {
            [] => (Level::Good, "system call filters and Landlock can be had".to_owned()),
            lacks => (Level::Note, format!("works in part: {}", lacks.join("; "))),
        };
        let finding = Finding { level, what: "sandbox", text };
        Self { seccomp: support.seccomp.is_ok(), landlock: support.landlock.ok(), finding }
    }
}

impl LinuxReport {
    fn of_host(kvm: &HostSupport) -> Self {
        let cache = Cache::from_env().ok();
        let images = cache.as_ref().and_then(|cache| cache.list().ok()).unwrap_or_default();
        let shared_memory = linux::shared_memory().is_ok();
        let own_monitor = kvm.linux();
        let (arm64, about_arm64) = linux::about_arm64(cache.as_ref());
        Self {
            arm64: arm64 && shared_memory,
            about_arm64,
            can_run: shared_memory && cache.is_some(),
            vmm: if linux::kvm_runs_linux(own_monitor) { "tofu" } else { "qemu-tcg" },
            own_monitor,
            qemu: cache.as_ref().and_then(|cache| linux::present_qemu(cache, Arch::default())),
            images: images.into_iter().map(|image| image.name).collect(),
            cache: cache.map(|cache| cache.folder().to_owned()),
            shared_memory,
        }
    }

    fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut add = |level, what, text: String| findings.push(Finding { level, what, text });
        if self.vmm == "tofu" {
            let text = "run under our own monitor with hardware virtualisation; with --net lan \
                        under QEMU";
            add(Level::Good, "Linux nodes", text.into());
        } else {
            let text = "run under QEMU, which emulates their processors (TCG): they boot in \
                        seconds, and compute slowly";
            add(Level::Note, "Linux nodes", text.into());
        }
        match &self.qemu {
            Some(version) => add(Level::Good, "QEMU", format!("{version}, with vfio-user")),
            None => add(
                Level::Note,
                "QEMU",
                "none with vfio-user yet (10.1 or later); tofu image build fetches one, and so \
                 does the first tofu up --linux"
                    .into(),
            ),
        }
        let level = if self.arm64 { Level::Good } else { Level::Note };
        add(level, "nodes for arm64", self.about_arm64.clone());
        match (&self.cache, self.images.as_slice()) {
            (None, _) => {
                let text = "no place for them: set TOFU_CACHE or HOME".into();
                add(Level::Note, "images", text);
            }
            (Some(cache), []) => {
                let text = format!("none yet in {}; tofu image build makes one", cache.display());
                add(Level::Note, "images", text);
            }
            (Some(cache), images) => {
                add(Level::Good, "images", format!("{} in {}", images.join(", "), cache.display()));
            }
        }
        if !self.shared_memory {
            let text = "cannot be had (memfd_create fails); Linux nodes and tofu serve need it";
            add(Level::Note, "shared memory", text.into());
        }
        findings
    }
}

/// Alternative programs of this host; a command runs one of them.
struct Needed {
    what: &'static str,
    /// Any of these, each with its package in Debian.
    any: &'static [(&'static str, &'static str)],
    command: &'static str,
}

const PROGRAMS: [Needed; 5] = [
    Needed { what: "ip", any: &[("ip", "iproute2")], command: "tofu up --gateway" },
    Needed {
        what: "nft or iptables",
        any: &[("nft", "nftables"), ("iptables", "iptables")],
        command: "tofu up --gateway --nat",
    },
    Needed { what: "gdb", any: &[("gdb", "gdb")], command: "tofu gdb" },
    Needed {
        what: "gdb-multiarch",
        any: &[("gdb-multiarch", "gdb-multiarch")],
        command: "tofu gdb with nodes for arm64",
    },
    Needed { what: "ssh", any: &[("ssh", "openssh-client")], command: "tofu up --hosts" },
];

/// Looks for the programs. `find` returns where a program is.
fn programs(find: impl Fn(&str) -> Option<PathBuf>) -> Vec<Finding> {
    let finding = |Needed { what, any, command }: &Needed| {
        let (level, text) = match any.iter().find_map(|(name, _)| find(name)) {
            Some(path) => (Level::Good, format!("{}, for {command}", path.display())),
            None => {
                let package = any.first().map_or("", |(_, package)| package);
                let text = format!(
                    "not installed, and {command} needs it; `apt install {package}` brings it"
                );
                (Level::Note, text)
            }
        };
        Finding { level, what, text }
    };
    PROGRAMS.iter().map(finding).collect()
}

/// Runs `tofu doctor`; the exit code is 0 if machines can run here.
pub(crate) fn run(json: bool) -> anyhow::Result<u8> {
    let (open_files, open_files_limit) = host::open_files();
    let kvm = tofu_vmm::probe();
    let mut report = Report {
        can_run: false,
        version: env!("CARGO_PKG_VERSION"),
        rustc: tofu_programs::RUSTC_VERSION,
        kernel: host::kernel(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_total: memory::total(),
        memory_available: memory::available(),
        open_files,
        open_files_limit,
        linux: LinuxReport::of_host(&kvm),
        sandbox: SandboxReport::of_host(),
        kvm,
        findings: Vec::new(),
    };
    report.examine();
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        report.print(&mut out)?;
    }
    out.flush()?;
    Ok(u8::from(!report.can_run))
}

impl Report {
    fn examine(&mut self) {
        let mut findings = kvm_findings(&self.kvm);
        findings.push(cores_finding(self.cores));
        if let Some(available) = self.memory_available {
            findings.push(memory_finding(available));
        }
        findings.push(files_finding(self.open_files, self.open_files_limit));
        self.can_run = findings.iter().all(|finding| finding.level != Level::Problem);
        findings.extend(self.linux.findings());
        findings.push(self.sandbox.finding.clone());
        findings.extend(programs(host::program));
        self.findings = findings;
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let kernel = self.kernel.as_deref().unwrap_or("unknown kernel");
        writeln!(out, "tofu {}, built with {}, on {kernel}", self.version, self.rustc)?;
        writeln!(out)?;
        for finding in &self.findings {
            let level = match finding.level {
                Level::Good => "ok",
                Level::Note => "note",
                Level::Problem => "PROBLEM",
            };
            writeln!(out, "{level:>7}  {}: {}", finding.what, finding.text)?;
        }
        writeln!(out)?;
        let verdict = match (self.can_run, self.linux.can_run) {
            (true, true) => "Machines run on this host. Try: tofu up, and tofu up --linux",
            (true, false) => "Machines run on this host, but without Linux nodes. Try: tofu up",
            (false, true) => "Only Linux nodes run on this host. Try: tofu up --linux",
            (false, false) => "Machines cannot run on this host as it is: see above.",
        };
        writeln!(out, "{verdict}")
    }
}

fn kvm_findings(kvm: &HostSupport) -> Vec<Finding> {
    let finding = |level, what, text: &str| Finding { level, what, text: text.to_owned() };
    if let Some(problem) = &kvm.problem {
        return vec![finding(Level::Problem, "KVM", problem)];
    }
    let api = kvm.api_version.map_or("unknown".into(), |version| version.to_string());
    let slots = kvm.memory_slots;
    let mut findings = vec![Finding {
        level: Level::Good,
        what: "KVM",
        text: format!("can be used; API version {api}, {slots} memory slots a VM"),
    }];
    findings.push(match kvm.virtualisation {
        Virtualisation::Hardware => {
            let text = "has hardware virtualisation, which runs every guest";
            finding(Level::Good, "processor", text)
        }
        Virtualisation::Pvm => finding(
            Level::Note,
            "processor",
            "offers no hardware virtualisation; KVM does it in software (PVM). User-mode code runs \
             at full speed, kernel-mode code is emulated and slow. The small guest programs \
             shipped here are made for that; Linux guests do not run this way",
        ),
        Virtualisation::None => finding(
            Level::Note,
            "processor",
            "KVM opens, but of a kind not known to this program; guests may or may not run",
        ),
    });
    findings.push(if kvm.readonly_memory {
        finding(
            Level::Good,
            "doorbells",
            "can be trapped, and polled with engines that fall asleep",
        )
    } else {
        finding(
            Level::Note,
            "doorbells",
            "can be trapped; this KVM has no read-only memory, so polling engines cannot sleep",
        )
    });
    findings
}

fn cores_finding(cores: usize) -> Finding {
    let (level, text) = match cores {
        1 => {
            (Level::Note, "1: guests and engines take turns; polled doorbells will be slow".into())
        }
        n => (Level::Good, format!("{n}")),
    };
    Finding { level, what: "cores", text }
}

fn memory_finding(available: u64) -> Finding {
    let nodes = available / MemorySize::DEFAULT.0;
    let text = format!(
        "{} MiB available, enough for {nodes} nodes that use all of their {}",
        available >> 20,
        MemorySize::DEFAULT
    );
    let level = match nodes {
        0 => Level::Problem,
        1..12 => Level::Note,
        _ => Level::Good,
    };
    Finding { level, what: "memory", text }
}

fn files_finding(soft: Option<u64>, hard: Option<u64>) -> Finding {
    let words = |limit: Option<u64>| limit.map_or("unlimited".into(), |limit| limit.to_string());
    let text = format!(
        "{} a process, can be raised to {}; each VM takes some, \
         and tofu raises the limit by itself",
        words(soft),
        words(hard)
    );
    let level = if hard.is_some_and(|hard| hard < 4096) { Level::Note } else { Level::Good };
    Finding { level, what: "open files", text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pvm() -> HostSupport {
        HostSupport {
            virtualisation: Virtualisation::Pvm,
            readonly_memory: true,
            problem: None,
            ..tofu_vmm::probe()
        }
    }

    fn levels(kvm: &HostSupport) -> Vec<Level> {
        kvm_findings(kvm).iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn hosts_are_told_apart() {
        use Level::{Good, Note, Problem};
        assert_eq!(levels(&pvm()), [Good, Note, Good]);
        let hardware = HostSupport { virtualisation: Virtualisation::Hardware, ..pvm() };
        assert_eq!(levels(&hardware), [Good, Good, Good]);
        assert_eq!(levels(&HostSupport { readonly_memory: false, ..hardware }), [Good, Good, Note]);
        let none = HostSupport { problem: Some("no /dev/kvm".into()), ..pvm() };
        assert_eq!(levels(&none), [Problem]);
        assert_eq!(kvm_findings(&none)[0].text, "no /dev/kvm");
    }

    #[test]
    fn missing_linux_needs_are_named() {
        let report = LinuxReport {
            can_run: false,
            vmm: "qemu-tcg",
            own_monitor: pvm().linux(),
            qemu: None,
            arm64: false,
            about_arm64: "none".into(),
            images: Vec::new(),
            cache: Some("/some/where".into()),
            shared_memory: false,
        };
        let texts: Vec<_> = report.findings().into_iter().map(|f| (f.what, f.text)).collect();
        assert_eq!(texts.len(), 5);
        assert_eq!(texts[2], ("nodes for arm64", "none".into()));
        assert!(texts[0].1.contains("TCG") && texts[1].1.contains("tofu image build"));
        assert_eq!(texts[3].1, "none yet in /some/where; tofu image build makes one");
        assert_eq!(texts[4].0, "shared memory");
        let better = LinuxReport {
            vmm: "tofu",
            qemu: Some("11.1.3".into()),
            arm64: true,
            images: vec!["default".into(), "mpi".into()],
            shared_memory: true,
            ..report
        };
        assert!(better.findings().iter().all(|finding| finding.level == Level::Good));
    }

    #[test]
    fn programs_are_found_or_named_with_package() {
        let none = programs(|_| None);
        assert!(none.iter().all(|finding| finding.level == Level::Note));
        let text = |what| &none.iter().find(|finding| finding.what == what).unwrap().text;
        let nft = "not installed, and tofu up --gateway --nat needs it; `apt install nftables` \
                   brings it";
        assert_eq!(text("nft or iptables"), nft);
        assert!(text("gdb").contains("tofu gdb needs it; `apt install gdb`"));
        // One of several is enough.
        let some = programs(|name| (name == "iptables").then(|| "/sbin/iptables".into()));
        let good: Vec<_> = some.iter().filter(|finding| finding.level == Level::Good).collect();
        assert_eq!(good.len(), 1);
        assert_eq!(good[0].text, "/sbin/iptables, for tofu up --gateway --nat");
    }

    #[test]
    fn small_hosts_are_warned() {
        assert_eq!(cores_finding(1).level, Level::Note);
        assert_eq!(memory_finding(1 << 20).level, Level::Problem);
        assert_eq!(memory_finding(100 << 20).level, Level::Note);
        assert_eq!(
            memory_finding(1 << 30).text,
            "1024 MiB available, enough for 64 nodes that use all of their 16MiB"
        );
        assert_eq!(files_finding(Some(256), Some(1024)).level, Level::Note);
        assert_eq!(files_finding(Some(1024), None).level, Level::Good);
    }
}
