//! Reads the modules of a crate: what each defines, imports, and refers to by a path.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// The kernel module is not a cargo crate.
const OTHER_ROOTS: [&str; 1] = ["guest-lib/kernel/tofu_main.rs"];

/// A path: the names between its colons.
pub(crate) type Names = Vec<String>;

/// A crate: its root is the first module.
pub(crate) struct Crate {
    pub(crate) modules: Vec<Module>,
}

/// A module, in its own file or between braces.
#[derive(Default)]
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    /// Index of the module that it is declared in; a root is its own.
    pub(crate) parent: usize,
    /// Indices of the modules that it declares.
    pub(crate) children: BTreeMap<String, usize>,
    /// Names of what it defines.
    pub(crate) items: BTreeSet<String>,
    /// Names in macro calls that may define items: those that nothing else defines are taken to
    /// be made by the macro.
    pub(crate) in_macros: BTreeSet<String>,
    pub(crate) imports: Vec<Import>,
    /// Modules with glob imports.
    pub(crate) globs: Vec<Names>,
    /// Paths in its code.
    pub(crate) paths: BTreeSet<Names>,
    /// Modules that lines `Cycle:` name; nothing for a line that names none.
    cycles: Vec<Option<Names>>,
}

/// A `use` of one item.
pub(crate) struct Import {
    pub(crate) name: String,
    pub(crate) path: Names,
    /// True if it re-exports the item: then the import alone is no use here.
    pub(crate) exported: bool,
}

impl Crate {
    /// The imports that comments explain: the files of the module and of the other one; no other
    /// one if the comment names none.
    pub(crate) fn explained(&self) -> Vec<(PathBuf, Option<PathBuf>)> {
        let mut all = Vec::new();
        for (at, module) in self.modules.iter().enumerate() {
            for other in &module.cycles {
                let other = other.as_ref().and_then(|path| self.module_at(at, path));
                all.push((module.file.clone(), other.map(|at| self.modules[at].file.clone())));
            }
        }
        all
    }

    /// The module that a path in another one leads to through declarations alone.
    fn module_at(&self, from: usize, path: &[String]) -> Option<usize> {
        let mut at = from;
        for name in path {
            at = match name.as_str() {
                "crate" => 0,
                "self" => at,
                "super" => self.modules[at].parent,
                name => *self.modules[at].children.get(name)?,
            };
        }
        Some(at)
    }
}

/// The root files of all crates below a folder.
pub(crate) fn crate_roots(tree: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let mut roots = BTreeSet::new();
    packages_below(tree, &mut roots)?;
    roots.extend(OTHER_ROOTS.iter().map(|root| tree.join(root)).filter(|root| root.exists()));
    if roots.is_empty() {
        bail!("{} has no crates", tree.display());
    }
    Ok(roots)
}

fn packages_below(folder: &Path, roots: &mut BTreeSet<PathBuf>) -> anyhow::Result<()> {
    const LEFT_OUT: [&str; 4] = ["target", ".git", "corpus", "artifacts"];
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type()?.is_dir() && !LEFT_OUT.iter().any(|left_out| name == *left_out) {
            packages_below(&entry.path(), roots)?;
        } else if name == "Cargo.toml" {
            roots_of_package(folder, &fs::read_to_string(entry.path())?, roots);
        }
    }
    Ok(())
}

/// The root files of a package: where cargo looks for them, and what its manifest names.
fn roots_of_package(folder: &Path, manifest: &str, roots: &mut BTreeSet<PathBuf>) {
    let mut add = |path: PathBuf| {
        if path.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
            roots.insert(path);
        }
    };
    for root in ["src/lib.rs", "src/main.rs", "build.rs"] {
        add(folder.join(root));
    }
    for group in ["src/bin", "tests", "examples", "benches"] {
        for entry in fs::read_dir(folder.join(group)).into_iter().flatten().flatten() {
            add(entry.path());
            add(entry.path().join("main.rs"));
        }
    }
    for line in manifest.lines() {
        if let Some(path) = line.strip_prefix("path = \"").and_then(|rest| rest.strip_suffix('"')) {
            add(folder.join(path));
        }
    }
}

/// Reads a crate, beginning with its root file.
pub(crate) fn read_crate(root: &Path) -> anyhow::Result<Crate> {
    let mut crate_ = Crate { modules: Vec::new() };
    let folder = root.parent().unwrap_or(Path::new("."));
    read_file(&mut crate_, root, folder, 0)?;
    Ok(crate_)
}

/// Reads a module's file, whose children without a `path` attribute are in `folder`.
fn read_file(
    crate_: &mut Crate,
    file: &Path,
    folder: &Path,
    parent: usize,
) -> anyhow::Result<usize> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let parsed = syn::parse_file(&text).with_context(|| file.display().to_string())?;
    let cycles = parsed.attrs.iter().filter_map(explained_cycle).collect();
    read_items(crate_, &parsed.items, file, folder, Module { parent, cycles, ..Module::default() })
}

