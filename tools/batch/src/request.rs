//! Requests for jobs: the options of its script and of the command line together.

use serde::{Deserialize, Serialize};

use tofu_spec::MachineSpec;
use tofu_spec::units::{InstructionTime, Time};

use crate::directives;
use crate::key::{self, MOST_SUB};
use crate::options::{self, Given, Refusal, Source, Treatment};
use crate::resources::{self, MOST, Mpi, Nodes, Resource, joined};
use crate::steps::Dependency;

/// The prefix of lines with options.
pub(crate) const PREFIX: &str = "#PJM";
/// The longest name of a job, in bytes.
const MOST_NAME: usize = 63;
/// Characters that look like the dash of an option.
const DASHES: [char; 3] = ['\u{2010}', '\u{2013}', '\u{2014}'];
/// The most sub jobs of a bulk job here.
const MOST_BULK: u32 = 1000;

/// Which rank is on which node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    #[default]
    ByChip,
    ByNode,
    File(String),
}

/// The sub jobs of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Model {
    #[default]
    Normal,
    Bulk {
        first: u32,
        last: u32,
    },
    Step {
        /// The job that it belongs to, if there is one already.
        job: Option<u32>,
        number: Option<u32>,
        dependencies: Vec<Dependency>,
        /// The name by which further steps refer to it.
        #[serde(default)]
        named: Option<String>,
    },
}

/// The clock of a machine in modelled time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Modelled {
    /// The time of an instruction in nanoseconds, if it is not the usual one.
    pub(crate) ns_per_instruction: Option<String>,
}

impl Modelled {
    /// Reads the name of a clock. Returns `None` for the host's.
    pub(crate) fn read(clock: &str) -> Result<Option<Self>, &'static str> {
        match clock.parse() {
            Ok(Time::Modelled) => Ok(Some(Self::default())),
            Ok(Time::Host) => Ok(None),
            Err(_) => Err("must be host or modelled"),
        }
    }

    /// Returns a machine with this clock.
    pub(crate) fn machine(&self) -> MachineSpec {
        let ns_per_instruction = self.ns_per_instruction.as_ref().and_then(|ns| ns.parse().ok());
        MachineSpec { time: Some(Time::Modelled), ns_per_instruction, ..MachineSpec::default() }
    }
}

/// A checked request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) nodes: Nodes,
    /// In seconds.
    pub(crate) elapse: Option<u64>,
    pub(crate) group: Option<String>,
    pub(crate) unit: Option<String>,
    /// The number of nodes if they were requested as virtual ones, and the processors of each.
    #[serde(default)]
    pub(crate) virtual_nodes: Option<u32>,
    #[serde(default)]
    pub(crate) virtual_cores: Option<u32>,
    /// Lengths that the processes have of the job's torus.
    pub(crate) shape: Option<Vec<u32>>,
    /// The requested processes.
    pub(crate) processes: Option<u32>,
    pub(crate) per_node: Option<u32>,
    pub(crate) order: Order,
    pub(crate) threads: Option<u32>,
    pub(crate) name: Option<String>,
    pub(crate) out: Option<String>,
    pub(crate) err: Option<String>,
    pub(crate) join: bool,
    /// `Some(true)` with more in it.
    pub(crate) statistics: Option<bool>,
    pub(crate) statistics_path: Option<String>,
    /// Variables of `-x`.
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) all_variables: bool,
    pub(crate) comment: Option<String>,
    pub(crate) model: Model,
    /// The machine that the ranks run on; `None`: processes here.
    pub(crate) machine: Option<String>,
    /// The clock of machines that are started for the ranks, if it is modelled.
    #[serde(default)]
    pub(crate) time: Option<Modelled>,
    /// True if it is an interactive shell at the terminal of the submitting command.
    #[serde(default)]
    pub(crate) interactive: bool,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            nodes: Nodes { lens: vec![1] },
            elapse: None,
            group: None,
            unit: None,
            virtual_nodes: None,
            virtual_cores: None,
            shape: None,
            processes: None,
            per_node: None,
            order: Order::default(),
            threads: None,
            name: None,
            out: None,
            err: None,
            join: false,
            statistics: None,
            statistics_path: None,
            variables: Vec::new(),
            all_variables: false,
            comment: None,
            model: Model::default(),
            machine: None,
            time: None,
            interactive: false,
        }
    }
}

impl Request {
    /// The processes that a node of the job has at most.
    pub(crate) fn on_node(&self) -> u32 {
        let spread = || self.processes.map_or(1, |all| all.div_ceil(self.ranks_nodes()));
        self.per_node.unwrap_or_else(spread)
    }

