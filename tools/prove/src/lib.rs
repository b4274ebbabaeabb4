//! Proves a driver: boots two Linux nodes, exercises the driver there from load to unload, and
//! reports the rules of the registers that it has kept, broken and never exercised, and what it has
//! left behind.
//!
//! A [`Subject`] is the driver, a `Scene` a part of the exercise, and a [`Report`] its result. Each
//! command on a node has a time limit, and so has the whole exercise. If a driver hangs or crashes
//! its node, the scenes end, and the report covers what was done until then.
#![forbid(unsafe_code)]

mod formats;
mod leftovers;
mod lines;
mod nodes;
mod options;
mod report;
mod rules;
mod scenes;
mod stacks;
mod subject;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::Context;
use tofu_linux_nodes::lab::Lab;
use tofu_linux_nodes::progress::ImageProgress;
use tofu_spec::MachineSpec;
use tofu_spec::units::{ImageName, MemorySize, Timeout};
use tofu_ui::Style;

pub use crate::options::Options;
pub use crate::report::{Outcome, Report};
pub use crate::stacks::{Called, Stack};
pub use crate::subject::Subject;

use crate::leftovers::Kept;
use crate::nodes::Nodes;
use crate::stacks::Stacks;

/// Two neighbours.
const SHAPE: &str = "2x1x1x1x1x1";
/// Kernels that check themselves need more than the default.
const MEMORY: MemorySize = MemorySize(512 << 20);

/// Proves the drivers, prints a report about each and returns the exit code: 0 if nothing broke.
///
/// # Errors
///
/// If a driver cannot be tried at all: it is no driver, does not compile, or there is no image.
pub fn run(options: &Options) -> anyhow::Result<u8> {
    let style = Style::detect(false).progress;
    let progress = ImageProgress::new(Arc::new(AtomicBool::new(false)), style);
    let subjects = Subject::all(options, &progress)?;
    let spec = machine(options, &subjects)?;
    // The process gives up the right to make files when the machine starts.
    let junit = Output::create(options.junit.as_ref())?;
    let sarif = Output::create(options.sarif.as_ref())?;
    let start = Instant::now();
    let lab = Lab::watched(&spec, &progress)?;
    progress.clear();
    let reports = proved(&subjects, options, &lab, start)?;
    drop(lab);
    junit.write(&formats::junit(&reports))?;
    sarif.write(&formats::sarif(&reports))?;
    if options.json {
        let text = match &reports[..] {
            [report] => serde_json::to_string_pretty(report)?,
            reports => serde_json::to_string_pretty(reports)?,
        };
        writeln!(io::stdout(), "{text}")?;
    }
    Ok(u8::from(!reports.iter().all(|report| report.ok)))
}

/// The machine that the drivers need.
fn machine(options: &Options, subjects: &[(String, Subject)]) -> anyhow::Result<MachineSpec> {
    // Several are all modules.
    let (_, subject) = &subjects[0];
    let image = subject.image(&options.kernel).map(str::parse::<ImageName>).transpose();
    let image = image.map_err(|why| anyhow::anyhow!("--kernel: {why}"))?;
    Ok(MachineSpec {
        shape: Some(SHAPE.parse()?),
        linux: Some(true),
        memory: Some(MEMORY),
        driver: Some(subject.boots_with()),
        append: Some(subject.append()?),
        image,
        generation: options.generation,
        // A busy host needs longer for that than for a command.
        boot_timeout: Some(Timeout(options.patience * 2)),
        ..MachineSpec::default()
    })
}

/// Proves one driver after the other on the same nodes, which are made as they were before, or
/// anew. Prints each report, unless they are wanted as JSON.
fn proved(
    subjects: &[(String, Subject)],
    options: &Options,
    lab: &Lab,
    mut start: Instant,
) -> anyhow::Result<Vec<Report>> {
    let mut reports: Vec<Report> = Vec::new();
    let mut stacks = Stacks::new(lab.breaks.as_deref().unwrap_or_default());
    for (i, (name, subject)) in subjects.iter().enumerate() {
        let nodes = |start| Nodes::new(lab, options.patience, start + options.limit);
        let before = match reports.last_mut() {
            Some(last) => scenes::clear(&subjects[i - 1].1, last, &nodes(start), &mut stacks)?,
            None => None,
        };
        let is_new = before.is_none();
        let mut report = life((name, subject), options, lab, (&nodes(start), before), &mut stacks);
        if !is_new && report.as_ref().map_or(true, Report::has_not_begun) {
            // Something that the driver before has left may have done it.
            nodes(start).restart()?;
            stacks.restarted();
            start = Instant::now();
            report = life((name, subject), options, lab, (&nodes(start), None), &mut stacks);
        }
        let mut report = report?;
        let is_broken = report.broken().next().is_some();
        if let (Err(why), true) = (&lab.breaks, is_broken) {
            report.notes.push(format!("no call stacks: {why}"));
        }
        report.finish(start.elapsed());
        if !options.json {
            write!(io::stdout(), "{report}")?;
        }
        reports.push(report);
        start = Instant::now();
    }
    Ok(reports)
}

/// Plays all scenes of a driver.
fn life(
    (name, subject): (&str, &Subject),
    options: &Options,
    lab: &Lab,
    nodes: (&Nodes, Option<[Kept; 2]>),
    stacks: &mut Stacks<'_>,
) -> anyhow::Result<Report> {
    let mut report = Report::new(name.to_owned(), &lab.monitor);
    if !options.json {
        writeln!(io::stdout(), "{name} on two nodes, {}", lab.monitor)?;
    }
    scenes::play(subject, options, nodes, (&mut report, stacks), &mut |scene| {
        if options.json { Ok(()) } else { writeln!(io::stdout(), "{scene}") }
    })?;
    Ok(report)
}

/// A file that the report is written to, if it is wanted.
struct Output(Option<(File, PathBuf)>);

impl Output {
    fn create(path: Option<&PathBuf>) -> anyhow::Result<Self> {
        let create = |path: &PathBuf| {
            let file = File::create(path);
            file.map(|file| (file, path.clone())).with_context(|| cannot_write(path))
        };
        Ok(Self(path.map(create).transpose()?))
    }

    fn write(self, content: &str) -> anyhow::Result<()> {
        self.0.map_or(Ok(()), |(mut file, path)| {
            file.write_all(content.as_bytes()).with_context(|| cannot_write(&path))
        })
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}
