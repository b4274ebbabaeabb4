//! Finds import cycles among the modules of each crate of the tree.
//!
//! ```text
//! cargo run -p tofu-modules [FOLDER]
//! ```
//!
//! A module uses another one if a path in its code, a `use` included, leads to an item that is
//! defined there, no matter how many re-exports lie between. `mod child;` and `pub use child::Item`
//! alone are no use of the child. What is compiled for tests only does not count. Modules in one
//! file are one, named by the file.
//!
//! A use that must close a cycle is explained in the comment at the top of its module, in a line
//! that begins with `Cycle:` and the path of the other module in backticks:
//!
//! ```text
//! //! Cycle: `super::queue`, because a queue makes these and they refer to their queue.
//! ```
//!
//! Uses of that module by this one are then ignored. A line that explains no cycle is an error.

mod cycles;
mod graph;
mod source;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

fn main() -> anyhow::Result<ExitCode> {
    let tree = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let mut bad = false;
    let mut crates = 0;
    for root in source::crate_roots(&tree)? {
        let module = source::read_crate(&root).with_context(|| root.display().to_string())?;
        for complaint in complaints(&module, &tree) {
            bad = true;
            println!("{}: {complaint}", shown(&root, &tree).display());
        }
        crates += 1;
    }
    if !bad {
        println!("no import cycles in {crates} crates");
    }
    Ok(ExitCode::from(u8::from(bad)))
}

/// A finding in a crate.
fn complaints(crate_: &source::Crate, tree: &Path) -> Vec<String> {
    let mut graph = graph::Graph::of(crate_);
    let mut complaints = Vec::new();
    let all = cycles::components(&graph);
    for (file, other) in &crate_.explained() {
        let Some(other) = other else {
            complaints.push(format!(
                "{}: a line \"Cycle:\" without the path of another module in backticks",
                shown(file, tree).display()
            ));
            continue;
        };
        let together = |cycle: &Vec<PathBuf>| cycle.contains(file) && cycle.contains(other);
        if graph.remove(file, other).is_none() || !all.iter().any(together) {
            complaints.push(format!(
                "{}: explains a cycle with {}, and there is none",
                shown(file, tree).display(),
                shown(other, tree).display()
            ));
        }
    }
    for cycle in cycles::components(&graph) {
        let mut text = format!("a cycle of {} modules", cycle.len());
        for (from, to, names) in graph.within(&cycle) {
            let names = names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let (from, to) = (shown(from, tree), shown(to, tree));
            text += &format!("\n    {} -> {}: {names}", from.display(), to.display());
        }
        complaints.push(text);
    }
    complaints
}

/// A path from the folder of the tree on.
fn shown<'a>(path: &'a Path, tree: &Path) -> &'a Path {
    path.strip_prefix(tree).unwrap_or(path)
}

#[cfg(test)]
mod tests;
