//! `tofu doctor`: what this host can do, in plain words.

use std::io::{self, Write};

use serde::Serialize;
use tofu_vmm::{HostSupport, Virtualisation};

use crate::host;
use crate::units::MemorySize;

/// How a finding bears on running machines.
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

/// One thing looked at.
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
    findings: Vec<Finding>,
}

/// Runs `tofu doctor`; the exit code is 0 if machines can run here.
pub(crate) fn run(json: bool) -> anyhow::Result<u8> {
    let (open_files, open_files_limit) = host::open_files();
    let mut report = Report {
        can_run: false,
        version: env!("CARGO_PKG_VERSION"),
        rustc: env!("TOFU_RUSTC_VERSION"),
        kernel: host::kernel(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_total: host::memory_total(),
        memory_available: host::memory_available(),
        open_files,
        open_files_limit,
        kvm: tofu_vmm::probe(),
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
        let verdict = if self.can_run {
            "Machines run on this host. Try: tofu up"
        } else {
            "Machines cannot run on this host as it is: see above."
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
            finding(Level::Good, "processor", "has hardware virtualisation; every guest runs at full speed")
        }
        Virtualisation::Pvm => finding(
            Level::Note,
            "processor",
            "offers no hardware virtualisation; KVM does it in software (PVM). User-mode code runs at \
             full speed, kernel-mode code is emulated and slow. The small guest programs shipped here \
             are made for that; Linux guests do not run this way",
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
        "{} MiB available, enough for {nodes} nodes of {}",
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
        "{} a process, can be raised to {}; each VM takes some, and tofu raises the limit by itself",
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
    fn small_hosts_are_warned() {
        assert_eq!(cores_finding(1).level, Level::Note);
        assert_eq!(memory_finding(1 << 20).level, Level::Problem);
        assert_eq!(memory_finding(100 << 20).level, Level::Note);
        assert_eq!(
            memory_finding(1 << 30).text,
            "1024 MiB available, enough for 64 nodes of 16MiB"
        );
        assert_eq!(files_finding(Some(256), Some(1024)).level, Level::Note);
        assert_eq!(files_finding(Some(1024), None).level, Level::Good);
    }
}
