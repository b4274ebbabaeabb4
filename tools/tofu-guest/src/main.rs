//! Manages Tofu devices inside a Linux guest: lists, shows, binds and tests them. Devices of TNW
//! are supported, too, except for the tests.
//!
//! Every error is one line on stderr and exit code 2; a self-test that finds a fault ends with
//! exit code 1.
#![deny(unsafe_code)]

mod exercise;
mod look;
mod nwp;
mod output;
mod selftest;
mod subnet;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, Parser, Subcommand};
use tofu_abi::{CqId, Subnet, TniId};
use tofu_vfio::Bdf;
use tofu_vfio::broker::{Reservation, socket_path};
use tofu_vfio::pci::Bus;

use crate::output::Output;

/// Inspect, bind and test Tofu devices from inside a Linux guest
///
/// A Tofu node is a PCI device (10cf:1ccd in a machine like Fugaku). Programs use it through VFIO:
/// the driver vfio-pci gives it to one process at a time, and resets it when that process ends.
/// Programs bind it themselves if it has no driver. So, in a new guest:
///
///   tofu-guest ls          the devices
///   tofu-guest selftest    a test of queues, loop-back, interrupts and DMA
///   tofu-guest exercise    a test of the kernel driver, which keeps the device
///   tofu-guest show        coordinates, network interfaces, queues
///   tofu-guest counters    counters of the links
///
/// Commands take the PCI address of a device; without one they use the first device. ls, show, regs
/// and counters read the registers without disturbing a program that uses the device, if the kernel
/// was booted with iomem=relaxed; selftest needs exclusive use of the device.
///
/// All commands except selftest and exercise also work with devices of TNW (10cf:1cce);
/// `tnw-allpairs` on all nodes tests these.
#[derive(Parser)]
#[command(name = "tofu-guest", version, verbatim_doc_comment)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the Tofu devices: address, driver, IOMMU group, coordinates
    Ls {
        #[command(flatten)]
        output: Output,
    },
    /// Show a device: coordinates, generation, network interfaces and their queues
    Show {
        #[command(flatten)]
        device: Device,
        #[command(flatten)]
        output: Output,
    },
    /// Print registers: the node's, or those of a network interface or a control queue
    #[command(after_help = "Examples:\n  tofu-guest regs                  the node\n  \
                            tofu-guest regs --tni 0          network interface 0\n  \
                            tofu-guest regs --tni 0 --cq 3   its control queue 3")]
    Regs {
        #[command(flatten)]
        device: Device,
        /// Network interface, 0 to 5
        #[arg(long, value_parser = clap::value_parser!(u8).range(0..6))]
        tni: Option<u8>,
        /// Control queue of the interface, 0 to 11
        #[arg(long, requires = "tni", value_parser = clap::value_parser!(u8).range(0..12))]
        cq: Option<u8>,
        #[command(flatten)]
        output: Output,
    },
    /// Print the counters of links, network interfaces and control queues that are not 0
    Counters {
        #[command(flatten)]
        device: Device,
        /// Also print counters that are 0
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Bind a device to vfio-pci, whichever driver it has now
    Bind {
        #[command(flatten)]
        device: Device,
        #[command(flatten)]
        output: Output,
    },
    /// Unbind a device from its driver; waits for a process that uses it
    Unbind {
        #[command(flatten)]
        device: Device,
        #[command(flatten)]
        output: Output,
    },
    /// Reset a device (function level reset), even if a process uses it
    Reset {
        #[command(flatten)]
        device: Device,
        #[command(flatten)]
        output: Output,
    },
    /// Test a device by itself: queues, Put, Get, atomics, interrupts, DMA, reset
    Selftest {
        #[command(flatten)]
        device: Device,
        #[command(flatten)]
        output: Output,
    },
    /// Use the device through the kernel driver, which keeps it: Put, Get, an atomic addition, a
    /// direct descriptor, and a barrier with a sum
    Exercise {
        #[command(flatten)]
        output: Output,
    },
    /// Restrict a user to a subnet: queues and gates that the user's programs open from now on
    /// reach no other nodes
    ///
    /// The kernel driver and tofud enforce it. `tofu run` uses this for the users that its jobs run
    /// as.
    #[command(after_help = "Examples:\n  \
                            tofu-guest subnet 1000 8,6,4,1,0,1,1,0,1   X 6, 7, 0, 1 of 8\n  \
                            tofu-guest subnet 1000                     no limit any more")]
    Subnet {
        /// The user's ID; root is never restricted
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        user: u32,
        /// For each of X, Y and Z: size of the machine, first coordinate, and length
        subnet: Option<Subnet>,
    },
}