/// Adds a module with these items, and its children.
fn read_items(
    crate_: &mut Crate,
    items: &[Item],
    file: &Path,
    folder: &Path,
    module: Module,
) -> anyhow::Result<usize> {
    let mut reader = Reader { module, declared: Vec::new() };
    reader.module.file = file.to_owned();
    items.iter().for_each(|item| reader.visit_item(item));
    let Reader { module, declared } = reader;
    let at = crate_.modules.len();
    crate_.modules.push(module);
    for child in declared {
        let name = child.ident.to_string();
        let path = child.attrs.iter().find_map(path_attribute);
        let below = folder.join(&name);
        let index = match &child.content {
            Some((_, items)) => {
                let module = Module { parent: at, ..Module::default() };
                read_items(crate_, items, file, &below, module)?
            }
            None => {
                let besides = file.parent().unwrap_or(folder);
                let (child, below) = match path {
                    // Its children are beside it, as those of a mod.rs.
                    Some(path) => {
                        let child = besides.join(path);
                        let below = child.parent().unwrap_or(besides).to_owned();
                        (child, below)
                    }
                    None if folder.join(format!("{name}.rs")).exists() => {
                        (folder.join(format!("{name}.rs")), below)
                    }
                    None => (below.join("mod.rs"), below),
                };
                read_file(crate_, &child, &below, at)?
            }
        };
        crate_.modules[at].children.insert(name, index);
    }
    Ok(at)
}

/// The module that a line `Cycle:` of a comment names, if the attribute is such a line.
fn explained_cycle(attribute: &Attribute) -> Option<Option<Names>> {
    let text = text_of(attribute, "doc")?;
    let rest = text.trim().strip_prefix("Cycle:")?;
    let path = rest.split('`').nth(1);
    Some(path.map(|path| path.split("::").map(str::to_owned).collect()))
}

fn path_attribute(attribute: &Attribute) -> Option<String> {
    text_of(attribute, "path")
}

/// The text of an attribute of the form `name = "text"`.
fn text_of(attribute: &Attribute, name: &str) -> Option<String> {
    let syn::Meta::NameValue(meta) = &attribute.meta else { return None };
    let syn::Expr::Lit(literal) = &meta.value else { return None };
    let syn::Lit::Str(text) = &literal.lit else { return None };
    meta.path.is_ident(name).then(|| text.value())
}

/// Adds all names among tokens.
fn names_in(tokens: TokenStream, names: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => _ = names.insert(name.to_string()),
            TokenTree::Group(group) => names_in(group.stream(), names),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Returns true if something is compiled for tests only.
fn for_tests(attributes: &[Attribute]) -> bool {
    fn names_test(tokens: TokenStream) -> bool {
        let mut negated = false;
        tokens.into_iter().any(|token| match token {
            TokenTree::Ident(name) => {
                negated = name == "not";
                name == "test"
            }
            TokenTree::Group(group) => !negated && names_test(group.stream()),
            _ => false,
        })
    }
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) => list.path.is_ident("cfg") && names_test(list.tokens.clone()),
        syn::Meta::NameValue(_) => false,
    })
}

/// The attributes of an item.
fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name that an item defines.
fn name_of(item: &Item) -> Option<&syn::Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Macro(item) => item.ident.as_ref(),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

/// Notes what is in a module, and the modules that it declares.
struct Reader<'a> {
    module: Module,
    declared: Vec<&'a syn::ItemMod>,
}

impl Reader<'_> {
    fn import(&mut self, tree: &UseTree, mut path: Names, exported: bool) {
        let mut add = |path: Names, name: String| {
            self.module.imports.push(Import { name, path, exported });
        };
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.import(&tree.tree, path, exported);
            }
            UseTree::Name(tree) if tree.ident == "self" => {
                let name = path.last().cloned().unwrap_or_default();
                add(path, name);
            }
            UseTree::Name(tree) => {
                path.push(tree.ident.to_string());
                add(path, tree.ident.to_string());
            }
            UseTree::Rename(tree) => {
                if tree.ident != "self" {
                    path.push(tree.ident.to_string());
                }
                add(path, tree.rename.to_string());
            }
            UseTree::Glob(_) => self.module.globs.push(path),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, path.clone(), exported);
                }
            }
        }
    }

    /// Paths in what a macro is given or made of, which is tokens only.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Names::new();
        // After this many colons, or a dot.
        let (mut colons, mut dot) = (0, false);
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.note(std::mem::take(&mut path));
                    }
                    if !dot {
                        path.push(name.to_string());
                    }
                    (colons, dot) = (0, false);
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => {
                    (colons, dot) = (colons + 1, false);
                }
                TokenTree::Punct(punct) => {
                    self.note(std::mem::take(&mut path));
                    (colons, dot) = (0, punct.as_char() == '.');
                }
                TokenTree::Group(group) => {
                    self.note(std::mem::take(&mut path));
                    (colons, dot) = (0, false);
                    self.tokens(group.stream());
                }
                TokenTree::Literal(_) => (colons, dot) = (0, false),
            }
        }
        self.note(path);
    }

    fn note(&mut self, path: Names) {
        if !path.is_empty() {
            self.module.paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'ast> {
    fn visit_item(&mut self, item: &'ast Item) {
        if for_tests(attributes(item)) {
            return;
        }
        if let Some(name) = name_of(item) {
            self.module.items.insert(name.to_string());
        }
        if let Item::Macro(syn::ItemMacro { ident: None, mac, .. }) = item {
            names_in(mac.tokens.clone(), &mut self.module.in_macros);
        }
        match item {
            Item::Mod(module) => self.declared.push(module),
            Item::Use(item) => {
                let exported = !matches!(item.vis, Visibility::Inherited);
                self.import(&item.tree, Names::new(), exported);
            }
            Item::ExternCrate(item) if item.ident == "self" => {
                if let Some((_, name)) = &item.rename {
                    let (name, path) = (name.to_string(), vec!["crate".into()]);
                    self.module.imports.push(Import { name, path, exported: true });
                }
            }
            item => visit::visit_item(self, item),
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.note(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, macro_: &'ast syn::Macro) {
        self.tokens(macro_.tokens.clone());
        visit::visit_macro(self, macro_);
    }
}
