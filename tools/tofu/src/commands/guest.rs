//! `tofu guest`: the shipped guest programs and a template for new ones.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;
use tofu_programs::{BARE, LINUX, Shipped, for_bare, for_linux};

/// List the shipped guest programs, or create one of your own
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum GuestCommand {
    /// List the shipped guest programs
    Ls {
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    /// Create a new guest program from a template
    ///
    /// Creates the folder DIR with a crate that builds into an ELF file for
    /// `tofu up --guest`. The last part of DIR is the crate's name.
    New {
        /// The folder to create
        dir: PathBuf,
    },
}

/// Runs `tofu guest`.
pub(crate) fn run(command: &GuestCommand) -> anyhow::Result<u8> {
    match command {
        GuestCommand::Ls { json } => list(*json),
        GuestCommand::New { dir } => {
            // Guest crates refer to the runtime by path, because none of this is published.
            let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
            let tree = fs::canonicalize(&tree)
                .with_context(|| format!("the source tree {} is gone", tree.display()))?;
            create(dir, &tree)?;
            let mut out = io::stdout().lock();
            writeln!(out, "created {0}; build and run it with\n  cd {0}", dir.display())?;
            writeln!(out, "  cargo build --release")?;
            writeln!(out, "  tofu up --guest ./target/release/{}", crate_name(dir)?)?;
            Ok(0)
        }
    }
}

fn list(json: bool) -> anyhow::Result<u8> {
    let mut out = io::stdout().lock();
    let is_bare = |name: &str| for_bare(name).is_some();
    let linux_only: Vec<&Shipped> = LINUX.iter().filter(|guest| !is_bare(guest.name)).collect();
    if json {
        let bytes = |guest: &Shipped| guest.image.len();
        let entry = |guest: &Shipped, bare: Option<usize>, linux: Option<usize>| {
            json!({ "name": guest.name, "summary": guest.summary, "bytes": bare,
                    "linux_bytes": linux })
        };
        let both = BARE.iter().map(|g| entry(g, Some(bytes(g)), for_linux(g.name).map(bytes)));
        let only = linux_only.iter().map(|g| entry(g, None, Some(bytes(g))));
        writeln!(out, "{}", serde_json::Value::from_iter(both.chain(only)))?;
        return Ok(0);
    }
    let all = BARE.iter().chain(LINUX);
    let width = all.map(|guest| guest.name.len()).max().unwrap_or(0);
    for guest in BARE {
        writeln!(out, "{:width$}  {}", guest.name, guest.summary)?;
    }
    writeln!(out, "\n  on Linux nodes only:")?;
    for guest in linux_only {
        writeln!(out, "  {:width$}  {}", guest.name, guest.summary)?;
    }
    Ok(0)
}

/// The files of a new guest crate: path, and text with `@NAME@` (the crate) and the places
/// of [`CRATES`] to be filled in.
const TEMPLATE: [(&str, &str); 5] = [
    ("Cargo.toml", include_str!("../../template/Cargo.toml.in")),
    ("build.rs", include_str!("../../template/build.rs.in")),
    ("src/main.rs", include_str!("../../template/main.rs.in")),
    (".cargo/config.toml", include_str!("../../template/config.toml.in")),
    (".gitignore", "target/\n"),
];

/// The dependencies of a guest crate: the place in the text for its path, as a TOML string, and its
/// folder in the source tree.
const CRATES: [(&str, &str); 3] =
    [("@BARE@", "guest-lib/bare"), ("@DRIVER@", "guest-lib/driver"), ("@GUESTS@", "tools/guests")];

/// Creates a guest crate in `dir`, which must not exist yet or be empty.
fn create(dir: &Path, tree: &Path) -> anyhow::Result<()> {
    let name = crate_name(dir)?;
    let mut values = vec![("@NAME@", name)];
    for (place, folder) in CRATES {
        let path = tree.join(folder);
        if !path.join("Cargo.toml").is_file() {
            bail!(
                "the crates for guests are not at {}; run tofu from its source tree",
                path.display()
            );
        }
        let path = path.to_str().context("the path of the source tree is not UTF-8")?;
        values.push((place, toml::Value::from(path).to_string()));
    }
    if dir.exists() && (!dir.is_dir() || fs::read_dir(dir)?.next().is_some()) {
        bail!("{} exists already and is not an empty folder", dir.display());
    }
    for (path, text) in TEMPLATE {
        let path: PathBuf = dir.join(path);
        let text =
            values.iter().fold(text.to_owned(), |text, (place, value)| text.replace(place, value));
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(dir))?;
            fs::write(&path, text)
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The crate's name: the last part of the folder's path.
fn crate_name(dir: &Path) -> anyhow::Result<String> {
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut letters = name.chars();
    let good = letters.next().is_some_and(|c| c.is_ascii_lowercase())
        && letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c))
        && name.len() <= 64;
    if !good {
        bail!(
            "guest new {}: the last part names the crate and must be lower-case letters, digits, \
             - and _, starting with a letter",
            dir.display()
        );
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(crate_name(Path::new("a/my-guest2")).unwrap(), "my-guest2");
        for bad in ["", "/", "..", "2fast", "My", "a b", "a\"b", &"x".repeat(65)] {
            assert!(crate_name(Path::new(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn new_crate_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree \"quoted\"");
        let dir = folder.path().join("mine");
        let message = create(&dir, &tree).unwrap_err().to_string();
        assert!(message.starts_with("the crates for guests are not at "), "{message}");
        assert!(!dir.exists());

        for (_, folder) in CRATES {
            fs::create_dir_all(tree.join(folder)).unwrap();
            fs::write(tree.join(folder).join("Cargo.toml"), "").unwrap();
        }
        create(&dir, &tree).unwrap();
        for (path, _) in TEMPLATE {
            let text = fs::read_to_string(dir.join(path)).unwrap();
            assert!(!text.contains('@'), "{path} has a place that was not filled in:\n{text}");
        }
        let manifest = fs::read_to_string(dir.join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        assert_eq!(manifest["package"]["name"].as_str(), Some("mine"));
        for (krate, folder) in [
            ("tofu-bare", "guest-lib/bare"),
            ("tofu-driver", "guest-lib/driver"),
            ("tofu-guests", "tools/guests"),
        ] {
            let path = manifest["dependencies"][krate]["path"].as_str().unwrap();
            assert_eq!(Path::new(path), tree.join(folder));
        }

        let message = create(&dir, &tree).unwrap_err().to_string();
        assert!(message.ends_with("mine exists already and is not an empty folder"), "{message}");
    }
}
