//! The command lines of guests, which describe their machine.

use std::net::Ipv4Addr;

use tofu_abi::Coords;
use tofu_fabric::{Axis, Shape};
use tofu_gateway::addr;

use crate::gateway;
use tofu_spec::plan::{Plan, ServerPlan, VmPlan};
use tofu_spec::units::{IpNumber, Mtu};

/// Returns the command line of a guest: the machine, and the user's additions.
pub(crate) fn guest(plan: &Plan, vm: &VmPlan) -> String {
    format!("{} {}", machine(plan, ""), vm.args).trim_end().to_owned()
}

/// Describes the machine in command-line words that begin with `prefix`.
pub fn machine(plan: &Plan, prefix: &str) -> String {
    let shape = &plan.network.shape;
    let shape = network(shape, plan.compute_vms(), prefix);
    let ip = ip_words(plan, prefix);
    format!("{shape} {ip}").trim_end().to_owned()
}

/// Describes the shape of a machine with `nodes` guests in command-line words that begin with
/// `prefix`.
fn network(shape: &Shape, nodes: usize, prefix: &str) -> String {
    let axes = [(Axis::X, 'x'), (Axis::Y, 'y'), (Axis::Z, 'z')];
    let torus: String =
        axes.iter().filter(|(axis, _)| shape.wraps(*axis)).map(|(_, c)| c).collect();
    let io = if shape.has_io_nodes() { format!(" {prefix}io=1") } else { String::new() };
    format!("{prefix}shape={shape} {prefix}torus={torus}{io} {prefix}nodes={nodes}")
}

/// Describes the machine to the guests of served devices.
pub fn served(plan: &Plan) -> String {
    let prefix = "tofu.";
    let shape = network(&plan.network.shape, plan.nodes.len(), prefix);
    format!("{shape} {}", ip_words(plan, prefix)).trim_end().to_owned()
}

/// The command line of the firmware.
pub fn firmware(plan: &Plan, server: &ServerPlan) -> String {
    let (words, at, patience) = (machine(plan, ""), server.at.0, server.patience_ms);
    format!("{words} server={at} patience_ms={patience}")
}

/// Describes a node's network in command-line words that begin with `prefix` and end with a space.
/// Settings with their default values are left out.
fn ip_words(plan: &Plan, prefix: &str) -> String {
    let ip = &plan.ip;
    let mut words = String::new();
    let mut add = |name: &str, value: String| words.push_str(&format!("{prefix}{name}={value} "));
    if ip.number != IpNumber::default() {
        add("machine", ip.number.0.to_string());
    }
    if ip.mtu != Mtu::default() {
        add("mtu", ip.mtu.0.to_string());
    }
    if let Some(gateway) = plan.any_gateway() {
        // The number of a node that runs no program.
        add("without", gateway.0.to_string());
        if ip.nat {
            add("gateway", address(plan, plan.coords(gateway)).to_string());
            if let Some(resolver) = gateway::resolver() {
                add("dns", resolver.to_string());
            }
        }
    }
    words
}

/// The IPv4 address of a node.
fn address(plan: &Plan, at: Coords) -> Ipv4Addr {
    addr::ipv4(plan.ip.number.0, at).into()
}