    /// The nodes that have processes.
    fn ranks_nodes(&self) -> u32 {
        self.shape.as_ref().map_or_else(|| self.nodes.count(), |lens| lens.iter().product())
    }

    /// The lengths of the torus that has processes.
    pub(crate) fn torus(&self) -> &[u32] {
        self.shape.as_deref().unwrap_or(&self.nodes.lens)
    }

    /// The processes that `mpiexec` starts if it is given no number.
    pub(crate) fn ranks(&self) -> u32 {
        self.processes.unwrap_or_else(|| self.ranks_nodes().saturating_mul(self.on_node()))
    }
}

/// A request with everything that is not for the job itself.
#[derive(Debug, Default)]
pub(crate) struct Submission {
    pub(crate) request: Request,
    /// Options that are left out, each with its place.
    pub(crate) ignored: Vec<String>,
    /// True to print only the job's number.
    pub(crate) number_only: bool,
    pub(crate) delimiter: Option<char>,
    /// The seconds for which an interactive job may wait.
    pub(crate) wait: Option<u64>,
    /// The time of an instruction, in nanoseconds.
    instruction: Option<(String, Given)>,
    dependency: Option<(Given, String)>,
    bulk: bool,
    step: bool,
}

/// Reads a script and the options of the command line, which take precedence.
///
/// # Errors
///
/// With the place of the option at fault.
pub(crate) fn read(name: &str, script: &str, options: Vec<Given>) -> Result<Submission, Refusal> {
    let prefix = options.iter().rev().find(|given| given.option.long == "dir-prefix");
    let prefix = prefix.map_or(PREFIX, |given| &*given.value);
    let found = directives::find(script, prefix).map_err(|unquoted| {
        let from = Source::Line(name.to_owned(), unquoted.line);
        Refusal::new(&from, "a quote is not closed")
    })?;
    let mut submission = Submission::default();
    // If the same option occurs twice, lines at the top take precedence.
    for late in [true, false] {
        for directive in found.iter().filter(|directive| directive.late == late) {
            let from = Source::Line(name.to_owned(), directive.line);
            // Dashes as word processors replace them.
            if let Some(word) = directive.words.first().filter(|word| word.starts_with(DASHES)) {
                submission.ignored.push(format!("{from}{word} (its dash is not a -)"));
                continue;
            }
            let (given, rest) = options::read(&directive.words, &from)?;
            if let [word, ..] = rest {
                return Err(Refusal::new(&from, format!("{word}: options only may be here")));
            }
            for given in given {
                submission.take(given)?;
            }
        }
    }
    for given in options {
        submission.take(given)?;
    }
    submission.check()
}

impl Submission {
    fn take(&mut self, given: Given) -> Result<(), Refusal> {
        match given.option.treatment {
            Treatment::Honoured => {}
            Treatment::Silent => return Ok(()),
            Treatment::Refused(why) => return Err(given.refuse(why)),
            Treatment::Ignored => {
                let word = format!("{} {}", given.name, given.value);
                self.ignored.push(format!("{}{}", given.from, word.trim_end()));
                return Ok(());
            }
        }
        let value = given.value.clone();
        let request = &mut self.request;
        match given.option.long {
            "rsc-list" => return self.resources(&given),
            "mpi" => return self.mpi(&given),
            "omp" => {
                let threads = value.strip_prefix("thread=").and_then(|n| key::number(n).ok());
                let threads = threads.filter(|threads| *threads > 0);
                let wanted = "must be thread= and a whole number from 1";
                request.threads = Some(threads.ok_or_else(|| given.refuse(wanted))?);
            }
            "name" => request.name = Some(job_name(&given)?),
            "out" => request.out = Some(value),
            "err" => request.err = Some(value),
            "join" => request.join = true,
            "stats" => request.statistics = request.statistics.or(Some(false)),
            "STATS" => request.statistics = Some(true),
            "spath" => request.statistics_path = Some(value),
            "export" => request.variables.extend(variables(&given)?),
            "export-all" => request.all_variables = true,
            "comment" => request.comment = Some(value),
            "machine" => request.machine = Some(value),
            "local" => (request.machine, request.time) = (None, None),
            "time" => request.time = Modelled::read(&value).map_err(|why| given.refuse(why))?,
            "ns-per-instruction" => self.instruction = Some((instruction(&given)?, given)),
            "step" => self.step = true,
            "bulk" => self.bulk = true,
            "interact" | "interactive" => request.interactive = true,
            "sparam" => match value.strip_prefix("wait-time=") {
                Some("unlimited") => self.wait = None,
                Some(seconds) => {
                    let wanted = "wait-time must be seconds, or unlimited";
                    let seconds = key::number(seconds).map_err(|()| given.refuse(wanted))?;
                    self.wait = Some(seconds.into());
                }
                None => self.dependency = Some((given, value)),
            },
            "z" if value == "jid" => self.number_only = true,
            "z" => return Err(given.refuse("must be jid")),
            "script-delimiter" => {
                let mut chars = value.chars();
                match (chars.next(), chars.next()) {
                    (Some(delimiter), None) => self.delimiter = Some(delimiter),
                    _ => return Err(given.refuse("must be one character")),
                }
            }
            // Looked for before.
            _ => {}
        }
        Ok(())
    }

