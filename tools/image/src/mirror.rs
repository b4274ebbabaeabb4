//! Where Debian's packages come from: the host's own apt configuration, which is only read.

use std::path::{Path, PathBuf};

/// A source of packages in apt's configuration, with one address and one suite.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    uri: String,
    suite: String,
    components: Vec<String>,
}

/// Names of Debian releases. A suite of any other name belongs to another distribution, whose
/// packages are not used.
const RELEASES: &[&str] = &[
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "duke",
    "sid",
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
    "unstable",
];

/// Parses the one-line format (`sources.list`, `*.list`; see sources.list(5)).
fn parse_lines(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(rest) = line.strip_prefix("deb").filter(|rest| rest.starts_with([' ', '\t']))
        else {
            continue;
        };
        let mut rest = rest.trim_start();
        if let Some(options) = rest.strip_prefix('[') {
            let Some((_, after)) = options.split_once(']') else { continue };
            rest = after;
        }
        let mut words = rest.split_whitespace().map(str::to_owned);
        if let (Some(uri), Some(suite)) = (words.next(), words.next()) {
            sources.push(Source { uri, suite, components: words.collect() });
        }
    }
    sources
}

/// Parses the deb822 format (`*.sources`).
fn parse_stanzas(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    // Comments may occur within a stanza, so they are removed first.
    let lines: Vec<&str> =
        text.lines().map(str::trim_end).filter(|line| !line.starts_with('#')).collect();
    for stanza in lines.split(|line| line.is_empty()) {
        let field = |name: &str| {
            let mut value = String::new();
            let mut inside = false;
            for line in stanza {
                if line.starts_with([' ', '\t']) {
                    if inside {
                        value.push_str(line);
                    }
                } else if let Some((key, first)) = line.split_once(':') {
                    inside = key.eq_ignore_ascii_case(name);
                    if inside {
                        value.push_str(first);
                    }
                }
            }
            value.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let off = ["no", "false", "0", "off", "disable", "without"];
        if field("Enabled").first().is_some_and(|value| off.contains(&value.as_str())) {
            continue;
        }
        if !field("Types").iter().any(|kind| kind == "deb") {
            continue;
        }
        let components = field("Components");
        for uri in field("URIs") {
            for suite in field("Suites") {
                sources.push(Source { uri: uri.clone(), suite, components: components.clone() });
            }
        }
    }
    sources
}

/// Returns the addresses of Debian's main archive in `sources`, without the security archive.
fn archives(sources: &[Source]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for source in sources {
        let release = source.suite.split(['-', '/']).next().unwrap_or_default();
        let debian = RELEASES.contains(&release) && source.components.iter().any(|c| c == "main");
        let security = source.suite.contains("security") || source.uri.contains("security");
        let usable = ["http", "https", "mirror", "file:", "copy:", "tor+"]
            .iter()
            .any(|scheme| source.uri.starts_with(scheme));
        if debian && !security && usable && !found.contains(&source.uri) {
            found.push(source.uri.clone());
        }
    }
    found
}

/// Returns `uri`, and another address at which the same host would have the archive: a mirror may
/// serve the state of a past day under a longer path, and lack that day's backports.
fn with_fallback(uri: &str) -> Vec<String> {
    let mut uris = vec![uri.trim_end_matches('/').to_owned()];
    if let Some((scheme, rest)) = uri.split_once("://").filter(|(s, _)| s.starts_with("http")) {
        let host = rest.split('/').next().unwrap_or_default();
        let plain = format!("{scheme}://{host}/debian");
        if !uris.contains(&plain) {
            uris.push(plain);
        }
    }
    uris
}

/// Returns the addresses to try, best first, from the apt configuration in `etc` (usually
/// `/etc/apt`).
pub(crate) fn of_host(etc: &Path) -> Vec<String> {
    let mut files: Vec<PathBuf> = vec![etc.join("sources.list")];
    if let Ok(folder) = std::fs::read_dir(etc.join("sources.list.d")) {
        let mut more: Vec<PathBuf> = folder.flatten().map(|entry| entry.path()).collect();
        more.sort();
        files.extend(more);
    }
    let mut sources = Vec::new();
    for file in files {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => sources.extend(parse_lines(&text)),
            Some("sources") => sources.extend(parse_stanzas(&text)),
            _ => {}
        }
    }
    let mut uris: Vec<String> = Vec::new();
    for uri in archives(&sources).iter().flat_map(|uri| with_fallback(uri)) {
        if !uris.contains(&uri) {
            uris.push(uri);
        }
    }
    uris
}

