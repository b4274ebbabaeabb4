//! The commands of README.md, of the page of tasks and of the quick start, as they stand there, in
//! their order.
//!
//! Each runs in a shell, in an empty folder where `guest-lib` and `ci` are links to those of the
//! tree, and `target/release` to the folder of the command; `tofu` is on the path. `cargo run`
//! builds and runs the command if it is the release build, and only runs any other command. A
//! command that is not named in [`OTHERWISE`] ends by itself with exit code 0.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tofu_linux_tests::namespace::Namespace;
use tofu_linux_tests::{Image, MOMENT, Place, Running, interrupt, tofu};

/// The treatment of a command that does not end by itself, or cannot run here.
#[derive(Clone, Copy)]
enum How {
    /// It is a machine: the commands after it wait for this text, and Ctrl-C ends it at the end of
    /// its block, or before the next machine.
    Machine(&'static str),
    /// It runs until Ctrl-C: the commands after it wait for this text.
    Beside(&'static str),
    /// It makes a TAP interface: in a network namespace, or not at all.
    Gateway(&'static str),
    /// It ends by itself, after everything that runs beside it.
    Last,
    /// Something else runs it, or nothing does.
    Not(&'static str),
}
use How::{Beside, Gateway, Last, Machine, Not};

/// The page, the command, and how it runs.
const OTHERWISE: [(&str, &str, How); 14] = [
    (README, "cargo run --release -- up --linux", Machine(READY)),
    (README, "ci/test", Not("is what runs this test")),
    (TASKS, "tofu up --linux --shape 3x1x1x1x1x1 --gateway 2,0,0,0,0,0", Gateway(READY)),
    (TASKS, "tofu forward 8080:0:80", Beside("8080")),
    (TASKS, "tofu capture 0 -w node0.pcapng", Beside("capturing at")),
    (TASKS, "tofu up --linux --boot tofu", Machine(READY)),
    (TASKS, "tofu view", Beside("http://")),
    (TASKS, "tofu top", Not("is for terminals; a test of the command looks at it")),
    (TASKS, "tofu trace --result failed", Beside("tracing")),
    (TASKS, "tofu down", Last),
    (
        TASKS,
        "tofu image build --kernel driver-cloud",
        Not("compiles the driver; the tests of the driver run its image"),
    ),
    (TASKS, "tofu up --linux --driver tofu", Not("the tests of the driver do")),
    (TASKS, "tofu serve", Beside("socket")),
    (TASKS, "tofu bench", Not("measures for minutes")),
];
const README: &str = "README.md";
const TASKS: &str = "docs/src/user/tasks.md";
const QUICK_START: &str = "docs/src/user/quick-start.md";
/// The output of a machine once its nodes are up.
const READY: &str = "is ready";

/// The tree.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// The blocks of shell commands of a page, without their comments.
fn blocks(page: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while lines.any(|line| line == "```sh") {
        let block = lines.by_ref().take_while(|line| *line != "```");
        let commands = block.map(|line| line.split(" #").next().unwrap().trim().to_owned());
        blocks.push(commands.filter(|line| !line.is_empty() && !line.starts_with('#')).collect());
    }
    blocks
}

fn how(page: &str, command: &str) -> Option<How> {
    OTHERWISE.iter().find(|row| (row.0, row.1) == (page, command)).map(|row| row.2)
}

/// A shell in the folder of a reader who has cloned the tree.
struct Reader<'a> {
    place: &'a Place,
    folder: PathBuf,
    path: OsString,
}

impl<'a> Reader<'a> {
    fn new(place: &'a Place) -> Self {
        let folder = place.path().join("clone");
        let bin = place.path().join("bin");
        fs::create_dir(&folder).unwrap();
        fs::create_dir(&bin).unwrap();
        let tofu = tofu();
        let built = tofu.parent().unwrap();
        fs::create_dir(folder.join("target")).unwrap();
        symlink(built, folder.join("target/release")).unwrap();
        for name in ["guest-lib", "ci", "docs"] {
            symlink(root().join(name), folder.join(name)).unwrap();
        }
        symlink(&tofu, bin.join("tofu")).unwrap();
        // `cargo run --release -- ...` of the tree, from this folder.
        let cargo = bin.join("cargo");
        let run = if built.ends_with("release") {
            format!(
                "'{}' run --quiet --locked --target-dir '{}' --manifest-path '{}' --release --",
                env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()),
                built.parent().unwrap().display(),
                root().join("Cargo.toml").display()
            )
        } else {
            format!("'{}'", tofu.display())
        };
        let script = format!(
            "#!/bin/sh\n[ \"$1 $2 $3\" = 'run --release --' ] || exit 64\nshift 3\n\
             exec {run} \"$@\"\n"
        );
        fs::write(&cargo, script).unwrap();
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
        let mut path = OsString::from(bin);
        path.push(":");
        path.push(env::var_os("PATH").unwrap_or_default());
        Self { place, folder, path }
    }

    fn command(&self, text: &str) -> Command {
        let mut command = Command::new("bash");
        // The command must get the signals that are sent to the shell.
        command.args(["-c", &format!("cd '{}' && exec {text} 2>&1", self.folder.display())]);
        command.env("PATH", &self.path).env("XDG_RUNTIME_DIR", self.place.path());
        command.env_remove("RUST_LOG");
        command
    }

    /// Starts a command that runs until Ctrl-C, and waits for a line with this text.
    fn start(command: Command, ready: &str) -> Running {
        let mut running = Running::start(command, b"");
        while !running.line().contains(ready) {}
        running
    }

    /// Runs the commands of a page.
    fn follow(&self, page: &str) {
        for block in blocks(page) {
            let mut machine: Option<Running> = None;
            let mut beside: Vec<Running> = Vec::new();
            for text in block {
                let how = how(page, &text);
                match how {
                    None | Some(Last) => {
                        if matches!(how, Some(Last)) {
                            end(beside.drain(..));
                        }
                        let said = Running::start(self.command(&text), b"");
                        said.end(Duration::from_secs(300)).ok();
                    }
                    Some(Not(why)) => eprintln!("not run: {page}: {text}: {why}"),
                    Some(Machine(ready)) => {
                        end(beside.drain(..).chain(machine.take()));
                        machine = Some(Self::start(self.command(&text), ready));
                    }
                    Some(Beside(ready)) => beside.push(Self::start(self.command(&text), ready)),
                    Some(Gateway(ready)) => {
                        let Some(namespace) = Namespace::new() else {
                            break;
                        };
                        end(beside.drain(..).chain(machine.take()));
                        let command = namespace.command(&self.command(&text));
                        machine = Some(Self::start(command, ready));
                        // The interface ends with the machine; only the name of the namespace is
                        // removed here.
                        drop(namespace);
                    }
                }
            }
            end(beside.into_iter().chain(machine));
        }
    }
}

/// Ctrl-C, for each.
fn end(running: impl Iterator<Item = Running>) {
    for running in running {
        interrupt(running.id());
        let said = running.end(MOMENT);
        assert!(matches!(said.code, Some(0 | 130)), "{said:?}");
    }
}

#[test]
fn commands_of_the_pages_run_as_they_stand() {
    for (page, command, _) in OTHERWISE {
        assert!(blocks(page).concat().iter().any(|text| text == command), "{page}: {command}");
    }
    let Some(place) = Place::new(Image::Default) else { return };
    let reader = Reader::new(&place);
    reader.follow(README);
    reader.follow(TASKS);
    reader.follow(QUICK_START);
    place.is_clean();
}
