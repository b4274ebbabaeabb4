//! The live state of a device, for tests.

use tofu_inspect::{Inspect, Query, Value, look};

/// The whole value at a path of a tree.
///
/// # Panics
///
/// If there is none, or it is not complete.
pub fn see(what: &dyn Inspect, path: &str) -> Value {
    let path: Vec<_> = path.split('/').filter(|name| !name.is_empty()).collect();
    let query = Query { path: &path, depth: 99, limit: usize::MAX };
    let seen = look(what, &query).unwrap_or_else(|missing| panic!("{path:?}: {missing:?}"));
    assert!(seen.complete);
    seen.value
}

/// A part of a tree.
///
/// # Panics
///
/// If it is not there.
pub fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('/').fold(value, |value, name| match value {
        Value::Tree(parts) => parts
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, part)| part)
            .unwrap_or_else(|| panic!("no {name} in {value:?}")),
        _ => panic!("no parts in {value:?}"),
    })
}

/// A number in a tree.
///
/// # Panics
///
/// If there is none.
pub fn number(value: &Value, path: &str) -> u64 {
    match at(value, path) {
        Value::Number(number) => *number,
        other => panic!("{path} is {other:?}"),
    }
}

/// The text of a leaf.
///
/// # Panics
///
/// If it is not a text.
pub fn text(value: &Value) -> &str {
    match value {
        Value::Text(text) => text,
        other => panic!("{other:?}"),
    }
}

/// The parts of a tree.
///
/// # Panics
///
/// If it is a leaf.
pub fn parts(value: &Value) -> &[(String, Value)] {
    match value {
        Value::Tree(parts) => parts,
        other => panic!("{other:?}"),
    }
}
