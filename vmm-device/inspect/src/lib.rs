//! Structured inspection of live state, for debugging.
//!
//! A type that implements [`Inspect`] reports its state to a [`Visit`], as a value or as a tree of
//! named parts. The macro [`inspect!`] does that for a struct. It destructures the struct with all
//! of its fields, so code with a new field does not compile until the macro says how to show it.
//!
//! A [`Query`] selects what is shown: it has a path, a depth and a limit. Parts that are not on the
//! path or too deep are not visited at all, so none of their locks are taken. A tree is never
//! larger than the limit. The idea is that of OpenVMM's `inspect`.
#![forbid(unsafe_code)]

#[cfg(feature = "serde")]
mod json;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The placeholder of a tree below the depth of a [`Query`].
pub const CUT: &str = "...";

/// The most names at one place that a [`Missing`] lists.
const MAX_NAMES: usize = 512;

/// State that can be inspected.
pub trait Inspect {
    /// Reports the state. Data behind a lock is copied, or has few parts, so that no thread waits
    /// for long.
    fn inspect(&self, visit: Visit<'_>);
}

/// The description of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing is there.
    None,
    /// Yes or no.
    Flag(bool),
    /// A number that people read in decimal.
    Number(u64),
    /// Anything else, also numbers in hexadecimal. A guest may have written it: code that prints it
    /// must remove control characters.
    Text(String),
    /// Parts with names, in an order that makes sense to people.
    Tree(Vec<(String, Value)>),
}

/// The target.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// Names that lead to it, outermost first; capitals do not matter.
    pub path: &'a [&'a str],
    /// Levels below it that are shown; those below are [`CUT`].
    pub depth: usize,
    /// Values and trees that are shown at most.
    pub limit: usize,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The description of this value.
    pub value: Value,
    /// Nothing was left out because of the limit.
    pub complete: bool,
}

/// There is nothing at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Index in the path of the first name that does not exist.
    pub at: usize,
    /// Names that exist there; none if what was found before has no parts.
    pub names: Vec<String>,
}

/// Looks at something.
///
/// # Errors
///
/// [`Missing`] if the path does not exist.
pub fn look(what: &dyn Inspect, query: &Query<'_>) -> Result<Seen, Missing> {
    let mut state = State { left: query.limit.max(1), cut: false, missing: None };
    let mut value = Value::None;
    let visit =
        Visit { path: query.path, at: 0, depth: query.depth, state: &mut state, into: &mut value };
    what.inspect(visit);
    match state.missing {
        Some(missing) => Err(missing),
        None => Ok(Seen { value, complete: !state.cut }),
    }
}

#[derive(Debug)]
struct State {
    /// Values and trees that may still be shown.
    left: usize,
    cut: bool,
    missing: Option<Missing>,
}

/// A visit to one value. Its [`Inspect`] calls at most one of the methods.
#[derive(Debug)]
pub struct Visit<'a> {
    path: &'a [&'a str],
    /// Names of the path that were found so far.
    at: usize,
    depth: usize,
    state: &'a mut State,
    into: &'a mut Value,
}

impl Visit<'_> {
    /// Reports a value.
    pub fn value(self, value: Value) {
        if !self.path.is_empty() {
            self.state.missing = Some(Missing { at: self.at, names: Vec::new() });
            return;
        }
        *self.into = value;
    }

    /// Reports a text.
    pub fn text(self, text: impl fmt::Display) {
        self.value(Value::Text(text.to_string()));
    }

    /// Reports a register with these fields, by name.
    pub fn register(self, value: u64, fields: &[(impl fmt::Display, impl Inspect)]) {
        if fields.is_empty() {
            return self.text(format_args!("{value:#x}"));
        }
        self.tree(|tree| {
            tree.add("value", &Hex(value));
            fields.iter().for_each(|(name, field)| tree.add(name, field));
        });
    }

    /// It has parts, which `parts` adds.
    pub fn tree(self, parts: impl FnOnce(&mut Tree<'_>)) {
        let Self { path, at, depth, state, into } = self;
        if path.is_empty() && depth == 0 {
            *into = Value::Text(CUT.to_owned());
            return;
        }
        let mut tree =
            Tree { path, at, depth, state, found: None, parts: Vec::new(), names: Vec::new() };
        parts(&mut tree);
        let Tree { state, found, parts, names, .. } = tree;
        match found {
            Some(value) => *into = value,
            None if path.is_empty() => *into = Value::Tree(parts),
            None => state.missing = Some(Missing { at, names }),
        }
    }
}

/// A visit to a value with parts.
#[derive(Debug)]
pub struct Tree<'a> {
    path: &'a [&'a str],
    at: usize,
    depth: usize,
    state: &'a mut State,
    /// The target of the path.
    found: Option<Value>,
    parts: Vec<(String, Value)>,
    /// Names beside the path.
    names: Vec<String>,
}