#[derive(Args)]
struct Device {
    /// PCI address, such as 0000:00:02.0 [default: the first device of Tofu, or else of TNW]
    #[arg(value_name = "DEVICE")]
    bdf: Option<Bdf>,
}

/// A fault was found, or the command cannot be done.
const EXIT_FAULT: u8 = 1;
const EXIT_BAD_INPUT: u8 = 2;

/// Pause before another request for a device that processes share.
const AGAIN: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tofu-guest: {error:#}");
            ExitCode::from(EXIT_BAD_INPUT)
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    let bus = Bus::default();
    match command {
        Command::Ls { output } => look::list(&bus, &output)?,
        Command::Show { device, output } => match bus.find_any(device.bdf)? {
            found if found.is_tnw() => nwp::show(&found, &output)?,
            found => look::show(&found, &output)?,
        },
        Command::Regs { device, tni, cq, output } => match bus.find_any(device.bdf)? {
            found if found.is_tnw() => match tni {
                Some(_) => bail!("{}: a device of TNW has no network interfaces", found.bdf),
                None => nwp::registers(&found, &output)?,
            },
            found => {
                let (tni, cq) = (tni.and_then(TniId::new), cq.and_then(CqId::new));
                look::registers(&found, tni, cq, &output)?;
            }
        },
        Command::Counters { device, all, output } => match bus.find_any(device.bdf)? {
            found if found.is_tnw() => nwp::counters(&found, all, &output)?,
            found => look::counters(&found, all, &output)?,
        },
        Command::Bind { device, output } => {
            let bdf = bus.find_any(device.bdf)?.bdf;
            bus.bind(bdf)?;
            done(&output, bdf, "bound to vfio-pci")?;
        }
        Command::Unbind { device, output } => {
            let bdf = bus.find_any(device.bdf)?.bdf;
            keep_network_away(bdf);
            bus.unbind(bdf)?;
            done(&output, bdf, "without a driver")?;
        }
        Command::Reset { device, output } => {
            let bdf = bus.find_any(device.bdf)?.bdf;
            bus.reset(bdf)?;
            done(&output, bdf, "reset")?;
        }
        Command::Exercise { output } => exercise::run(&output)?,
        Command::Subnet { user, subnet } => subnet::limit(user, subnet)?,
        Command::Selftest { device, output } => {
            let found = bus.find_any(device.bdf)?;
            if found.is_tnw() {
                bail!(
                    "{}: there is no self-test of TNW; tnw-allpairs on all nodes is one",
                    found.bdf
                );
            }
            let passed = selftest::run(found.bdf, &output)?;
            return Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAULT) });
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the node's network release a device, as soon as no other process shares it, until this one
/// ends.
fn keep_network_away(bdf: Bdf) {
    thread::spawn(move || {
        let _alone = loop {
            match Reservation::of(bdf) {
                Some(alone) => break alone,
                None if socket_path(bdf).exists() => thread::sleep(AGAIN),
                None => return,
            }
        };
        loop {
            thread::park();
        }
    });
}

fn done(output: &Output, bdf: Bdf, what: &str) -> anyhow::Result<()> {
    let value = serde_json::json!({ "device": bdf.to_string(), "done": what });
    output.print(&value, |out| writeln!(out, "{bdf}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
        for bad in [
            "regs --cq 1",
            "regs --tni 6",
            "regs --tni 0 --cq 12",
            "show 00:99.0",
            "",
            "subnet 0",
            "subnet 7 8",
        ] {
            let words = ["tofu-guest"].into_iter().chain(bad.split_whitespace());
            assert!(Cli::try_parse_from(words).is_err(), "{bad}");
        }
        let good = ["tofu-guest", "regs", "--tni", "5", "--cq", "11", "00:02.0", "--json"];
        assert!(Cli::try_parse_from(good).is_ok());
    }
}