    fn resources(&mut self, given: &Given) -> Result<(), Refusal> {
        let Self { request, ignored, .. } = self;
        let refuse = |what: String| Refusal::new(&given.from, format!("{} {what}", given.name));
        for resource in resources::resources(&given.value).map_err(refuse)? {
            match resource {
                Resource::Nodes(nodes) => request.nodes = nodes,
                Resource::Elapse(elapse) => request.elapse = elapse,
                Resource::Group(group) => request.group = Some(group),
                Resource::Unit(unit) => request.unit = Some(unit),
                Resource::VirtualNodes(number) => {
                    request.nodes = Nodes { lens: vec![number] };
                    request.virtual_nodes = Some(number);
                }
                Resource::VirtualCores(number) => {
                    request.virtual_cores = Some(number);
                    ignored.push(format!("{}vnode-core={number}", given.from));
                }
                Resource::Ignored(word) => ignored.push(format!("{}{word}", given.from)),
            }
        }
        Ok(())
    }

    fn mpi(&mut self, given: &Given) -> Result<(), Refusal> {
        let Self { request, ignored, .. } = self;
        let refuse = |what: String| Refusal::new(&given.from, format!("{} {what}", given.name));
        for parameter in resources::mpi(&given.value).map_err(refuse)? {
            match parameter {
                Mpi::Shape(lens) => request.shape = Some(lens),
                Mpi::Processes(processes) => request.processes = Some(processes),
                Mpi::PerNode(most) => request.per_node = Some(most),
                Mpi::ByNode => request.order = Order::ByNode,
                Mpi::ByChip => request.order = Order::ByChip,
                Mpi::HostFile(file) => request.order = Order::File(file),
                Mpi::Ignored(word) => ignored.push(format!("{}{word}", given.from)),
            }
        }
        Ok(())
    }

    /// Checks what options say together.
    fn check(mut self) -> Result<Self, Refusal> {
        let refuse = |what: String| Err(Refusal::new(&Source::CommandLine, what));
        let request = &mut self.request;
        if let Some(shape) = &request.shape {
            let nodes = &request.nodes;
            let fits = shape.len() <= nodes.lens.len().max(1)
                && shape.iter().zip(&nodes.lens).all(|(wanted, there)| wanted <= there);
            if !fits {
                let there = joined(&nodes.lens);
                return refuse(format!("shape={}: must fit into node={there}", joined(shape)));
            }
        }
        let ranks = request.ranks();
        if ranks > MOST {
            let (nodes, each) = (request.ranks_nodes(), request.on_node());
            return refuse(format!(
                "{nodes} nodes with {each} processes each: {ranks} is greater than the upper \
                 limit ({MOST}); --mpi proc= may ask for fewer"
            ));
        }
        let room = request.ranks_nodes().saturating_mul(request.on_node());
        if ranks > room {
            return refuse(format!(
                "proc={ranks}: {} nodes with max-proc-per-node={} have room for {room}",
                request.ranks_nodes(),
                request.on_node()
            ));
        }
        match (&mut request.time, self.instruction.take(), &request.machine) {
            (Some(_), _, Some(name)) => {
                return refuse(format!(
                    "--time modelled and --machine {name}: a machine keeps the clock that it was \
                     started with; leave one of them out"
                ));
            }
            (Some(time), Some((ns, _)), _) => time.ns_per_instruction = Some(ns),
            (None, Some((_, given)), _) => return Err(given.refuse("is for --time modelled")),
            _ => {}
        }
        self.request.model = self.model()?;
        Ok(self)
    }

