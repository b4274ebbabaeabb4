//! Which module of a crate uses which other module, and by what names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::source::{Crate, Names};

/// The names with which one file uses another.
type Uses = BTreeSet<String>;

/// Files that use others.
#[derive(Default)]
pub(crate) struct Graph {
    uses: BTreeMap<PathBuf, BTreeMap<PathBuf, Uses>>,
}

impl Graph {
    /// The uses among the files of a crate.
    pub(crate) fn of(crate_: &Crate) -> Self {
        let mut graph = Self::default();
        for (at, module) in crate_.modules.iter().enumerate() {
            let imports = module.imports.iter().filter(|import| !import.exported);
            for path in module.paths.iter().chain(imports.map(|import| &import.path)) {
                let Some((definer, Some(name))) = resolve(crate_, at, path, 0) else { continue };
                let other = &crate_.modules[definer].file;
                if *other != module.file {
                    let uses = graph.uses.entry(module.file.clone()).or_default();
                    uses.entry(other.clone()).or_default().insert(name);
                }
            }
        }
        graph
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.uses.keys()
    }

    pub(crate) fn used_by<'a>(&'a self, file: &Path) -> impl Iterator<Item = &'a PathBuf> {
        self.uses.get(file).into_iter().flat_map(BTreeMap::keys)
    }

    /// Removes the uses of one file by another, and returns them.
    pub(crate) fn remove(&mut self, from: &Path, to: &Path) -> Option<Uses> {
        self.uses.get_mut(from)?.remove(to)
    }

    /// The uses among some files.
    pub(crate) fn within<'a>(
        &'a self,
        files: &'a [PathBuf],
    ) -> impl Iterator<Item = (&'a Path, &'a Path, &'a Uses)> {
        let all = self.uses.iter().filter(|(from, _)| files.contains(from));
        all.flat_map(|(from, others)| others.iter().map(move |(to, names)| (from, to, names)))
            .filter(|(_, to, _)| files.contains(to))
            .map(|(from, to, names)| (from.as_path(), to.as_path(), names))
    }
}

/// Re-exports that a path may go through before it is taken to be endless.
const MAX_DEPTH: u32 = 16;

/// Resolves a path in a module: the module that defines the item and the item's name, or a
/// module itself. `None` if it leads out of the crate, or nowhere.
fn resolve(crate_: &Crate, from: usize, path: &[String], depth: u32) -> Option<Found> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => follow(crate_, 0, rest, depth),
        "self" if rest.is_empty() => None,
        "self" => follow(crate_, from, rest, depth),
        "super" => {
            let parent = crate_.modules[from].parent;
            match rest.first().map(String::as_str) {
                Some("super") => resolve(crate_, parent, rest, depth),
                _ => follow(crate_, parent, rest, depth),
            }
        }
        _ => follow(crate_, from, path, depth),
    }
}

/// A module, and the name of the item in it, unless the module itself was found.
type Found = (usize, Option<String>);

/// The same for a path whose first name is looked up in a module.
fn follow(crate_: &Crate, at: usize, path: &[String], depth: u32) -> Option<Found> {
    let Some((first, rest)) = path.split_first() else { return Some((at, None)) };
    if depth > MAX_DEPTH {
        return None;
    }
    let module = &crate_.modules[at];
    if let Some(child) = module.children.get(first) {
        // A module may have the same name as a function.
        if !rest.is_empty() || !module.items.contains(first) {
            return follow(crate_, *child, rest, depth);
        }
    }
    if module.items.contains(first) {
        return Some((at, Some(first.clone())));
    }
    let through = |path: &Names| {
        // `use tofu_x::y as tofu_x` and the like refer to another crate, not to themselves.
        let itself = path.first() == Some(first);
        if itself && !module.children.contains_key(first) {
            return None;
        }
        match resolve(crate_, at, path, depth + 1)? {
            (module, None) => follow(crate_, module, rest, depth + 1),
            item => Some(item),
        }
    };
    let imports = module.imports.iter().filter(|import| import.name == *first);
    if let Some(found) = imports.map(|import| through(&import.path)).find(Option::is_some) {
        return found;
    }
    let by_glob =
        module.globs.iter().find_map(|glob| match resolve(crate_, at, glob, depth + 1)? {
            (module, None) if module != at => follow(crate_, module, path, depth + 1),
            _ => None,
        });
    by_glob.or_else(|| module.in_macros.contains(first).then(|| (at, Some(first.clone()))))
}
