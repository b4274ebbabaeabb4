//! Records of jobs, as the spool keeps them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::key::{Key, Part};
use crate::request::{Order, Request};
use crate::resources::{CORES, GROUPS, UNIT};

/// The state of a job, as `pjstat` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum State {
    Que,
    Run,
    /// Waits until `pjrls` releases it.
    Hld,
    /// It has run to its end, or to its time limit.
    Ext,
    /// Cancelled, before or while it ran.
    Ccl,
    /// The process that ran it has died.
    Err,
}

impl State {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Que => "QUE",
            Self::Run => "RUN",
            Self::Hld => "HLD",
            Self::Ext => "EXT",
            Self::Ccl => "CCL",
            Self::Err => "ERR",
        }
    }

    pub(crate) fn is_over(self) -> bool {
        !matches!(self, Self::Que | Self::Run | Self::Hld)
    }
}

/// Codes of the job manager, as public guides list them.
pub(crate) mod code {
    pub(crate) const COMPLETED: i32 = 0;
    pub(crate) const CANCELLED: i32 = 1;
    pub(crate) const DEPENDENCY: i32 = 6;
    pub(crate) const ELAPSED: i32 = 11;
    pub(crate) const FILES: i32 = 16;
    pub(crate) const NODE_DOWN: i32 = 20;
    pub(crate) const SHELL: i32 = 21;

    /// Returns the code as words.
    pub(crate) fn reason(code: i32) -> &'static str {
        match code {
            COMPLETED => "-",
            CANCELLED => "USER CANCEL",
            DEPENDENCY => "STEP DEPENDENCY",
            ELAPSED => "ELAPSE LIMIT EXCEEDED",
            FILES => "FILE ACCESS",
            NODE_DOWN => "NODE DOWN",
            SHELL => "SHELL EXECUTION FAILED",
            _ => "OTHER",
        }
    }
}

/// A moment, in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A moment as `2026-11-28 17:12:10`, in UTC.
pub(crate) fn date(seconds: u64) -> String {
    let moment = UNIX_EPOCH + Duration::from_secs(seconds);
    let text = humantime::format_rfc3339_seconds(moment).to_string();
    text.replace('T', " ").trim_end_matches('Z').to_owned()
}

/// A time span as `0001:30:00`.
pub(crate) fn span(seconds: u64) -> String {
    format!("{:04}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The end of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ending {
    /// The exit code of the script.
    pub(crate) exit: i32,
    /// The signal that ended it, or 0.
    pub(crate) signal: i32,
    /// The code of the job manager.
    pub(crate) manager: i32,
    /// The error, if it has no code.
    pub(crate) detail: Option<String>,
}

/// A job, or a sub job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) key: Key,
    /// Jobs begin in this order.
    pub(crate) turn: u64,
    pub(crate) name: String,
    pub(crate) user: String,
    pub(crate) request: Request,
    /// The name under which the script is kept.
    pub(crate) script: String,
    pub(crate) arguments: Vec<String>,
    /// The folder in which it was submitted.
    pub(crate) folder: String,
    pub(crate) host: String,
    /// The variables of the job.
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) state: State,
    pub(crate) accepted: u64,
    pub(crate) started: Option<u64>,
    pub(crate) ended: Option<u64>,
    /// Processor time in milliseconds, of the user and of the system.
    pub(crate) processor: Option<(u64, u64)>,
    pub(crate) ending: Ending,
}

impl Record {
    /// The names of its outputs and of its statistics.
    pub(crate) fn files(&self) -> Files {
        let request = &self.request;
        let form = |given: &Option<String>, end: &str| {
            let given = given.as_deref().filter(|given| !given.is_empty());
            match given {
                Some(form) => self.expand(form),
                None => format!("{}.{}.{end}", self.name, self.key),
            }
        };
        Files {
            out: form(&request.out, "out"),
            err: (!request.join).then(|| form(&request.err, "err")),
            statistics: request.statistics.map(|_| form(&request.statistics_path, "stats")),
        }
    }

    /// Replaces `%n`, `%j`, `%J`, `%b`, `%s` and `%%` in the name of a file.
    pub(crate) fn expand(&self, form: &str) -> String {
        let mut text = String::new();
        let mut chars = form.chars();
        while let Some(c) = chars.next() {
            let rest = chars.as_str();
            let value = match (c, rest.chars().next()) {
                ('%', Some('n')) => self.name.clone(),
                ('%', Some('j')) => self.key.to_string(),
                ('%', Some('J')) => self.key.id.to_string(),
                ('%', Some('b' | 's')) => match self.key.part {
                    Part::Whole => String::new(),
                    Part::Step(number) | Part::Bulk(number) => number.to_string(),
                },
                ('%', Some('%')) => "%".to_owned(),
                _ => {
                    text.push(c);
                    continue;
                }
            };
            chars.next();
            text.push_str(&value);
        }
        text
    }

