//! Shared by several of the tests.

use tofu_abi::{Coords, Path, TniId};
use tofu_fabric::{Axis, Class, Deliver, DiscardReason, Hop, NodeId, Packet, Port, Route, Shape};

/// One TLP from TNI 2 to TNI 1 of a node, by its default path.
pub(crate) fn packet<B>(class: Class, src: Coords, dst: Coords, body: B) -> Packet<B> {
    Packet { src_tni: TniId::ALL[2], dst_tni: 1, ..Packet::shortest(class, src, dst, body) }
}

/// The reports of packets.
#[derive(Debug, PartialEq)]
pub(crate) struct Log<T> {
    pub(crate) arrived: Vec<(NodeId, Packet<T>)>,
    pub(crate) discarded: Vec<(NodeId, Option<Port>, DiscardReason, Packet<T>)>,
}

impl<T> Default for Log<T> {
    fn default() -> Self {
        Self { arrived: Vec::new(), discarded: Vec::new() }
    }
}

impl<T> Deliver<T> for Log<T> {
    fn arrived(&mut self, node: NodeId, packet: Packet<T>) {
        self.arrived.push((node, packet));
    }

    fn discarded(
        &mut self,
        at: NodeId,
        port: Option<Port>,
        reason: DiscardReason,
        packet: Packet<T>,
    ) {
        self.discarded.push((at, port, reason, packet));
    }
}

/// Returns true if this is one of the scalable axes.
pub(crate) fn is_xyz(axis: Axis) -> bool {
    matches!(axis, Axis::X | Axis::Y | Axis::Z)
}

/// A hop and its position in its route, derived from the nodes that the route visits and not from
/// the router's computation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) hop: Hop,
    pub(crate) class: Class,
    /// 0 on the way to the path's A, B, C; 1 on X, Y, Z; 2 after.
    pub(crate) stage: u8,
    /// The packet has crossed the date line of this axis, at this hop at the latest.
    pub(crate) crossed: bool,
    /// The packet leaves this axis after this hop.
    pub(crate) last_on_axis: bool,
}

/// Replaces `steps` by those of a route.
pub(crate) fn trace(
    shape: &Shape,
    route: Route<'_>,
    path: Path,
    class: Class,
    steps: &mut Vec<Step>,
) {
    let at = |hop: &Hop| {
        let from = shape.coords(hop.from).expect("the route stays in the machine");
        let to = shape.coords(hop.to).expect("the route stays in the machine");
        (from, to)
    };
    steps.clear();
    let mut stage = 0;
    for hop in route {
        let (from, to) = at(&hop);
        if stage == 0 && from.default_path() == path {
            stage = 1;
        }
        let axis = hop.port.axis();
        if stage == 1 && !is_xyz(axis) {
            stage = 2;
        }
        let wrapped = from.to_array()[axis.index()].abs_diff(to.to_array()[axis.index()]) > 1
            || (shape.len(axis) == 2 && hop.port == axis.port(true) && to < from)
            || (shape.len(axis) == 2 && hop.port == axis.port(false) && to > from);
        let mut crossed = wrapped;
        if let Some(before) = steps.last_mut() {
            let same_leg = before.stage == stage && before.hop.port == hop.port;
            before.last_on_axis = !same_leg;
            crossed |= same_leg && before.crossed;
        }
        steps.push(Step { hop, class, stage, crossed, last_on_axis: true });
    }
}