impl Tree<'_> {
    /// Shows a part.
    pub fn add(&mut self, name: impl fmt::Display, what: &dyn Inspect) {
        self.add_with(name, |visit| what.inspect(visit));
    }

    /// Shows a part by `show`, which is called only if the query selects the part.
    pub fn add_with(&mut self, name: impl fmt::Display, show: impl FnOnce(Visit<'_>)) {
        let name = name.to_string();
        let mut value = Value::None;
        let into = &mut value;
        if let [wanted, path @ ..] = self.path {
            if self.found.is_some() || !name.eq_ignore_ascii_case(wanted) {
                if self.names.len() < MAX_NAMES {
                    self.names.push(name);
                }
                return;
            }
            let (at, depth) = (self.at + 1, self.depth);
            show(Visit { path, at, depth, state: self.state, into });
            self.found = Some(value);
            return;
        }
        if self.state.left == 0 {
            self.state.cut = true;
            return;
        }
        self.state.left -= 1;
        let depth = self.depth.saturating_sub(1);
        show(Visit { path: &[], at: self.at, depth, state: self.state, into });
        self.parts.push((name, value));
    }
}

impl<T: Inspect + ?Sized> Inspect for &T {
    fn inspect(&self, visit: Visit<'_>) {
        (**self).inspect(visit);
    }
}

impl<T: Inspect + ?Sized> Inspect for Box<T> {
    fn inspect(&self, visit: Visit<'_>) {
        (**self).inspect(visit);
    }
}

impl<T: Inspect + ?Sized> Inspect for Arc<T> {
    fn inspect(&self, visit: Visit<'_>) {
        (**self).inspect(visit);
    }
}

impl<T: Inspect> Inspect for Option<T> {
    fn inspect(&self, visit: Visit<'_>) {
        match self {
            Some(what) => what.inspect(visit),
            None => visit.value(Value::None),
        }
    }
}

impl<T: Inspect> Inspect for [T] {
    /// By their numbers.
    fn inspect(&self, visit: Visit<'_>) {
        visit.tree(|tree| self.iter().enumerate().for_each(|(n, what)| tree.add(n, what)));
    }
}

impl<T: Inspect, const N: usize> Inspect for [T; N] {
    fn inspect(&self, visit: Visit<'_>) {
        self.as_slice().inspect(visit);
    }
}

impl<T: Inspect> Inspect for Vec<T> {
    fn inspect(&self, visit: Visit<'_>) {
        self.as_slice().inspect(visit);
    }
}

impl<T: Inspect> Inspect for VecDeque<T> {
    fn inspect(&self, visit: Visit<'_>) {
        visit.tree(|tree| self.iter().enumerate().for_each(|(n, what)| tree.add(n, what)));
    }
}

impl Inspect for bool {
    fn inspect(&self, visit: Visit<'_>) {
        visit.value(Value::Flag(*self));
    }
}

macro_rules! numbers {
    ($($number:ty),*) => { $(
        impl Inspect for $number {
            fn inspect(&self, visit: Visit<'_>) {
                visit.value(Value::Number(*self as u64));
            }
        }
    )* };
}

numbers!(u8, u16, u32, u64, usize);

impl Inspect for str {
    fn inspect(&self, visit: Visit<'_>) {
        visit.text(self);
    }
}

impl Inspect for String {
    fn inspect(&self, visit: Visit<'_>) {
        visit.text(self);
    }
}

/// Shown as its [`Display`](fmt::Display) has it.
#[derive(Clone, Copy, Debug)]
pub struct Said<T>(pub T);

impl<T: fmt::Display> Inspect for Said<T> {
    fn inspect(&self, visit: Visit<'_>) {
        visit.text(&self.0);
    }
}

/// A number in hexadecimal.
#[derive(Clone, Copy, Debug)]
pub struct Hex(pub u64);

impl Inspect for Hex {
    fn inspect(&self, visit: Visit<'_>) {
        visit.text(format_args!("{:#x}", self.0));
    }
}

/// A time in nanoseconds on an internal clock; `u64::MAX` means never.
#[derive(Clone, Copy, Debug)]
pub struct Time(pub u64);

impl Inspect for Time {
    fn inspect(&self, visit: Visit<'_>) {
        match self.0 {
            u64::MAX => visit.text("never"),
            time => visit.value(Value::Number(time)),
        }
    }
}

/// Places by their numbers, without those where nothing is.
#[derive(Clone, Copy, Debug)]
pub struct Sparse<'a, T>(pub &'a [Option<T>]);

impl<T: Inspect> Inspect for Sparse<'_, T> {
    fn inspect(&self, visit: Visit<'_>) {
        visit.tree(|tree| {
            for (n, what) in self.0.iter().enumerate() {
                if let Some(what) = what {
                    tree.add(n, what);
                }
            }
        });
    }
}

impl Inspect for AtomicBool {
    fn inspect(&self, visit: Visit<'_>) {
        self.load(Ordering::Relaxed).inspect(visit);
    }
}

impl Inspect for AtomicU64 {
    fn inspect(&self, visit: Visit<'_>) {
        self.load(Ordering::Relaxed).inspect(visit);
    }
}

