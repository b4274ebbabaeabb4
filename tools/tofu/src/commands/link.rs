//! `tofu link`: links of a running machine.

use std::io::{self, Write};

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::json;
use tofu_abi::{Coords, Generation};
use tofu_control::protocol::{LinkEnd, Reply, Request};
use tofu_control::{
    MachineName, ask, find_machine, info, locate, node_number, parse_node, place, shape,
};
use tofu_fabric::{Link, Port, Shape};
use tofu_supervisor::link_errors::{LinkErrorSpec, Rate};

/// Take links of a running machine down and up, make them fail in part, or list them
///
/// A link goes down as a whole, in both directions. On Fugaku the optical links of a board's two
/// nodes in the same direction share a cable, and go down and up together unless --alone is given.
/// Packets sent over a link that is down are lost: the port at its near end counts them, and their
/// loss is reported. In modelled time, links change at the next whole millisecond.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum LinkCommand {
    /// Take the link between two neighbours down
    Down(CableArgs),
    /// Bring the link between two neighbours up again
    Up(CableArgs),
    /// Inject bit errors, lane failures or lost ACKs on a modelled link; with no option, clear them
    ///
    /// The errors are in both directions. The machine must have links = "modelled", be in modelled
    /// time, or be of TNW, whose links have bit errors only. Guests lose no data, because frames
    /// are sent again or on the other lanes; counters of ports show the errors.
    Errors {
        /// Which link
        #[command(flatten)]
        link: LinkArgs,
        /// Probability that a bit is wrong, such as 1e-7
        #[arg(long, value_name = "RATE")]
        ber: Option<Rate>,
        /// Limit wrong bits to this lane [default: all lanes]
        #[arg(long, value_name = "LANE", requires = "ber")]
        lane: Option<u8>,
        /// A lane on which nothing arrives
        #[arg(long, value_name = "LANE")]
        dead: Option<u8>,
        /// Probability that an acknowledgement or another data-link-layer packet is lost
        #[arg(long, value_name = "RATE")]
        dllp_loss: Option<Rate>,
    },
    /// List the links and whether they are up
    Ls {
        /// Machine; not needed if only one runs
        #[arg(value_name = "NAME")]
        name: Option<MachineName>,
        /// Only links that are down
        #[arg(long)]
        down: bool,
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Which link, and whether its cable's other link follows.
#[derive(Debug, Clone, Args)]
pub(crate) struct CableArgs {
    #[command(flatten)]
    link: LinkArgs,

    /// This link alone, as if its transceiver and not the cable had failed
    #[arg(long)]
    alone: bool,
}

/// Which link.
#[derive(Debug, Clone, Args)]
pub(crate) struct LinkArgs {
    /// Node at one end: an index, coordinates X,Y,Z,A,B,C or a name t-X-Y-Z-A-B-C, with MACHINE/
    /// in front if several machines run
    #[arg(value_name = "NODE")]
    pub(crate) from: String,

    /// Node at the other end, or the port of the first: A, C, B-, B+, X-, X+, Y-, Y+, Z-, Z+
    ///
    /// Two nodes on a ring of two have two links between them; naming both nodes means both links.
    #[arg(value_name = "NODE|PORT")]
    pub(crate) to: String,
}

/// Runs `tofu link` and returns the exit code.
pub(crate) fn run(command: &LinkCommand) -> anyhow::Result<u8> {
    match command {
        LinkCommand::Down(args) => set(args, false),
        LinkCommand::Up(args) => set(args, true),
        LinkCommand::Errors { link, ber, lane, dead, dllp_loss } => {
            let any = ber.is_some() || dead.is_some() || dllp_loss.is_some();
            let (ber, dllp_loss) = (ber.unwrap_or_default(), dllp_loss.unwrap_or_default());
            let spec = LinkErrorSpec { ber, lane: *lane, dead: *dead, dllp_loss };
            set_errors(link, any.then_some(spec))
        }
        LinkCommand::Ls { name, down, json } => list(name.as_ref(), *down, *json),
    }
}

fn set(args: &CableArgs, up: bool) -> anyhow::Result<u8> {
    let CableArgs { link, alone } = args;
    let (control, shape, at) = locate(&link.from)?;
    let generation = if *alone { None } else { info(&control)?.generation() };
    for port in ports(&shape, at, &link.to)? {
        let other = generation.and_then(|of| in_cable(of, &shape, at, port));
        for from in [Some(at), other].into_iter().flatten() {
            let node = node_number(&shape, from)?;
            ask(&control, &Request::SetLink { node, port: port.to_string(), up })?;
        }
        if let Some(other) = other {
            writeln!(io::stdout(), "with {port} of {other}, in the same cable")?;
        }
    }
    Ok(0)
}

/// The node whose link at the same port is in the same cable, if there is one.
fn in_cable(generation: Generation, shape: &Shape, at: Coords, port: Port) -> Option<Coords> {
    let to = shape.neighbor(at, port)?;
    let other = generation.description().shares_cable(at, to)?;
    shape.neighbor(other, port).map(|_| other)
}

fn set_errors(args: &LinkArgs, spec: Option<LinkErrorSpec>) -> anyhow::Result<u8> {
    let (control, shape, at) = locate(&args.from)?;
    let node = node_number(&shape, at)?;
    for port in ports(&shape, at, &args.to)? {
        let errors = spec.map(|spec| spec.to_string());
        ask(&control, &Request::SetLinkErrors { node, port: port.to_string(), errors })?;
    }
    Ok(0)
}

/// The ports that a user means by a port or a neighbour.
fn ports(shape: &Shape, at: Coords, text: &str) -> anyhow::Result<Vec<Port>> {
    let name = text.to_uppercase();
    if let Some(port) = Port::from_name(&name) {
        if shape.neighbor(at, port).is_none() {
            let ports: Vec<_> = shape.neighbors(at).map(|(port, _)| port.to_string()).collect();
            bail!("port {text}: node {at} has no link there; it has: {}", ports.join(", "));
        }
        return Ok(vec![port]);
    }
    let (_, to) = parse_node(text)?;
    let to = place(to, text, shape)?;
    let between = shape.neighbors(at).filter(|(_, other)| *other == to);
    let ports: Vec<_> = between.map(|(port, _)| port).collect();
    if ports.is_empty() {
        let near: Vec<_> = shape.neighbors(at).map(|(_, other)| other.to_string()).collect();
        bail!("{at} and {to} are not neighbours; next to {at} are: {}", near.join(" "));
    }
    Ok(ports)
}

fn list(name: Option<&MachineName>, only_down: bool, as_json: bool) -> anyhow::Result<u8> {
    let (_, control) = find_machine(name)?;
    let shape = shape(&control)?;
    let Reply::Links { down } = ask(&control, &Request::Links)? else { bail!("not an answer") };
    let links = Link::all(&shape).map(|link| {
        let up = !LinkEnd::at(&shape, link.from, link.port).is_some_and(|end| down.contains(&end));
        (link, up)
    });
    let mut out = io::stdout().lock();
    let mut all = Vec::new();
    for (link, up) in links.filter(|(_, up)| !up || !only_down) {
        let Link { from, port, to, .. } = link;
        if as_json {
            let (from, to, port) = (from.to_array(), to.to_array(), port.to_string());
            all.push(json!({ "from": from, "port": port, "to": to, "up": up }));
        } else {
            let (port, state) = (port.to_string(), if up { "up" } else { "down" });
            writeln!(out, "{from} {port:<2} {to} {state}")?;
        }
    }
    if as_json {
        writeln!(out, "{}", json!(all))?;
    }
    out.flush()?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_has_several_names() {
        let shape = Shape::UNIT;
        let at = Coords::default();
        for text in ["B+", "b+", "0,0,0,0,1,0", "t-0-0-0-0-1-0", "2"] {
            assert_eq!(ports(&shape, at, text).unwrap(), [Port::BPlus], "{text}");
        }
        let pair: Shape = "2x1x1x1x1x1".parse().unwrap();
        assert_eq!(ports(&pair, at, "1").unwrap(), [Port::XMinus, Port::XPlus]);
        assert_eq!(ports(&pair, at, "X-").unwrap(), [Port::XMinus]);
    }

    #[test]
    fn cables_join_links_of_a_board() {
        let shape: Shape = "4x1x1x1x1x2".parse().unwrap();
        let at = |x, c| Coords::new(x, 0, 0, 0, 0, c);
        let of = |from, port| in_cable(Generation::Fugaku, &shape, from, port);
        assert_eq!(of(at(1, 0), Port::XPlus), Some(at(1, 1)));
        assert_eq!(of(at(0, 1), Port::XMinus), Some(at(0, 0)), "around the ring");
        assert_eq!((of(at(0, 0), Port::XPlus), of(at(1, 0), Port::C)), (None, None));
        assert_eq!(in_cable(Generation::Fx100, &shape, at(1, 0), Port::XPlus), None);
        let single: Shape = "4x1x1x1x1x1".parse().unwrap();
        assert_eq!(in_cable(Generation::Fugaku, &single, at(1, 0), Port::XPlus), None);
    }

    #[test]
    fn links_that_are_not_there_are_named() {
        let error = |to| ports(&Shape::UNIT, Coords::default(), to).unwrap_err().to_string();
        let expected = "port X+: node (0,0,0,0,0,0) has no link there; it has: A, C, B-, B+";
        assert_eq!(error("X+"), expected);
        let message = error("11");
        assert!(message.starts_with("(0,0,0,0,0,0) and (0,0,0,1,2,1) are not neighbours; next to"));
        assert!(error("12").ends_with("the machine 1x1x1x2x3x2 has no such node"));
        assert!(error("north").starts_with("node north: not a node; give an index"));
    }
}
