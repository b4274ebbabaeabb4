//! Network address translation for a machine's nodes, done by the host's kernel.
//!
//! The rules are in a table of the machine's own, so that they can be removed without touching
//! others. The janitor removes the table, because this process gives up the right to do so and may
//! be killed. Forwarding between the host's interfaces stays on as long as there are such machines;
//! the last one to end switches it off again.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use ipnet::Ipv4Net;

use super::host::run;

const IP_FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
/// Prefix of the names of our tables and chains.
const OURS: &str = "tofu-";
/// Longest name of a chain of iptables, in bytes.
const CHAIN_MAX: usize = 28;

/// Returns the name of the table of this machine.
pub(crate) fn table(machine: &str) -> String {
    format!("{OURS}{machine}").chars().take(CHAIN_MAX).collect()
}

/// The host's program for changing rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Nft,
    Iptables,
}

impl Tool {
    const ALL: [Self; 2] = [Self::Nft, Self::Iptables];

    fn program(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Iptables => "iptables",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Nft => "nftables",
            Self::Iptables => "iptables",
        }
    }

    fn is_there(self) -> bool {
        let mut command = Command::new(self.program());
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    fn run(self, args: &[&str]) -> anyhow::Result<()> {
        run(self.program(), args, self.package())
    }

    /// Returns whether any of our rules exist.
    fn has_tables(self) -> bool {
        let args: &[&str] = match self {
            Self::Nft => &["list", "tables", "ip"],
            Self::Iptables => &["-w", "-t", "nat", "-S"],
        };
        let output = Command::new(self.program()).args(args).stderr(Stdio::null()).output();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.split_whitespace().any(|word| word.starts_with(OURS))
    }
}

/// Lets the nodes behind `interface`, whose addresses are `network`, reach everything that this
/// host reaches. `base` is the folder of all run directories.
///
/// # Errors
///
/// If the host has no program for it, or the program refuses.
pub(crate) fn apply(
    table: &str,
    interface: &str,
    network: Ipv4Net,
    base: &Path,
) -> anyhow::Result<()> {
    let Some(tool) = Tool::ALL.into_iter().find(|tool| tool.is_there()) else {
        bail!("--nat needs nft (package nftables) or iptables, and this host has neither");
    };
    match tool {
        Tool::Nft => nft(&ruleset(table, interface, network)),
        Tool::Iptables => iptables(table, interface, network),
    }
    .context("--nat")?;
    forward(base).with_context(|| format!("--nat: cannot write {IP_FORWARD}"))
}

/// Removes the rules of [`apply`] that exist.
pub(crate) fn undo(table: &str, base: &Path) {
    for tool in Tool::ALL.into_iter().filter(|tool| tool.is_there()) {
        // Removing rules that do not exist fails, which is fine.
        match tool {
            Tool::Nft => drop(tool.run(&["delete", "table", "ip", table])),
            Tool::Iptables => {
                for (of, from) in [("nat", "POSTROUTING"), ("filter", "FORWARD")] {
                    drop(tool.run(&["-w", "-t", of, "-D", from, "-j", table]));
                    drop(tool.run(&["-w", "-t", of, "-F", table]));
                    drop(tool.run(&["-w", "-t", of, "-X", table]));
                }
            }
        }
    }
    let others = Tool::ALL.into_iter().any(|tool| tool.is_there() && tool.has_tables());
    if let Some(note) = note(base)
        && !others
        && note.exists()
    {
        // Another process may have switched it off already.
        let _ = fs::write(IP_FORWARD, "0");
        let _ = fs::remove_file(note);
    }
}

/// Returns the rules in nft's syntax. Hosts outside can reach nodes only over connections that the
/// nodes have opened.
fn ruleset(table: &str, interface: &str, network: Ipv4Net) -> String {
    format!(
        "add table ip {table}
delete table ip {table}
table ip {table} {{
    chain postrouting {{
        type nat hook postrouting priority 100;
        ip saddr {network} oifname != \"{interface}\" masquerade
    }}
    chain forward {{
        type filter hook forward priority 0;
        iifname \"{interface}\" accept
        oifname \"{interface}\" ct state established,related accept
        oifname \"{interface}\" drop
    }}
}}
"
    )
}

fn nft(rules: &str) -> anyhow::Result<()> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot run nft")?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(rules.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("nft: {}", said.lines().next().unwrap_or("it did not say why").trim());
    }
    Ok(())
}

fn iptables(table: &str, interface: &str, network: Ipv4Net) -> anyhow::Result<()> {
    let network = network.to_string();
    let state = ["-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED"];
    let rules: [(&str, Vec<&str>); 8] = [
        ("nat", vec!["-N", table]),
        ("nat", vec!["-A", table, "-s", &network, "!", "-o", interface, "-j", "MASQUERADE"]),
        ("nat", vec!["-A", "POSTROUTING", "-j", table]),
        ("filter", vec!["-N", table]),
        ("filter", vec!["-A", table, "-i", interface, "-j", "ACCEPT"]),
        ("filter", [&["-A", table, "-o", interface][..], &state, &["-j", "ACCEPT"]].concat()),
        ("filter", vec!["-A", table, "-o", interface, "-j", "DROP"]),
        ("filter", vec!["-I", "FORWARD", "-j", table]),
    ];
    for (of, rule) in rules {
        Tool::Iptables.run(&[&["-w", "-t", of][..], &rule].concat())?;
    }
    Ok(())
}

/// Returns the path of the file that records that forwarding was off in this network namespace
/// before the first machine.
fn note(base: &Path) -> Option<PathBuf> {
    let namespace = fs::read_link("/proc/self/ns/net").ok()?;
    let number: String =
        namespace.to_str()?.chars().filter(|digit| digit.is_ascii_digit()).collect();
    Some(base.join(format!(".ip-forward-was-off-{number}")))
}

fn forward(base: &Path) -> std::io::Result<()> {
    if fs::read_to_string(IP_FORWARD)?.trim() != "0" {
        return Ok(());
    }
    if let Some(note) = note(base) {
        fs::write(note, "")?;
    }
    fs::write(IP_FORWARD, "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_named_after_the_machine() {
        assert_eq!(table("tofu-2"), "tofu-tofu-2");
        assert_eq!(table(&"x".repeat(32)).len(), CHAIN_MAX);
        let rules = ruleset("tofu-a", "a", "10.0.0.0/26".parse().unwrap());
        assert!(rules.contains("ip saddr 10.0.0.0/26 oifname != \"a\" masquerade"), "{rules}");
        assert_eq!(rules.matches('{').count(), rules.matches('}').count());
    }
}
