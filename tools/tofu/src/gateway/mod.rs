//! The gateway of a machine: a node that this process drives, by which the host reaches the others.
//!
//! A [`Setup`] is made while this process still may do what it likes: it has what needs rights on
//! the host. [`Setup::start`] puts the I/O node into a machine.

mod host;
pub(crate) mod nat;

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use tofu_abi::Coords;
use tofu_control::rundir::RunDir;
use tofu_gateway::{
    Config, Connector, IoNode, LinkStats, Prefix, Prepared, Stack, Tap, Tenant, addr,
};
use tofu_machine::Machine;
use tofu_sandbox::Role;

use crate::confine::Confinement;
use crate::plan::Plan;
use crate::units::{IpNumber, Mtu, NodeAt};

/// How the machine's network is joined to the host.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "IP over Tofu")]
pub(crate) struct GatewayArgs {
    /// Node that joins the machine to the host, and has no guest: X,Y,Z,A,B,C
    ///
    /// `tofu forward` makes ports of nodes ports of the host. With CAP_NET_ADMIN the host also has
    /// a network interface there, so that ping, ssh and the like reach all nodes.
    #[arg(long, value_name = "NODE")]
    pub(crate) gateway: Option<NodeAt>,

    /// Whether the host has a network interface at the gateway; auto: if it may be made
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) tap: TapWhen,

    /// Let nodes reach the networks of the host, with its address; needs the interface
    #[arg(long)]
    pub(crate) nat: bool,

    /// Number of the machine, 0 to 7, a part of its nodes' IP addresses [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) ip_number: Option<IpNumber>,

    /// Largest IP packet between nodes in bytes, 1280 to 65521 [default: 1500]
    #[arg(long, value_name = "BYTES")]
    pub(crate) mtu: Option<Mtu>,
}

impl GatewayArgs {
    /// What they are if none is given.
    pub(crate) const NONE: Self =
        Self { gateway: None, tap: TapWhen::Auto, nat: false, ip_number: None, mtu: None };
}

/// Whether there is an interface on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TapWhen {
    /// If this process has CAP_NET_ADMIN
    Auto,
    /// Always; it is an error if there cannot be one
    On,
    /// Never
    Off,
}

/// What of a gateway is ready before there is a machine.
pub(crate) struct Setup {
    at: Coords,
    config: Config,
    /// Taken when the I/O node starts.
    tap: Mutex<Option<Tap>>,
    /// Name of the interface, if there is one.
    interface: Option<String>,
    /// A node with a guest.
    example: u32,
}

impl Setup {
    /// Makes what the plan's gateway needs of the host, for the machine in `dir`. `None` if it has
    /// no gateway.
    ///
    /// # Errors
    ///
    /// One line on what the host lacks, or what is in the way of the machine's addresses.
    pub(crate) fn new(
        plan: &Plan,
        args: &GatewayArgs,
        dir: &RunDir,
    ) -> anyhow::Result<Option<Self>> {
        let Some(at) = plan.gateway().map(|id| plan.coords(id)) else { return Ok(None) };
        let config = config(plan);
        let wanted = match args.tap {
            TapWhen::Off if args.nat => {
                bail!("--nat is by the host's network interface; leave --tap off out")
            }
            TapWhen::Off => false,
            TapWhen::On => true,
            TapWhen::Auto => host::may_make_interfaces() || args.nat,
        };
        let tap = wanted.then(|| host::interface(dir.name().as_str(), &config, at)).transpose()?;
        let interface = tap.as_ref().map(|tap| tap.name().to_owned());
        if let (Some(table), Some(interface)) = (table(plan, dir), &interface) {
            let prefix = Prefix::of_machine(config.machine, &config.shape);
            nat::apply(&table, interface, prefix, dir.base())?;
        }
        let example = plan.vms().next().map_or(0, |id| id.0);
        Ok(Some(Self { at, config, tap: Mutex::new(tap), interface, example }))
    }

    /// Starts the I/O node.
    ///
    /// # Errors
    ///
    /// If the host has no memory, threads or descriptors left.
    pub(crate) fn start(
        &self,
        machine: &Arc<Machine>,
        confinement: &Confinement,
    ) -> anyhow::Result<Gateway> {
        let prepared = Prepared::new(machine, self.at, &self.config)
            .with_context(|| format!("gateway {}", self.at))?;
        let tap = self.tap.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (stack, connector) = Stack::new(&self.config, self.at, prepared.waker(), tap.is_some());
        let mut tenants: Vec<Box<dyn Tenant>> = vec![Box::new(stack)];
        tenants.extend(tap.map(|tap| Box::new(tap) as Box<dyn Tenant>));
        // The roles of both are to read and write what is open.
        let first = confinement.hook(Role::Virtio);
        let node = prepared.start(tenants, move || first())?;
        Ok(Gateway { at: self.at, connector, stats: node.stats(), _node: node })
    }

    /// What the user may want to know of it, in lines.
    pub(crate) fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        if let Some(interface) = &self.interface {
            let prefix = Prefix::of_machine(self.config.machine, &self.config.shape);
            hints.push(format!(
                "  {prefix} by interface {interface}: nodes can be reached from this host"
            ));
        }
        let example = self.example;
        let forward = format!("tofu forward 8080:{example}:80");
        hints.push(format!("  {forward:<29} port 80 of node {example} as port 8080 of this host"));
        hints
    }
}

/// The table of the address translation that the plan wants, for the machine in `dir`.
pub(crate) fn table(plan: &Plan, dir: &RunDir) -> Option<String> {
    plan.ip.nat.then(|| nat::table(dir.name().as_str()))
}

/// A gateway that works, until it is dropped.
pub(crate) struct Gateway {
    pub(crate) at: Coords,
    pub(crate) connector: Connector,
    pub(crate) stats: LinkStats,
    _node: IoNode,
}

fn config(plan: &Plan) -> Config {
    Config { machine: plan.ip.number.0, mtu: plan.ip.mtu.0, ..Config::new(plan.network.shape) }
}

/// What nodes are told about the network, in words of a command line that begin with `prefix`: what
/// differs from what they take for granted. Each ends with a space.
pub(crate) fn words(plan: &Plan, prefix: &str) -> String {
    let ip = &plan.ip;
    let mut words = String::new();
    let mut add = |name: &str, value: String| words.push_str(&format!("{prefix}{name}={value} "));
    if ip.number != IpNumber::default() {
        add("machine", ip.number.0.to_string());
    }
    if ip.mtu != Mtu::default() {
        add("mtu", ip.mtu.0.to_string());
    }
    if let Some(gateway) = plan.gateway() {
        // The number of a node that runs no program.
        add("without", gateway.0.to_string());
        if ip.nat {
            add("gateway", address(plan, plan.coords(gateway)).to_string());
            if let Some(resolver) = host::resolver() {
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
