//! The output of `up`: progress, guests' lines, the table at the end.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tofu_abi::Coords;
use tofu_control::protocol::StandsInfo;
use tofu_spec::plan::Plan;
use tofu_ui::terminal::plain;
use tofu_ui::{Style, printable, terminal_width};

use crate::commands::up::board::{self, Line};

/// The end of a node's run, in the words of the result table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeResult {
    pub(crate) coords: Coords,
    pub(crate) guest: String,
    pub(crate) ok: bool,
    /// `exited`, `reset`, `fault`, `timeout` or `stopped`.
    pub(crate) kind: &'static str,
    /// Exit code, if it exited.
    pub(crate) code: Option<u32>,
    /// It ran until the user ended the machine, so it has neither succeeded nor failed.
    pub(crate) by_user: bool,
    /// More about it, in one line; may be empty.
    pub(crate) detail: String,
    /// From the start of the machine.
    pub(crate) after: Duration,
    pub(crate) last_line: String,
}

impl NodeResult {
    fn has_failed(&self) -> bool {
        !self.ok && !self.by_user
    }

    fn colour(&self) -> &'static str {
        match (self.ok, self.by_user) {
            (true, _) => GREEN,
            (false, true) => DIM,
            (false, false) => RED,
        }
    }

    /// The result in a few words.
    fn words(&self) -> String {
        match (self.ok, self.code) {
            (true, _) => "ok".into(),
            _ if self.by_user => "stopped".into(),
            (false, Some(code)) => format!("exit code {code}"),
            (false, None) => self.kind.into(),
        }
    }
}

const RED: &str = "31";
const GREEN: &str = "32";
const DIM: &str = "2";
/// Colours that distinguish the nodes of neighbouring lines.
const NODE_COLOURS: [&str; 5] = ["36", "35", "34", "33", "32"];

/// Up to this many nodes the table has a row for each.
const TABLE_ROWS: usize = 48;

/// The output of one run.
pub(crate) struct Screen<'a> {
    out: &'a mut dyn Write,
    style: Style,
    bar: Option<ProgressBar>,
    /// Guests that have booted and ended so far.
    booted: u64,
    ended: u64,
    width: usize,
}