/// Implements [`Inspect`] for a struct, as a tree of its fields.
///
/// All fields must be listed, or it does not compile. A field can be followed by its format: `as
/// hex` for a number in hexadecimal, `as said` and `as debug` by its `Display` and `Debug`, `as
/// time` for a [`Time`], `as len` for the length of a collection, `as sparse` for [`Sparse`], `as
/// skip` for a field that is not shown. Anything else is a tuple struct around a copy of the field.
///
/// ```
/// struct Ring { base: u64, next: u32, held: Vec<u64> }
/// tofu_inspect::inspect!(Ring { base as hex, next, held as len });
///
/// let ring = Ring { base: 0x1000, next: 3, held: vec![7] };
/// let query = tofu_inspect::Query { path: &["base"], depth: 1, limit: 10 };
/// let seen = tofu_inspect::look(&ring, &query).unwrap();
/// assert_eq!(seen.value, tofu_inspect::Value::Text("0x1000".into()));
/// ```
#[macro_export]
macro_rules! inspect {
    ($type:ty { $($field:ident $(as $how:ident)?),* $(,)? }) => {
        impl $crate::Inspect for $type {
            fn inspect(&self, visit: $crate::Visit<'_>) {
                let Self { $($field),* } = self;
                visit.tree(|tree| {
                    $( $crate::inspect!(@field tree, $field $(, $how)?); )*
                });
            }
        }
    };
    (@field $tree:ident, $field:ident) => { $tree.add(stringify!($field), $field) };
    (@field $tree:ident, $field:ident, hex) => {
        $tree.add(stringify!($field), &$crate::Hex(u64::from(*$field)))
    };
    (@field $tree:ident, $field:ident, said) => {
        $tree.add(stringify!($field), &$crate::Said($field))
    };
    (@field $tree:ident, $field:ident, debug) => {
        $tree.add(stringify!($field), &$crate::Said(format_args!("{:?}", $field)))
    };
    (@field $tree:ident, $field:ident, time) => {
        $tree.add(stringify!($field), &$crate::Time(*$field))
    };
    (@field $tree:ident, $field:ident, len) => { $tree.add(stringify!($field), &$field.len()) };
    (@field $tree:ident, $field:ident, sparse) => {
        $tree.add(stringify!($field), &$crate::Sparse($field))
    };
    (@field $tree:ident, $field:ident, skip) => { let _ = $field; };
    (@field $tree:ident, $field:ident, $wrapper:ident) => {
        $tree.add(stringify!($field), &$wrapper(*$field))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Leaf {
        base: u64,
        on: bool,
    }

    inspect!(Leaf { base as hex, on });

    struct Root {
        name: &'static str,
        leaves: Vec<Leaf>,
        none: Option<u8>,
        until: u64,
        secret: u8,
    }

    inspect!(Root { name, leaves, none, until as time, secret as skip });

    fn root(leaves: u64) -> Root {
        let leaf = |n| Leaf { base: 0x100 * n, on: n % 2 == 0 };
        let leaves = (0..leaves).map(leaf).collect();
        Root { name: "root", leaves, none: None, until: u64::MAX, secret: 7 }
    }

    fn see(root: &Root, path: &[&str], depth: usize, limit: usize) -> Result<Seen, Missing> {
        look(root, &Query { path, depth, limit })
    }

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    #[test]
    fn tree_has_what_the_types_describe() {
        let seen = see(&root(1), &[], 9, 99).unwrap();
        let leaf = vec![("base".to_owned(), text("0x0")), ("on".to_owned(), Value::Flag(true))];
        let tree = vec![
            ("name".to_owned(), text("root")),
            ("leaves".to_owned(), Value::Tree(vec![("0".to_owned(), Value::Tree(leaf))])),
            ("none".to_owned(), Value::None),
            ("until".to_owned(), text("never")),
        ];
        assert_eq!(seen, Seen { value: Value::Tree(tree), complete: true });
    }

    #[test]
    fn path_ignores_case() {
        assert_eq!(see(&root(3), &["Leaves", "2", "BASE"], 9, 1).unwrap().value, text("0x200"));
        assert_eq!(see(&root(3), &["leaves"], 0, 9).unwrap().value, text(CUT));
    }

    #[test]
    fn unknown_path_lists_known_ones() {
        let missing = see(&root(2), &["leaves", "2"], 9, 9).unwrap_err();
        assert_eq!(missing, Missing { at: 1, names: vec!["0".into(), "1".into()] });
        let missing = see(&root(2), &["name", "x"], 9, 9).unwrap_err();
        assert_eq!(missing, Missing { at: 1, names: vec![] });
        let missing = see(&root(5000), &["leaves", "x"], 9, 9).unwrap_err();
        assert_eq!(missing.names.len(), MAX_NAMES);
    }

    fn size(value: &Value) -> usize {
        match value {
            Value::Tree(parts) => parts.iter().map(|(_, part)| 1 + size(part)).sum(),
            _ => 0,
        }
    }

    #[test]
    fn tree_is_limited_in_size() {
        for limit in [1, 2, 10, 100] {
            let seen = see(&root(1000), &[], 9, limit).unwrap();
            assert_eq!((size(&seen.value), seen.complete), (limit, false));
        }
    }
}