    fn model(&self) -> Result<Model, Refusal> {
        let refuse = |what: &str| Err(Refusal::new(&Source::CommandLine, what));
        if self.request.interactive && (self.bulk || self.step) {
            return refuse("--interact with --bulk or --step: a job is one of them");
        }
        match (self.bulk, self.step, &self.dependency) {
            (true, true, _) => refuse("--bulk and --step: a job is one of them"),
            (false, false, Some((given, _))) => {
                Err(given.refuse("is for jobs with --bulk or --step"))
            }
            (false, false, None) => Ok(Model::Normal),
            (true, false, None) => refuse("--bulk: --sparam must say which numbers, such as 0-9"),
            (true, false, Some((given, text))) => {
                let wanted = "must be two numbers from 0 to 999999 with a - between them";
                let (first, last) = key::range(text).map_err(|()| given.refuse(wanted))?;
                if last > MOST_SUB {
                    return Err(given.refuse(wanted));
                }
                if last - first >= MOST_BULK {
                    return Err(given.refuse(format!("a bulk job has up to {MOST_BULK} here")));
                }
                Ok(Model::Bulk { first, last })
            }
            (false, true, None) => {
                Ok(Model::Step { job: None, number: None, dependencies: Vec::new(), named: None })
            }
            (false, true, Some((given, text))) => step(given, text),
        }
    }
}

/// Returns the items of `--sparam` of a step. Conditions may have numbers with commas between them.
fn step_items(text: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        match items.last_mut() {
            Some(last) if item.starts_with(|c: char| c.is_ascii_digit()) => {
                last.push(',');
                last.push_str(item);
            }
            _ => items.push(item.to_owned()),
        }
    }
    items
}

/// Reads `--sparam` of a step.
fn step(given: &Given, text: &str) -> Result<Model, Refusal> {
    let (mut job, mut step, mut named, mut dependencies) = (None, None, None, Vec::new());
    for item in step_items(text) {
        let (name, value) = item.split_once('=').unwrap_or((&item, ""));
        let number = || {
            let number =
                key::number(value).ok().filter(|number| *number <= MOST_SUB || name == "jid");
            number.ok_or_else(|| given.refuse(format!("{name} must be a whole number")))
        };
        match name {
            "jid" => job = Some(number()?),
            "sn" => step = Some(number()?),
            "sd" => {
                let wanted = "sd must be NONE, or ec or pc, ==, !=, <, <=, > or >=, a number \
                              (several with commas for == and !=), and behind colons one, after \
                              or all and numbers of steps";
                let dependency = Dependency::read(value).map_err(|()| given.refuse(wanted))?;
                dependencies.extend(dependency);
            }
            "jnam" if !value.is_empty() => named = Some(value.to_owned()),
            "send" => {}
            _ => return Err(given.refuse(format!("{item}: there are jid=, jnam=, sn= and sd="))),
        }
    }
    Ok(Model::Step { job, number: step, dependencies, named })
}

/// Checks the time of an instruction, in nanoseconds.
fn instruction(given: &Given) -> Result<String, Refusal> {
    let parsed = given.value.parse::<InstructionTime>();
    parsed.map_err(|allowed| given.refuse(format!("must be {allowed}")))?;
    Ok(given.value.clone())
}

fn job_name(given: &Given) -> Result<String, Refusal> {
    let value = &given.value;
    let fits = (1..=MOST_NAME).contains(&value.len())
        && !value.contains(['/', '\0', '\n'])
        && !value.starts_with(|c: char| c.is_ascii_digit());
    let allowed = "must be 1 to 63 bytes without a / in them, and not begin with a digit";
    if fits { Ok(value.clone()) } else { Err(given.refuse(allowed)) }
}