impl<'a> Screen<'a> {
    /// Output to `out` for a machine of this name that is about to boot.
    pub(crate) fn new(
        out: &'a mut dyn Write,
        style: Style,
        plan: &Plan,
        name: &str,
    ) -> io::Result<Self> {
        let vms = plan.vms().count();
        let shape = plan.network.shape;
        let bar = style.progress.then(|| {
            let bar = ProgressBar::new(vms as u64);
            let template = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg} {elapsed}");
            bar.set_style(template.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message("booted");
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        let widest = plan.vms().map(|id| plan.coords(id).to_string().len()).max();
        let mut screen = Self { out, style, bar, booted: 0, ended: 0, width: widest.unwrap_or(0) };
        if style.json {
            screen.object(json!({
                "event": "machine", "name": name,
                "shape": shape.to_string(), "nodes": shape.nodes(), "vms": vms,
                "doorbell": plan.doorbell.name(),
                "links_down": plan.network.links_down.len(),
                "part": plan.network.shard.map(|shard| shard.to_string()),
            }))?;
        } else {
            let linux = match plan.linux().count() {
                0 => String::new(),
                n => format!(", {n} of them Linux"),
            };
            let (all, shard) = (plan.all_vms(), plan.network.shard);
            let vms = match shard {
                Some(shard) => format!("shard {shard}, {vms} of {all} VMs"),
                None => format!("{vms} VMs"),
            };
            let stubs = shape.nodes() as usize - all;
            let stubs = if stubs == 0 { String::new() } else { format!(", {stubs} without a VM") };
            let down = match plan.network.links_down.len() {
                0 => String::new(),
                1 => ", 1 link down".into(),
                down => format!(", {down} links down"),
            };
            let memory = plan.guest_memory() >> 20;
            screen.line(&format!(
                "machine {shape}: {vms}{linux}{stubs}{down}, {memory} MiB of guest memory, \
                 doorbells {}",
                plan.doorbell.name()
            ))?;
        }
        Ok(screen)
    }

    /// A guest runs now.
    pub(crate) fn booted(&mut self, at: Coords, after: Duration) -> io::Result<()> {
        self.booted += 1;
        self.progress();
        if self.style.json {
            self.object(json!({
                "event": "booted", "node": at.to_array(), "seconds": after.as_secs_f64(),
            }))?;
        }
        Ok(())
    }

    /// Shows a line about a node that boots over the torus.
    pub(crate) fn netboot(&mut self, at: Coords, line: &Line) -> io::Result<()> {
        if self.style.json {
            let (stage, detail) = match line {
                Line::Progress(role, percent) => {
                    ("fetching", json!({ "file": role.to_string(), "percent": percent }))
                }
                Line::Started(took) => ("starting", json!({ "seconds": took.as_secs_f64() })),
                Line::Failed(why) => ("failed", json!({ "why": printable(why) })),
            };
            let node = at.to_array();
            return self.object(
                json!({ "event": "netboot", "node": node, "stage": stage, "detail": detail }),
            );
        }
        let words = printable(&board::words(at, line));
        match line {
            // The moving line shows it better.
            Line::Progress(..) if self.bar.is_some() => Ok(()),
            Line::Failed(_) => {
                let words = self.paint(RED, &words);
                self.line(&words)
            }
            _ => self.line(&words),
        }
    }

    /// Shows the progress of the slowest node that boots over the torus.
    pub(crate) fn netboot_slowest(&self, words: Option<String>) {
        if let Some(bar) = &self.bar {
            bar.set_message(words.unwrap_or_else(|| "booted".into()));
        }
    }

    /// Counts boots until all have booted, ends from then on.
    fn progress(&self) {
        let Some(bar) = &self.bar else { return };
        if Some(self.booted) == bar.length() {
            bar.set_message("finished");
            bar.set_position(self.ended);
        } else {
            bar.set_position(self.booted);
        }
    }

    /// A guest printed a line; `text` has been cleaned by [`printable`].
    pub(crate) fn guest_line(&mut self, at: Coords, text: &str) -> io::Result<()> {
        if self.style.json {
            return self.object(json!({ "event": "line", "node": at.to_array(), "text": text }));
        }
        let sum: usize = at.to_array().iter().map(|c| usize::from(*c)).sum();
        let colour = NODE_COLOURS[sum % NODE_COLOURS.len()];
        let name = format!("{:width$}", at.to_string(), width = self.width);
        self.line(&format!("{} {text}", self.paint(colour, &name)))
    }

    /// A guest has ended.
    pub(crate) fn ended(&mut self, result: &NodeResult) -> io::Result<()> {
        self.ended += 1;
        self.progress();
        if self.style.json {
            return self.object(json!({
                "event": "ended", "node": result.coords.to_array(), "guest": result.guest,
                "ok": result.ok, "outcome": result.kind, "code": result.code,
                "detail": result.detail, "seconds": result.after.as_secs_f64(),
            }));
        }
        if result.ok {
            return Ok(());
        }
        let words = self.paint(result.colour(), &result.words());
        let colon = if result.detail.is_empty() { "" } else { ": " };
        self.line(&format!("{} {words}{colon}{}", result.coords, result.detail))
    }

    /// The word for a shard in notes and details. Events in JSON keep the former one, because
    /// scripts compare their texts.
    pub(crate) fn shard(&self) -> &'static str {
        if self.style.json { "part" } else { "shard" }
    }

    /// Shows something that concerns the whole run.
    pub(crate) fn note(&mut self, text: &str) -> io::Result<()> {
        if self.style.json {
            return self.object(json!({ "event": "note", "text": text }));
        }
        self.line(text)
    }

    /// Time stands still in a machine in modelled time.
    pub(crate) fn stands(&mut self, stands: &StandsInfo) -> io::Result<()> {
        let StandsInfo { ps, text } = stands;
        if self.style.json {
            return self.object(json!({ "event": "stands", "ps": ps, "text": text }));
        }
        self.line(&format!("{text}; `tofu time --until` continues, Ctrl-C ends the machine"))
    }

    /// All Linux nodes of a machine that stays up are ready; `hints` are commands for the user.
    pub(crate) fn ready(
        &mut self,
        name: &str,
        after: Duration,
        hints: &[String],
    ) -> io::Result<()> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let seconds = after.as_secs_f64();
        if self.style.json {
            self.object(json!({ "event": "ready", "machine": name, "seconds": seconds }))?;
        } else {
            self.line(&format!("machine {name} is ready after {seconds:.1} s"))?;
            for hint in hints {
                self.line(hint)?;
            }
        }
        self.out.flush()
    }

