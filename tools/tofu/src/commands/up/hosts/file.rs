//! The file with the hosts of a machine.

use tofu_ui::printable;

/// The port of a shard if its line does not give one.
const PORT: u16 = 7700;

/// A line of the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// Its number, from 1.
    pub(super) line: usize,
    /// The arguments of ssh(1).
    pub(super) name: String,
    /// The address at which its shard listens.
    pub(super) address: String,
    /// The command there, if it must not be copied.
    pub(super) tofu: Option<String>,
}

/// Reads the lines of a file.
pub(super) fn read(text: &str) -> Result<Vec<Host>, (usize, String)> {
    let mut hosts = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or_default();
        let mut words = text.split_whitespace();
        let Some(name) = words.next() else { continue };
        let (address, tofu) = (words.next(), words.next());
        if name.starts_with('-') || words.next().is_some() {
            let allowed = "a line is [USER@]HOST [ADDRESS:PORT [PATH]]";
            return Err((line, format!("{}: {allowed}", printable(text.trim()))));
        }
        let host = name.rsplit('@').next().unwrap_or(name);
        let address = address.map_or_else(|| format!("{host}:{PORT}"), str::to_owned);
        let (name, tofu) = (name.to_owned(), tofu.map(str::to_owned));
        hosts.push(Host { line, name, address, tofu });
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_a_host() {
        let hosts = read("# all\nnode1\n\nme@node2 10.0.0.2:7000 # comment\nn3 n3:1 /opt/tofu\n");
        let host = |line, name: &str, address: &str, tofu: Option<&str>| {
            let (name, address) = (name.to_owned(), address.to_owned());
            Host { line, name, address, tofu: tofu.map(str::to_owned) }
        };
        let expected = [
            host(2, "node1", "node1:7700", None),
            host(4, "me@node2", "10.0.0.2:7000", None),
            host(5, "n3", "n3:1", Some("/opt/tofu")),
        ];
        assert_eq!(hosts.unwrap(), expected);
        for bad in ["ok\n-oProxyCommand=x\n", "ok\na b c d\n"] {
            let (line, why) = read(bad).unwrap_err();
            assert!(line == 2 && why.contains("a line is [USER@]HOST"), "{why}");
        }
    }
}
