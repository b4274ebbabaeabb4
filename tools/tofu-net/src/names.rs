//! The names of nodes in a hosts file.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use tofu_abi::topology::Shape;
use tofu_ipotofu::hosts;

const BEGIN: &str = "# tofu0: nodes of the machine";
const END: &str = "# tofu0: end";
/// A hosts file is read as a whole for every name, so it gets the names of no more nodes.
const MAX_NODES: u32 = 4096;

/// The text of a hosts file with the nodes of a machine, replacing those that may be there.
///
/// A node's name no longer resolves to a loopback address, because other nodes would get that
/// address.
pub(crate) fn with_nodes(text: &str, shape: Shape, machine: u8) -> String {
    let mut result = String::new();
    let mut ours = false;
    for line in text.lines() {
        match line {
            BEGIN => ours = true,
            END => ours = false,
            _ if ours => {}
            _ if line.starts_with("127.") => {
                let is_node =
                    |word: &&str| word.starts_with("t-") && word.matches('-').count() == 6;
                let words: Vec<_> = line.split_whitespace().filter(|word| !is_node(word)).collect();
                if words.len() > 1 {
                    result += &words.join("\t");
                    result.push('\n');
                }
            }
            _ => {
                result += line;
                result.push('\n');
            }
        }
    }
    let _ = writeln!(result, "{BEGIN}");
    for host in hosts::all(shape, machine) {
        let _ = write!(result, "{host}");
    }
    let _ = writeln!(result, "{END}");
    result
}

/// Writes the nodes of a machine into a hosts file, unless there are too many. Returns whether it
/// has.
///
/// # Errors
///
/// If the file cannot be read or written.
pub fn write(path: &Path, shape: Shape, machine: u8) -> io::Result<bool> {
    if shape.nodes() > MAX_NODES {
        return Ok(false);
    }
    let before = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    let after = with_nodes(&before, shape, machine);
    if after != before {
        // Written beside it and then renamed: a reader finds either the old or the new file.
        let new = path.with_extension("tofu-new");
        fs::write(&new, after)?;
        fs::rename(&new, path)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_take_the_place_of_those_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        let shape = |text: &str| text.parse::<Shape>().unwrap();
        fs::write(&path, "127.0.0.1\tlocalhost t-0-0-0-0-0-0\n127.0.1.1 t-1-0-0-0-0-0\n::1 six\n")
            .unwrap();
        assert!(write(&path, shape("1x1x1x2x3x2"), 0).unwrap());
        assert!(write(&path, shape("2x1x1x1x1x1"), 0).unwrap());
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "127.0.0.1\tlocalhost\n::1 six\n# tofu0: nodes of the machine\n\
             10.0.0.1\tt-0-0-0-0-0-0 n0\nfd54:6f66:7500::ff:fe00:0\tt-0-0-0-0-0-0 n0\n\
             10.1.0.1\tt-1-0-0-0-0-0 n1\nfd54:6f66:7500::1ff:fe00:0\tt-1-0-0-0-0-0 n1\n\
             # tofu0: end\n"
        );
        assert!(!write(&path, shape("32x32x32x2x3x2"), 0).unwrap(), "too many");
    }
}