/// Reads `-x`: variables, separated by commas. One without a value has that of the command.
fn variables(given: &Given) -> Result<Vec<(String, String)>, Refusal> {
    let mut variables: Vec<(String, String)> = Vec::new();
    for item in given.value.split(',') {
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        match item.split_once('=') {
            Some((name, value)) if is_name(name) => {
                variables.push((name.to_owned(), value.to_owned()));
            }
            None if is_name(item) => {
                let here = std::env::var(item).unwrap_or_default();
                variables.push((item.to_owned(), here));
            }
            // The value before it has a comma.
            _ => match variables.last_mut() {
                Some((_, value)) => *value = format!("{value},{item}"),
                None => return Err(given.refuse("must be NAME=VALUE or NAME")),
            },
        }
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submit(script: &str, command_line: &str) -> Result<Submission, String> {
        let words: Vec<_> = command_line.split_whitespace().map(str::to_owned).collect();
        let (given, _) = options::read(&words, &Source::CommandLine).unwrap();
        read("job.sh", script, given).map_err(|error| error.to_string())
    }

    #[test]
    fn command_line_takes_precedence() {
        let script = "#PJM -L node=2x3,elapse=10:00,freq=2200\n#PJM -g hp1 -j\n#PJM -x A=1,B=2,3\n\
                      export C=1\n#PJM -L node=9\n#PJM -s --mpi max-proc-per-node=4\n";
        let submission = submit(script, "-L elapse=5 -x A=2 --name=x -z jid").unwrap();
        let request = &submission.request;
        assert_eq!(request.nodes.required(), "6:2x3");
        assert_eq!((request.elapse, request.join), (Some(5), true));
        assert_eq!((request.ranks(), request.on_node()), (24, 4));
        assert_eq!(request.statistics, Some(false));
        let variables: Vec<_> =
            request.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(variables, ["A=1", "B=2,3", "A=2"]);
        assert_eq!(submission.ignored, ["job.sh line 1: freq=2200", "job.sh line 2: -g hp1"]);
        assert!(submission.number_only);
    }

    #[test]
    fn contradictions_are_refused() {
        for (script, command_line, expected) in [
            ("#PJM -L node=2\n#PJM --mpi shape=3", "", "shape=3: must fit into node=2"),
            ("#PJM -L node=2000\n#PJM --mpi max-proc-per-node=4", "", "8000 is greater than"),
            (
                "#PJM -L node=2\n#PJM --mpi proc=9,max-proc-per-node=4",
                "",
                "proc=9: 2 nodes with max-proc-per-node=4 have room for 8",
            ),
            ("#PJM --interact", "--step", "--interact with --bulk or --step"),
            ("", "--interact --sparam wait-time=x", "wait-time must be seconds"),
            ("\n#PJM job", "", "job.sh line 2: job: options only"),
            ("#PJM -L \"node=1", "", "job.sh line 1: a quote is not closed"),
            ("#PJM -L node=x", "", "job.sh line 1: -L node=x: must be one to three"),
            ("", "--bulk", "--bulk: --sparam must say"),
            ("", "--bulk --step --sparam 1-2", "a job is one of them"),
            ("", "--bulk --sparam 3-1", "--sparam 3-1: must be two numbers"),
            ("", "--bulk --sparam 0-5000", "a bulk job has up to 1000"),
            ("", "--sparam 0-5", "is for jobs with --bulk or --step"),
            ("", "--step --sparam sd=ec", "sd must be NONE, or ec"),
            ("", "--step --sparam jid=x", "jid must be a whole number"),
            ("", "-N 1x", "-N 1x: must be 1 to 63 bytes"),
            ("", "-x 1=2", "must be NAME=VALUE or NAME"),
            ("", "--omp 4", "--omp 4: must be thread="),
            ("", "--time host --ns-per-instruction 1", "is for --time modelled"),
            ("", "--time modelled --ns-per-instruction x", "a number of nanoseconds"),
            ("", "--time modelled --machine m", "leave one of them out"),
            ("", "--time real", "--time real: must be host or modelled"),
        ] {
            let error = submit(script, command_line).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn models_are_read() {
        let model = |line: &str| submit("", line).unwrap().request.model;
        assert_eq!(model("--bulk --sparam 3-7"), Model::Bulk { first: 3, last: 7 });
        let step = model("--step --sparam jid=12,sn=3,sd=ec!=0:all:1");
        let Model::Step { job, number, dependencies, .. } = step else { panic!("{step:?}") };
        assert_eq!((job, number, dependencies.len()), (Some(12), Some(3), 1));
        let step = model("--step --sparam jnam=run");
        assert!(matches!(step, Model::Step { named: Some(name), .. } if name == "run"));
    }

    #[test]
    fn processes_follow_from_nodes() {
        let ranks = |line: &str| {
            let request = submit("", line).unwrap().request;
            (request.ranks(), request.on_node())
        };
        assert_eq!(ranks("-L node=4"), (4, 1));
        assert_eq!(ranks("-L node=4 --mpi proc=6"), (6, 2));
        assert_eq!(ranks("-L node=4 --mpi proc=6,max-proc-per-node=4"), (6, 4));
        assert_eq!(ranks("-L node=4 --mpi shape=2,max-proc-per-node=3"), (6, 3));
    }
}