    /// The variables that describe the job to its processes.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let request = &self.request;
        let mut variables: Vec<(&str, String)> = vec![
            ("PJM_ENVIRONMENT", if request.interactive { "INTERACT" } else { "BATCH" }.into()),
            ("PJM_JOBID", self.key.id.to_string()),
            ("PJM_SUBJOBID", self.key.to_string()),
            ("PJM_JOBNAME", self.name.clone()),
            ("PJM_O_WORKDIR", self.folder.clone()),
            ("PJM_O_HOST", self.host.clone()),
            ("PJM_NODE", request.nodes.count().to_string()),
            ("PJM_MPI_PROC", request.ranks().to_string()),
            ("PJM_PROC_BY_NODE", request.on_node().to_string()),
            ("PJM_RSCGRP", request.group.clone().unwrap_or_else(|| GROUPS[0].into())),
            ("PJM_RSCUNIT", request.unit.clone().unwrap_or_else(|| UNIT.into())),
            ("PJM_COMMENT", request.comment.clone().unwrap_or_default()),
            ("PJM_NODE_CORE", CORES.to_string()),
            ("PJM_TOTAL_CORE", (request.nodes.count() * CORES).to_string()),
            ("PJM_LOCALTMP", "/tmp".into()),
            ("PJM_SHAREDTMP", "/tmp".into()),
        ];
        let axes = ["PJM_NODE_X", "PJM_NODE_Y", "PJM_NODE_Z"];
        let lens = request.nodes.lens.iter().map(ToString::to_string);
        variables.extend(axes.into_iter().zip(lens));
        let axes = ["PJM_MPI_SHAPE_X", "PJM_MPI_SHAPE_Y", "PJM_MPI_SHAPE_Z"];
        variables.extend(axes.into_iter().zip(request.torus().iter().map(ToString::to_string)));
        let virtual_parts =
            [("PJM_VNODE", request.virtual_nodes), ("PJM_VNODE_CORE", request.virtual_cores)];
        let virtual_parts = virtual_parts.into_iter();
        variables
            .extend(virtual_parts.filter_map(|(name, number)| Some((name, number?.to_string()))));
        if let Some(elapse) = request.elapse {
            variables.push(("PJM_ELAPSE_LIMIT", elapse.to_string()));
        }
        match self.key.part {
            Part::Whole => {}
            Part::Step(number) => variables.push(("PJM_STEPNUM", number.to_string())),
            Part::Bulk(number) => variables.push(("PJM_BULKNUM", number.to_string())),
        }
        for name in ["HOME", "LANG", "LOGNAME", "MAIL", "PATH", "SHELL", "TZ"] {
            if let Some((_, value)) = self.environment.iter().find(|(known, _)| known == name) {
                let name: &str = match name {
                    "HOME" => "PJM_O_HOME",
                    "LANG" => "PJM_O_LANG",
                    "LOGNAME" => "PJM_O_LOGNAME",
                    "MAIL" => "PJM_O_MAIL",
                    "PATH" => "PJM_O_PATH",
                    "SHELL" => "PJM_O_SHELL",
                    _ => "PJM_O_TZ",
                };
                variables.push((name, value.clone()));
            }
        }
        if let Some(threads) = request.threads {
            variables.push(("OMP_NUM_THREADS", threads.to_string()));
        }
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The order of ranks, for people.
    pub(crate) fn order(&self) -> &str {
        match &self.request.order {
            Order::ByChip => "rank-map-bychip",
            Order::ByNode => "rank-map-bynode",
            Order::File(_) => "rank-map-hostfile",
        }
    }
}

/// The files of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) out: String,
    /// `None`: standard error goes where standard output goes.
    pub(crate) err: Option<String>,
    pub(crate) statistics: Option<String>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(part: Part, request: Request) -> Record {
        Record {
            key: Key { id: 12, part },
            turn: 1,
            name: "job.sh".into(),
            user: "user".into(),
            request,
            script: "job.sh".into(),
            arguments: Vec::new(),
            folder: "/u/user".into(),
            host: "login".into(),
            environment: vec![("HOME".into(), "/u/user".into())],
            state: State::Que,
            accepted: 1_700_000_000,
            started: None,
            ended: None,
            processor: None,
            ending: Ending::default(),
        }
    }

    #[test]
    fn files_have_the_names_of_real_systems() {
        let request = Request { statistics: Some(false), ..Request::default() };
        let files = record(Part::Whole, request.clone()).files();
        assert_eq!(files.out, "job.sh.12.out");
        assert_eq!(files.err.as_deref(), Some("job.sh.12.err"));
        assert_eq!(files.statistics.as_deref(), Some("job.sh.12.stats"));
        let files = record(Part::Bulk(3), request.clone()).files();
        assert_eq!(files.out, "job.sh.12[3].out");
        let request = Request {
            out: Some("log/%n.%j.%J.%b.%%.%x.%".into()),
            join: true,
            statistics: None,
            ..request
        };
        let files = record(Part::Step(4), request).files();
        assert_eq!(files.out, "log/job.sh.12_4.12.4.%.%x.%");
        assert_eq!((files.err, files.statistics), (None, None));
    }

    #[test]
    fn jobs_know_their_shape() {
        let mut request = Request::default();
        request.nodes.lens = vec![2, 3];
        request.per_node = Some(4);
        let variables = record(Part::Bulk(7), request).variables();
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(value("PJM_NODE"), Some("6"));
        assert_eq!((value("PJM_NODE_X"), value("PJM_NODE_Y")), (Some("2"), Some("3")));
        assert_eq!((value("PJM_NODE_Z"), value("PJM_MPI_PROC")), (None, Some("24")));
        assert_eq!((value("PJM_BULKNUM"), value("PJM_STEPNUM")), (Some("7"), None));
        assert_eq!(value("PJM_O_HOME"), Some("/u/user"));
    }

    #[test]
    fn times_are_readable() {
        assert_eq!(span(5400), "0001:30:00");
        assert_eq!(date(1_700_000_000), "2023-11-14 22:13:20");
    }
}
