//! The settings of a machine's network that commands have changed since it started.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use tofu_abi::Coords;
use tofu_control::Connection;
use tofu_control::protocol::{Reply, Request};
use tofu_fabric::{NodeId, Port, Shape, ShardId};

use crate::shards::Others;

/// The most nodes in one request, because lines have a limited length.
const MOST_NODES: usize = 1000;

/// Links, nodes and faults as commands have set them. Each shard of a machine keeps all of them for
/// shards that come back, because those start in the machine's initial state. The settings never
/// outgrow the machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// The state of links, by the lower one of their ends: true if up.
    links: BTreeMap<(NodeId, Port), bool>,
    /// Nodes that are down.
    nodes: BTreeSet<NodeId>,
    /// The faults, if a command has set or removed them.
    faults: Option<Option<String>>,
}

impl Settings {
    /// Records that the link at a port of a node was taken up or down.
    pub(crate) fn set_link(&mut self, shape: &Shape, at: Coords, port: Port, up: bool) {
        let end = |at, port| Some((shape.node_id(at)?, port));
        let near = end(at, port);
        let far = shape.neighbor(at, port).and_then(|at| end(at, port.opposite()));
        if let (Some(near), Some(far)) = (near, far) {
            self.links.insert(near.min(far), up);
        }
    }

    /// Records that nodes were taken up or down.
    pub(crate) fn set_nodes(&mut self, nodes: impl Iterator<Item = NodeId>, up: bool) {
        match up {
            true => nodes.for_each(|node| {
                self.nodes.remove(&node);
            }),
            false => self.nodes.extend(nodes),
        }
    }

    /// Records that faults were set or removed.
    pub(crate) fn set_faults(&mut self, faults: Option<String>) {
        self.faults = Some(faults);
    }

    /// Sends them to a shard that has come back, and waits until it has applied all of them.
    ///
    /// # Errors
    ///
    /// If the shard goes away again, or refuses something.
    pub(crate) fn tell(&self, others: &Others, shard: ShardId) -> anyhow::Result<()> {
        let mut connection: Option<Connection> = None;
        for request in self.requests() {
            let connection = match &mut connection {
                Some(connection) => {
                    connection.say(&request)?;
                    connection
                }
                none => none.insert(Connection::over(others.open(shard)?, &request)?),
            };
            match connection.answer()? {
                Reply::Done => {}
                _ => bail!("not an answer"),
            }
        }
        Ok(())
    }

    /// Returns the requests that bring a shard from its initial state to these settings. Its guests
    /// keep running.
    fn requests(&self) -> Vec<Request> {
        let links = self.links.iter().map(|(&(node, port), &up)| Request::SetLink {
            node: node.0,
            port: port.name().to_owned(),
            up,
        });
        let nodes: Vec<_> = self.nodes.iter().map(|node| node.0).collect();
        let nodes = nodes.chunks(MOST_NODES).map(|nodes| Request::SetNodes {
            nodes: nodes.to_vec(),
            up: false,
            guests: false,
        });
        let faults = self.faults.clone().map(|faults| Request::SetFaults { faults });
        links.chain(nodes).chain(faults).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_sent_once_as_set_last() {
        let shape: Shape = "4x1x1x2x1x1".parse().unwrap();
        let at = |node| shape.coords(NodeId(node)).unwrap();
        let mut set = Settings::default();
        assert_eq!(set.requests(), []);
        set.set_link(&shape, at(2), Port::XPlus, false);
        // The same link by its other end, and one that does not exist.
        set.set_link(&shape, at(4), Port::XMinus, true);
        set.set_link(&shape, at(4), Port::YPlus, true);
        set.set_link(&shape, at(1), Port::A, false);
        set.set_nodes([1, 3, 5].map(NodeId).into_iter(), false);
        set.set_nodes([3, 4].map(NodeId).into_iter(), true);
        set.set_faults(Some("loss=1%".to_owned()));
        set.set_faults(None);
        let link =
            |node, port: Port, up| Request::SetLink { node, port: port.name().to_owned(), up };
        let expected = [
            link(0, Port::A, false),
            link(2, Port::XPlus, true),
            Request::SetNodes { nodes: vec![1, 5], up: false, guests: false },
            Request::SetFaults { faults: None },
        ];
        assert_eq!(set.requests(), expected);
    }
}