/// Returns those parts of the host's apt configuration, as printed by `apt-config dump`, that are
/// needed to reach a mirror: proxies, certificates, time limits. Everything else (hooks, pins,
/// folders) is left out, because it is meant for the host only.
pub(crate) fn transport_settings(dump: &str) -> String {
    let wanted = |line: &str| {
        [
            "Acquire::http",
            "Acquire::https",
            "Acquire::tor",
            "Acquire::ForceIPv4",
            "Acquire::ForceIPv6",
            "Acquire::Check-Valid-Until",
            "Acquire::Check-Date",
            "Acquire::Max-FutureTime",
        ]
        .iter()
        .any(|name| line.starts_with(name))
    };
    // An empty value in the dump is the head of a list or a default, neither of which needs
    // repeating.
    dump.lines()
        .filter(|line| wanted(line) && line.ends_with(';') && !line.ends_with(" \"\";"))
        .map(|line| format!("{line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sources.list.d")).unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        of_host(folder.path())
    }

    #[test]
    fn one_line_format() {
        let text = "# comment\n\
            deb-src http://src.example/debian trixie main\n\
            deb cdrom:[Debian] trixie main\n\
            deb [arch=amd64 signed-by=/x.gpg] https://a.example/debian/ bookworm main contrib # x\n\
            deb http://b.example/debian-security bookworm-security main\n\
            deb http://c.example/ubuntu noble main\n\
            debug http://d.example/debian trixie main\n";
        assert_eq!(host(&[("sources.list", text)]), ["https://a.example/debian"]);
    }

    #[test]
    fn deb822_format() {
        let text = "Types: deb deb-src\n\
            # a comment inside\n\
            URIs: http://a.example/archive/debian/20250520T000000Z\n\
            Suites: bookworm bookworm-updates\n\
            Components: main\n\
            Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\
            Types: deb\nURIs: http://a.example/archive/debian-security/20250520T000000Z\n\
            Suites: bookworm-security\nComponents: main\n\n\
            Enabled: no\nTypes: deb\nURIs: http://off.example/debian\nSuites: sid\n\
            Components: main\n\n\
            types: deb\nuris:\n http://b.example/debian\n https://c.example/d\nsuites: stable\n\
            components: main\n";
        assert_eq!(
            host(&[("sources.list.d/debian.sources", text)]),
            [
                "http://a.example/archive/debian/20250520T000000Z",
                "http://a.example/debian",
                "http://b.example/debian",
                "https://c.example/d",
                "https://c.example/debian",
            ]
        );
    }

    #[test]
    fn disabled_and_foreign_sources_are_ignored() {
        let debian = "deb http://a.example/debian trixie main\n";
        assert_eq!(host(&[("sources.list.d/x.list.disabled", debian)]), Vec::<String>::new());
        let node = "Types: deb\nURIs: https://n.example/node\nSuites: nodistro\nComponents: main\n";
        assert_eq!(host(&[("sources.list.d/node.sources", node)]), Vec::<String>::new());
        assert_eq!(of_host(Path::new("/nonexistent")), Vec::<String>::new());
    }

    #[test]
    fn only_transport_settings_are_taken_over() {
        let dump = "APT::Update::Post-Invoke:: \"rm -f /x\";\n\
            Acquire::http::Proxy \"http://proxy.example:3128\";\n\
            Acquire::http \"\";\nAcquire::Languages \"de\";\n\
            Acquire::Check-Valid-Until \"false\";\nDir::State \"/y\";\n";
        assert_eq!(
            transport_settings(dump),
            "Acquire::http::Proxy \"http://proxy.example:3128\";\n\
             Acquire::Check-Valid-Until \"false\";\n"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_parsed(
            text in "(deb|Types: deb|URIs:|Suites:|#|\\[|\\]| |\n|x|\u{e4}){0,40}",
        ) {
            parse_lines(&text);
            archives(&parse_stanzas(&text));
        }
    }
}
