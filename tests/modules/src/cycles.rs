//! Strongly connected components: each module of a component reaches all others in it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::graph::Graph;

/// Components of more than one file, each in the order of names.
pub(crate) fn components(graph: &Graph) -> Vec<Vec<PathBuf>> {
    let mut search = Search { graph, seen: BTreeMap::new(), open: Vec::new(), found: Vec::new() };
    for file in graph.files() {
        if !search.seen.contains_key(file) {
            search.visit(file);
        }
    }
    search.found
}

/// Tarjan's algorithm.
struct Search<'a> {
    graph: &'a Graph,
    /// When a file was seen, and whether its component is still open.
    seen: BTreeMap<&'a PathBuf, (usize, bool)>,
    open: Vec<&'a PathBuf>,
    found: Vec<Vec<PathBuf>>,
}

impl<'a> Search<'a> {
    /// Returns the first file of the component that this one belongs to, by when it was seen.
    fn visit(&mut self, file: &'a PathBuf) -> usize {
        let time = self.seen.len();
        self.seen.insert(file, (time, true));
        self.open.push(file);
        let mut first = time;
        let graph = self.graph;
        for other in graph.used_by(file) {
            first = first.min(match self.seen.get(other) {
                None => self.visit(other),
                Some((time, true)) => *time,
                Some((_, false)) => first,
            });
        }
        if first == time {
            let at = self.open.iter().position(|open| *open == file).unwrap_or(0);
            let mut component: Vec<_> = self.open.drain(at..).cloned().collect();
            for (file, (_, open)) in &mut self.seen {
                *open &= !component.contains(file);
            }
            component.sort();
            if component.len() > 1 {
                self.found.push(component);
            }
        }
        first
    }
}