    /// The end of a machine without programs.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.out.flush()
    }

    /// The table and the last line.
    pub(crate) fn summary(&mut self, results: &[NodeResult], took: Duration) -> io::Result<()> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let failed = results.iter().filter(|result| result.has_failed()).count();
        let stopped = results.iter().filter(|result| result.by_user).count();
        let succeeded = results.len() - failed - stopped;
        if self.style.json {
            self.object(json!({
                "event": "summary", "ok": succeeded == results.len(), "succeeded": succeeded,
                "failed": failed, "stopped": stopped, "seconds": took.as_secs_f64(),
            }))?;
            return self.out.flush();
        }
        self.line("")?;
        if results.len() <= TABLE_ROWS {
            self.table(results)?;
        } else {
            self.groups(results)?;
        }
        let seconds = took.as_secs_f64();
        let all = results.len();
        let were = if stopped == 1 { "was" } else { "were" };
        let verdict = match (failed, stopped) {
            (0, 0) => self.paint(GREEN, &format!("all {all} guests succeeded")),
            (0, _) if stopped == all => format!("all {all} guests were stopped"),
            (0, _) => format!("{stopped} of {all} guests {were} stopped, {succeeded} succeeded"),
            (_, 0) => self.paint(RED, &format!("{failed} of {all} guests failed")),
            _ => {
                let words = format!("{failed} of {all} guests failed, {stopped} {were} stopped");
                self.paint(RED, &words)
            }
        };
        self.line(&format!("{verdict} in {seconds:.2} s"))?;
        self.out.flush()
    }

    /// One row a node.
    fn table(&mut self, results: &[NodeResult]) -> io::Result<()> {
        let width = |cell: fn(&NodeResult) -> String, title: &str| {
            results.iter().map(|result| cell(result).len()).chain([title.len()]).max().unwrap_or(0)
        };
        let node = width(|result| result.coords.to_string(), "node");
        let guest = width(|result| result.guest.clone(), "guest");
        let words = width(NodeResult::words, "result");
        let title = format!(
            "{:node$}  {:guest$}  {:words$}  {:>7}  last line",
            "node", "guest", "result", "seconds"
        );
        self.line(&self.paint(DIM, &title))?;
        for result in results {
            let cell = format!("{:words$}", result.words());
            let cell = self.paint(result.colour(), &cell);
            let (at, name) = (result.coords.to_string(), &result.guest);
            let seconds = result.after.as_secs_f64();
            let row =
                format!("{at:node$}  {name:guest$}  {cell}  {seconds:7.2}  {}", result.last_line);
            self.line(cut(row.trim_end(), terminal_width(), row.len() - plain(&row).len()))?;
        }
        Ok(())
    }

    /// One row for each kind of result, for machines too large for a row for each node.
    fn groups(&mut self, results: &[NodeResult]) -> io::Result<()> {
        let mut groups: BTreeMap<(bool, String, &str), Vec<&NodeResult>> = BTreeMap::new();
        for result in results {
            let key = (result.has_failed(), result.words(), result.guest.as_str());
            groups.entry(key).or_default().push(result);
        }
        for ((failed, words, guest), members) in groups {
            let slowest = members.iter().map(|result| result.after).max().unwrap_or_default();
            let colour = members.first().map_or(GREEN, |result| result.colour());
            let words = self.paint(colour, &words);
            let mut row = format!(
                "{:>6} x {guest}: {words}, the last after {:.2} s",
                members.len(),
                slowest.as_secs_f64()
            );
            if failed {
                let shown: Vec<_> =
                    members.iter().take(4).map(|result| result.coords.to_string()).collect();
                let more = if members.len() > shown.len() { " ..." } else { "" };
                row.push_str(&format!(": {}{more}", shown.join(" ")));
            }
            self.line(&row)?;
        }
        Ok(())
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.style.colour { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn object(&mut self, value: serde_json::Value) -> io::Result<()> {
        writeln!(self.out, "{value}")
    }

    fn line(&mut self, text: &str) -> io::Result<()> {
        let out = &mut self.out;
        match &self.bar {
            Some(bar) => bar.suspend(|| writeln!(out, "{text}")),
            None => writeln!(out, "{text}"),
        }
    }
}

/// A row that ends with a guest's text, in a terminal of this width, with this many bytes that only
/// colour it.
fn cut(row: &str, width: Option<u16>, colours: usize) -> &str {
    let most = width.map_or(usize::MAX, |width| usize::from(width) + colours);
    row.char_indices().nth(most).map_or(row, |(at, _)| &row[..at])
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
