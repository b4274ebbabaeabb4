//! `tofu stats`: the counters of the devices of a running machine.

use std::io::{self, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::{Map, Value, json};
use tofu_abi::Coords;
use tofu_abi::regs::{PortReg, TniReg};
use tofu_abi::tnw::{ChannelReg, LinkReg};
use tofu_control::protocol::{Reply, Request, seconds};
use tofu_control::{
    Counters, LinkCounters, MachineName, NodeCounters, QueueCounters, ask, find_machine,
    parse_node, place, rundir, shape,
};
use tofu_fabric::{NodeId, Port, Shape};
use tofu_spec::units::Timeout;
use tofu_ui::table;

/// Show the counters of the devices of a running machine
///
/// Prints a line for each device, or all counters of one device by their names in the register map.
/// Counters start at the device's last reset, and those of ports when the machine starts.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatsArgs {
    /// Node: an index, coordinates X,Y,Z,A,B,C or a name t-X-Y-Z-A-B-C, with MACHINE/ in front if
    /// several machines run [default: all]
    #[arg(value_name = "NODE")]
    pub(crate) node: Option<String>,

    /// Machine; not needed if only one runs
    #[arg(long, value_name = "NAME", conflicts_with = "node")]
    pub(crate) machine: Option<MachineName>,

    /// Show the increase in each interval of this time, until Ctrl-C or the machine's end
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "1s")]
    pub(crate) watch: Option<Timeout>,

    /// Print JSON; with --watch one object per interval
    #[arg(long)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tofu stats
  tofu stats 0 --json
  tofu stats --watch
      the increase of the counters each second";

/// A column of the overview: its title, and its value.
type Column = (&'static str, fn(&NodeCounters) -> u64);

const COLUMNS: [Column; 10] = [
    ("sent", |n| n.of_tnis(TniReg::NumSendTlp)),
    ("KiB", |n| n.of_tnis(TniReg::ByteSendTlp) / 64),
    ("received", |n| n.of_tnis(TniReg::NumReceiveTlp)),
    ("KiB", |n| n.of_tnis(TniReg::ByteReceiveTlp) / 64),
    ("system", |n| n.of_tnis(TniReg::NumSendSystemTlp) + n.of_tnis(TniReg::RxNumSystemTlp)),
    ("discarded", |n| {
        n.of_tnis(TniReg::RxNumDiscardSystemTlp)
            + n.of_tnis(TniReg::RxNumDiscardUnknownTlp)
            + n.of_tnis(TniReg::RxNumDiscardExceptionTlp)
    }),
    ("damaged", |n| n.of_tnis(TniReg::NumReceiveNullifiedTlp)),
    ("refused", |n| n.of_tnis(TniReg::RxNumExceptionTlp) + n.of_tnis(TniReg::RxNumUnknownTlp)),
    ("failed", NodeCounters::failed_commands),
    ("no link", |n| {
        n.of_ports(PortReg::NumTxDiscardSystemTlp) + n.of_ports(PortReg::NumTxDiscardNormalTlp)
    }),
];

/// The same of network processors of TNW.
const COLUMNS_OF_TNW: [Column; 11] = [
    ("messages", |n| n.of_channels(ChannelReg::MessagesSent)),
    ("packets", |n| n.of_links(LinkReg::Sent)),
    ("received", |n| n.of_channels(ChannelReg::MessagesReceived)),
    ("packets", |n| n.of_links(LinkReg::Received)),
    ("again", |n| n.of_links(LinkReg::Resent)),
    ("NACKs", |n| n.of_links(LinkReg::NacksSent)),
    ("damaged", |n| n.of_links(LinkReg::CrcErrors)),
    ("missing", |n| n.of_links(LinkReg::SequenceErrors)),
    ("timeouts", |n| n.of_links(LinkReg::Timeouts)),
    ("stalls", |n| n.of_links(LinkReg::Stalls)),
    ("refused", |n| {
        n.of_channels(ChannelReg::Overlaps)
            + n.of_channels(ChannelReg::Orphans)
            + n.of_channels(ChannelReg::Refused)
    }),
];

/// A node and its device's counters.
type Counted = (NodeId, Coords, NodeCounters);

/// Runs `tofu stats` and returns the exit code.
pub(crate) fn run(args: &StatsArgs) -> anyhow::Result<u8> {
    let wanted = args.node.as_deref().map(parse_node).transpose()?;
    let machine = wanted.as_ref().map_or(args.machine.as_ref(), |(machine, _)| machine.as_ref());
    let (name, control) = find_machine(machine)?;
    let shape = shape(&control)?;
    let one = match (&wanted, &args.node) {
        (Some((_, node)), Some(text)) => Some(place(*node, text, &shape)?),
        _ => None,
    };
    let look = || all(&control, &shape, one);
    let mut last = look()?;
    if last.is_empty() {
        match (&args.node, one) {
            (Some(text), Some(_)) => bail!("node {text}: there is no device at this place"),
            _ => bail!("the machine {name} has no devices"),
        }
    }
    let show = |counted: &[Counted]| show(&shape, counted, one.is_some(), args.json);
    let Some(Timeout(interval)) = args.watch else {
        show(&last)?;
        return Ok(0);
    };
    loop {
        sleep(interval.max(Duration::from_millis(10)));
        let now = match look() {
            Ok(now) => now,
            // The machine has ended.
            Err(_) if rundir::has_ended(&control) => return Ok(0),
            Err(error) => return Err(error),
        };
        let added: Vec<Counted> = now
            .iter()
            .map(|(id, at, counters)| {
                let before = last.iter().find(|(other, ..)| other == id);
                let added = before.map(|(.., before)| counters.since(before));
                (*id, *at, added.unwrap_or_else(|| counters.clone()))
            })
            .collect();
        show(&added)?;
        last = now;
    }
}

/// All devices, or the one at a place.
fn all(control: &Path, shape: &Shape, one: Option<Coords>) -> anyhow::Result<Vec<Counted>> {
    let mut found = Vec::new();
    for id in (0..shape.nodes()).map(NodeId) {
        let Some(at) = shape.coords(id) else { continue };
        if one.is_some_and(|one| one != at) {
            continue;
        }
        match ask(control, &Request::Counters { node: id.0 })? {
            Reply::Counters { counters: Some(counters) } => found.push((id, at, *counters)),
            Reply::Counters { counters: None } => {}
            _ => bail!("not an answer"),
        }
    }
    Ok(found)
}

fn show(shape: &Shape, counted: &[Counted], detailed: bool, as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        let nodes: Vec<_> = counted.iter().map(as_object).collect();
        writeln!(out, "{}", json!({ "shape": shape.to_string(), "nodes": nodes }))?;
    } else if detailed {
        for (_, at, counters) in counted {
            details(&mut out, shape, *at, counters)?;
        }
    } else {
        overview(&mut out, counted)?;
    }
    out.flush()
}

