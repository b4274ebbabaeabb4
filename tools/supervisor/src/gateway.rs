//! The gateway of a machine: a node that this process drives, through which the host reaches the
//! others.
//!
//! A [`GatewaySetup`] is made before this process gives up its rights on the host, and holds
//! everything that needs those rights. [`GatewaySetup::start`] puts the I/O node into a machine.
//!
//! # How a gateway is made
//!
//! `tofu up --gateway` adds a node without a guest to the machine. `gateway::Setup::new`
//! (`tools/supervisor/src/gateway`) makes everything that needs rights on the host, a TAP and rules
//! for address translation, before the process gives these rights up. `Setup::start` starts the one
//! thread that drives the node (`tofu_gateway::IoNode`). Arriving frames are offered to its tenants
//! (`Tenant`) in turn: the TCP/IP stack, then the TAP. `tofu forward` listens in its own process
//! and asks at the control socket for a stream to a node's port for each connection.

mod host;
pub(crate) mod nat;

use std::sync::{Arc, Mutex};

use anyhow::Context;
use tofu_abi::Coords;
use tofu_control::rundir::RunDir;
use tofu_gateway::{
    Config, Connector, IoNode, LinkStats, Prepared, Stack, Tap, Tenant, machine_network,
};
use tofu_machine::Machine;
use tofu_sandbox::Role;
use tofu_sync::lock;

use crate::confine::Confinement;
pub(crate) use host::resolver;
use tofu_spec::plan::Plan;
use tofu_spec::units::TapWhen;

/// The part of a gateway that is ready before the machine exists.
pub struct GatewaySetup {
    at: Coords,
    config: Config,
    /// The TAP interface, taken when the I/O node starts.
    tap: Mutex<Option<Tap>>,
    /// Name of the host's interface, if there is one.
    interface: Option<String>,
    /// A node with a guest, for hints.
    example: u32,
}

impl GatewaySetup {
    /// Makes everything that the plan's gateway needs on the host, for the machine in `dir`.
    /// Returns `None` if the plan has no gateway.
    ///
    /// # Errors
    ///
    /// One line on what the host lacks, or what conflicts with the machine's addresses.
    pub fn new(plan: &Plan, dir: &RunDir) -> anyhow::Result<Option<Self>> {
        let Some(at) = plan.gateway().map(|id| plan.coords(id)) else { return Ok(None) };
        let config = config(plan);
        let wanted = match plan.ip.tap {
            TapWhen::Off => false,
            TapWhen::On => true,
            TapWhen::Auto => host::may_make_interfaces() || plan.ip.nat,
        };
        let tap = wanted.then(|| host::interface(dir.name().as_str(), &config, at)).transpose()?;
        let interface = tap.as_ref().map(|tap| tap.name().to_owned());
        if let (Some(table), Some(interface)) = (table(plan, dir), &interface) {
            let network = machine_network(config.machine, &config.shape);
            nat::apply(&table, interface, network, dir.base())?;
        }
        let example = plan.vms().next().map_or(0, |id| id.0);
        Ok(Some(Self { at, config, tap: Mutex::new(tap), interface, example }))
    }

    /// Starts the I/O node.
    ///
    /// # Errors
    ///
    /// If the host has no memory, threads or descriptors left.
    pub fn start(
        &self,
        machine: &Arc<Machine>,
        confinement: &Confinement,
    ) -> anyhow::Result<Gateway> {
        let prepared = Prepared::new(machine, self.at, &self.config)
            .with_context(|| format!("gateway {}", self.at))?;
        let tap = lock(&self.tap).take();
        let (stack, connector) = Stack::new(&self.config, self.at, prepared.waker(), tap.is_some());
        let mut tenants: Vec<Box<dyn Tenant>> = vec![Box::new(stack)];
        tenants.extend(tap.map(|tap| Box::new(tap) as Box<dyn Tenant>));
        // Both only read and write open files, for which the virtio role suffices.
        let first = confinement.hook(Role::Virtio);
        let node = prepared.start(tenants, move || first())?;
        let info = GatewayInfo { at: self.at, connector, stats: node.stats() };
        Ok(Gateway { info, _node: node })
    }

    /// Returns hints on how to use the gateway, as lines.
    pub fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        if let Some(interface) = &self.interface {
            let network = machine_network(self.config.machine, &self.config.shape);
            hints.push(format!(
                "  {network} by interface {interface}: nodes can be reached from this host"
            ));
        }
        let example = self.example;
        let forward = format!("tofu forward 8080:{example}:80");
        hints.push(format!("  {forward:<29} port 80 of node {example} as port 8080 of this host"));
        hints
    }
}

/// Returns the name of the plan's table for address translation, for the machine in `dir`, if the
/// plan uses it.
pub fn table(plan: &Plan, dir: &RunDir) -> Option<String> {
    plan.ip.nat.then(|| nat::table(dir.name().as_str()))
}

/// A running gateway. Dropping it stops the gateway.
pub struct Gateway {
    info: GatewayInfo,
    _node: IoNode,
}

impl Gateway {
    /// Returns what other threads may use of it.
    pub fn info(&self) -> GatewayInfo {
        self.info.clone()
    }
}

/// The addresses of a gateway, and its counters.
#[derive(Clone)]
pub struct GatewayInfo {
    /// Its node.
    pub(crate) at: Coords,
    /// Opens connections to ports of nodes.
    pub(crate) connector: Connector,
    /// The counters of its link.
    pub(crate) stats: LinkStats,
}

fn config(plan: &Plan) -> Config {
    Config { machine: plan.ip.number.0, mtu: plan.ip.mtu.0, ..Config::new(plan.network.shape) }
}
