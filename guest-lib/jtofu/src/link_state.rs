//! The dead links that this node knows of, as listed by its kernel driver or `tofu-net`.
//!
//! The first line describes the machine, for example `shape 4x1x1x2x3x2 torus xyz`. Each further
//! line has a node and its ports whose links were reported dead, for example `1 0 0 0 2 1 X- B+`.

use std::env;
use std::path::Path;

use tofu_abi::Coords;
use tofu_abi::topology::{Port, Shape};

use crate::System;
use crate::env::vars;

/// The default places of the dead links: those of the kernel driver, and of `tofu-net`.
const PLACES: [&str; 2] = ["/proc/tofu/links", "/run/tofu/links"];
/// The longest file that is read, in bytes: twice as many as a node keeps.
const MAX_FILE: u64 = 1 << 17;

/// Returns the dead links of this node, if there are any. They come from the file that `TOFU_LINKS`
/// names, or from the first of those that the kernel driver and `tofu-net` write.
pub fn dead_links() -> Option<String> {
    let read = |path: &str| tofu_input::read_text(Path::new(path), MAX_FILE).ok();
    match env::var(vars::LINKS) {
        Ok(path) => read(&path),
        Err(_) => PLACES.into_iter().find_map(read),
    }
}

/// Returns the machine that the dead links are of, without any failures.
fn machine(text: &str) -> Option<System> {
    let mut words = text.lines().next()?.strip_prefix("shape ")?.split(' ');
    let shape: Shape = words.next()?.parse().ok()?;
    let axes = words.next().filter(|word| *word == "torus").and_then(|_| words.next())?;
    Some(System::new(shape.with_torus_letters(axes)))
}

/// Returns the links that a line is about, by their two ends.
fn links<'a>(shape: &'a Shape, line: &'a str) -> impl Iterator<Item = (Coords, Coords)> + 'a {
    let mut words = line.split(' ');
    let mut coords = [0; 6];
    let known = coords.iter_mut().all(|c| {
        let word = words.next().and_then(|word| word.parse().ok());
        word.map(|number| *c = number).is_some()
    });
    let node = Coords::from_array(coords);
    let ports = words.filter(move |_| known).filter_map(Port::from_name);
    ports.filter_map(move |port| Some((node, shape.neighbor(node, port)?)))
}

impl System {
    /// Returns the machine that [`dead_links`] describe, without the dead links. Invalid lines are
    /// skipped. Returns `None` if the line of the machine is invalid.
    pub fn from_dead_links(text: &str) -> Option<Self> {
        machine(text).map(|system| system.without_dead_links(text))
    }

    /// Removes the links that [`dead_links`] report dead from the machine. Lines that are invalid
    /// or about another machine are skipped.
    #[must_use]
    pub fn without_dead_links(self, text: &str) -> Self {
        let shape = *self.shape();
        if machine(text).is_none_or(|other| *other.shape() != shape) {
            return self;
        }
        let dead: Vec<_> = text.lines().skip(1).flat_map(|line| links(&shape, line)).collect();
        let before = self.clone();
        self.with_links_down(dead).unwrap_or(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD_LINKS: &str = "shape 4x1x1x2x3x2 torus xyz\n1 0 0 0 2 1 X- B+\n0 0 0 0 0 0 A\n";

    fn node(x: u8, a: u8, b: u8, c: u8) -> Coords {
        Coords::new(x, 0, 0, a, b, c)
    }

    #[test]
    fn dead_links_are_links_of_one_machine() {
        let system = System::from_dead_links(DEAD_LINKS).unwrap();
        let down = [
            (node(0, 0, 0, 0), node(0, 1, 0, 0)),
            (node(0, 0, 2, 1), node(1, 0, 2, 1)),
            (node(1, 0, 0, 1), node(1, 0, 2, 1)),
        ];
        assert_eq!(system.links_down(), down);
        let whole: System = "4x1x1x2x3x2".parse().unwrap();
        assert_eq!(whole.clone().without_dead_links(DEAD_LINKS), system);
        let other: System = "3x1x1x2x3x2".parse().unwrap();
        assert_eq!(other.clone().without_dead_links(DEAD_LINKS), other);
        let mesh = DEAD_LINKS.replace("torus xyz", "torus ");
        assert_eq!(whole.clone().without_dead_links(&mesh), whole, "X is a ring");
        assert!(System::from_dead_links(&mesh).is_some());
    }

    #[test]
    fn invalid_entries_are_left_out() {
        for text in ["", "\n", "1 0 0 0 2 1 X-\n", "shape 9x9 torus x", "shape 4x1x1x2x3x2"] {
            assert_eq!(System::from_dead_links(text), None, "{text:?}");
        }
        for line in ["1 0 0 X-", "9 0 0 0 0 0 A", "1 0 0 0 2 1 Q", "1 0 0 0 2 1 Y+", "-", ""] {
            let system = System::from_dead_links(&format!("shape 4x1x1x2x3x2 torus x\n{line}\n"));
            assert_eq!(system.unwrap().links_down(), [], "{line:?}");
        }
    }
}