fn as_object((id, at, counters): &Counted) -> Value {
    let object = |name: &str, value: Value, counters: &Counters| {
        let mut object: Map<String, Value> =
            counters.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        object.insert(name.to_owned(), value);
        Value::Object(object)
    };
    let tnis = counters.tnis.iter().enumerate().map(|(n, tni)| object("tni", json!(n), tni));
    let ports = Port::ALL.iter().zip(&counters.ports);
    let ports = ports.map(|(port, counters)| object("port", json!(port.to_string()), counters));
    let queues = counters.queues.iter().map(|queue| {
        let mut object = object("cq", json!(queue.cq), &queue.counters);
        object["tni"] = json!(queue.tni);
        object
    });
    let links = counters.links.iter().map(|LinkCounters { port, counters, channels }| {
        let mut link = object("port", json!(port), counters);
        let channels = channels.iter().enumerate();
        let channels = channels.map(|(n, channel)| object("channel", json!(n), channel));
        link["channels"] = channels.collect();
        link
    });
    if let Some(nwp) = &counters.nwp {
        return json!({
            "node": id.0, "at": at.to_array(), "nwp": nwp, "links": links.collect::<Vec<_>>(),
        });
    }
    let mut object = json!({
        "node": id.0, "at": at.to_array(), "tnis": tnis.collect::<Vec<_>>(),
        "ports": ports.collect::<Vec<_>>(), "queues": queues.collect::<Vec<_>>(),
        "ecc": counters.ecc,
        "ip": counters.ip, "under_way": counters.under_way,
    });
    if let Some(ns) = counters.modelled_ns {
        object["modelled_ns"] = json!(ns);
    }
    object
}

fn overview(out: &mut dyn Write, counted: &[Counted]) -> io::Result<()> {
    let columns: &[Column] = match counted.iter().any(|(.., counters)| counters.nwp.is_some()) {
        true => &COLUMNS_OF_TNW,
        false => &COLUMNS,
    };
    let mut head = vec!["index", "node"];
    head.extend(columns.iter().map(|(title, _)| *title));
    let rows = counted.iter().map(|(id, at, counters)| {
        let mut row = vec![id.0.to_string(), at.to_string()];
        row.extend(columns.iter().map(|(_, value)| value(counters).to_string()));
        row
    });
    let numbers: Vec<usize> = (0..head.len()).collect();
    write!(out, "{}", table(&head, &numbers, rows))
}

/// All counters that are not 0.
fn details(
    out: &mut dyn Write,
    shape: &Shape,
    at: Coords,
    counters: &NodeCounters,
) -> io::Result<()> {
    let time = counters.modelled_ns.map(|ns| format!(", modelled time {} s", seconds(ns)));
    writeln!(out, "node {at}{}", time.unwrap_or_default())?;
    let mut block = |title: String, counters: &Counters| -> io::Result<()> {
        let counted: Vec<_> = counters.iter().filter(|(_, value)| **value != 0).collect();
        if counted.is_empty() {
            return Ok(());
        }
        writeln!(out, "  {title}")?;
        counted.iter().try_for_each(|(name, value)| writeln!(out, "    {name:<32} {value:>14}"))
    };
    block("error-correcting codes".to_owned(), &counters.ecc)?;
    for (n, tni) in counters.tnis.iter().enumerate() {
        block(format!("TNI {n}"), tni)?;
    }
    for QueueCounters { tni, cq, counters } in &counters.queues {
        block(format!("TNI {tni}, control queue {cq}"), counters)?;
    }
    for (port, counted) in Port::ALL.iter().zip(&counters.ports) {
        let to = shape.neighbor(at, *port).map_or("nowhere".to_owned(), |to| to.to_string());
        block(format!("port {port}, to {to}"), counted)?;
    }
    counters.nwp.iter().try_for_each(|nwp| block("network processor".to_owned(), nwp))?;
    for LinkCounters { port, counters, channels } in &counters.links {
        let to = Port::from_name(port).and_then(|port| shape.neighbor(at, port));
        let to = to.map_or("nowhere".to_owned(), |to| to.to_string());
        block(format!("link {port}, to {to}"), counters)?;
        for (n, channel) in channels.iter().enumerate() {
            block(format!("link {port}, channel {n}"), channel)?;
        }
    }
    counters.ip.iter().try_for_each(|ip| block("IP over Tofu".to_owned(), ip))
}
