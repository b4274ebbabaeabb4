//! `tofu exec`: runs a command on all nodes of a machine, and reports nodes that do not answer.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use tofu_abi::Coords;
use tofu_agent::wire::{Exec, Output, Status};
use tofu_control::protocol::NodeInfo;
use tofu_control::{RemoteProgram, info};

use crate::job::{self, Control, Input, Label, Options, OutputTaker, Rank, Style};

/// The longest silence of a program before its node is suspected of not answering.
const SILENCE: Duration = Duration::from_secs(3);

/// Runs a command on these nodes at the same time, and prefixes each line of output with the node.
/// Returns the exit code of the first command that failed. The others are then ended like ranks of
/// a job, after `grace`. Nodes that are silent for `silence` are abandoned.
///
/// # Errors
///
/// One line for the user.
pub fn run_on_all(
    control: &Path,
    nodes: &[NodeInfo],
    exec: &Exec,
    timeout: Option<Duration>,
    grace: Duration,
    silence: Duration,
) -> anyhow::Result<u8> {
    let signals = Control::new(grace)?;
    let label = |node: &NodeInfo| {
        let at = Coords::from_array(node.at);
        Label { name: format!("node {at}"), prefix: format!("{at} ") }
    };
    let labels: Vec<_> = nodes.iter().map(label).collect();
    let (style, input, files) = (Style::Prefixed, Input::Nothing, [None, None]);
    let (noun, has_manager) = ("command", false);
    let options = Options { timeout, grace, style, input, files, noun, has_manager };
    job::run(&signals, options, labels.clone(), &mut |number| {
        let index = number as usize;
        let node = nodes[index].index;
        let program = RemoteProgram::start_within(control, node, exec.clone(), silence)?;
        let silence = Silence::watch(control, nodes[index].index, labels[index].name.clone());
        Ok(Arc::new(OnNode { program, silence }) as Arc<dyn Rank>)
    })
}

/// A command on a node, with a watch on whether it has written anything.
struct OnNode {
    program: RemoteProgram,
    silence: Silence,
}

impl Rank for OnNode {
    fn follow(&self, output: &mut OutputTaker<'_>) -> anyhow::Result<Status> {
        let status = self.program.follow(|stream: Output, bytes: &[u8]| {
            self.silence.end();
            output(stream, bytes)
        });
        self.silence.end();
        status
    }

    fn feed(&self, input: &mut dyn Read) {
        Rank::feed(&self.program, input);
    }

    fn signal(&self, signal: i32) {
        Rank::signal(&self.program, signal);
    }

    fn kill(&self) {
        Rank::kill(&self.program);
    }
}

/// Tells the user if a program's node does not answer, for example because it is paused or hangs.
/// Waits for some seconds without output first.
pub struct Silence(Arc<AtomicBool>);

impl Silence {
    /// Starts watching.
    pub fn watch(control: &Path, node: u32, name: String) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (seen, control) = (Arc::clone(&over), control.to_owned());
        let watch = move || {
            thread::sleep(SILENCE);
            if seen.load(SeqCst) {
                return;
            }
            // If the machine does not answer, the command ends, and that is reported anyway.
            let Ok(machine) = info(&control) else { return };
            let node = machine.nodes.into_iter().find(|other| other.index == node);
            let why = match node.as_ref().map(|node| node.state.as_str()) {
                Some("paused") => "it is paused; `tofu resume` lets it go on",
                Some("not answering") => "its guest hangs, or has no time; see `tofu console`",
                _ => return,
            };
            if !seen.load(SeqCst) {
                tofu_ui::tell!("tofu: {name} does not answer: {why}");
            }
        };
        // Without a thread, no message is printed.
        let _ = thread::Builder::new().name("silence".into()).spawn(watch);
        Self(over)
    }

    /// Must be called when the program has written something or has ended.
    pub fn end(&self) {
        self.0.store(true, SeqCst);
    }
}
