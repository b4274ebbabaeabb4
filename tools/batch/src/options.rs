//! The options of `pjsub`: those that are known, and how they are read.

use std::fmt;

/// The source of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    CommandLine,
    /// A line of the script, whose name is given.
    Line(String, usize),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine => Ok(()),
            Self::Line(script, line) => write!(f, "{script} line {line}: "),
        }
    }
}

/// The reason why a job is refused, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{source}{what}", source = .from)]
pub(crate) struct Refusal {
    pub(crate) from: Source,
    pub(crate) what: String,
}

impl Refusal {
    pub(crate) fn new(from: &Source, what: impl Into<String>) -> Self {
        Self { from: from.clone(), what: what.into() }
    }
}

/// The treatment of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    Honoured,
    /// Left out, and named on standard error.
    Ignored,
    /// It would not change anything here, so nothing is said.
    Silent,
    /// The job is refused, for this reason.
    Refused(&'static str),
}

use Treatment::{Honoured, Ignored, Refused, Silent};

/// A known option.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) short: Option<char>,
    pub(crate) long: &'static str,
    /// True if a value follows.
    pub(crate) valued: bool,
    pub(crate) treatment: Treatment,
}

const fn known(short: char, long: &'static str, valued: bool, treatment: Treatment) -> Known {
    Known { short: Some(short), long, valued, treatment }
}

const fn long(long: &'static str, valued: bool, treatment: Treatment) -> Known {
    Known { short: None, long, valued, treatment }
}

/// Options that have no long name in public documents have one here, which is not accepted.
pub(crate) const OPTIONS: [Known; 59] = [
    known('L', "rsc-list", true, Honoured),
    long("mpi", true, Honoured),
    long("omp", true, Honoured),
    known('N', "name", true, Honoured),
    known('o', "out", true, Honoured),
    known('e', "err", true, Honoured),
    known('j', "join", false, Honoured),
    known('s', "stats", false, Honoured),
    known('S', "STATS", false, Honoured),
    long("spath", true, Honoured),
    known('x', "export", true, Honoured),
    known('X', "export-all", false, Honoured),
    long("step", false, Honoured),
    long("bulk", false, Honoured),
    long("sparam", true, Honoured),
    known('z', "z", true, Honoured),
    long("comment", true, Honoured),
    known('C', "dir-prefix", true, Honoured),
    long("script-delimiter", true, Honoured),
    long("machine", true, Honoured),
    long("local", false, Honoured),
    long("time", true, Honoured),
    long("ns-per-instruction", true, Honoured),
    known('g', "gname", true, Ignored),
    long("llio", true, Ignored),
    known('m', "mail", true, Ignored),
    long("mail-list", true, Ignored),
    known('p', "priority", true, Ignored),
    long("bizcode", true, Ignored),
    known('P', "policy", true, Ignored),
    long("at", true, Ignored),
    long("appname", true, Ignored),
    long("net-route", true, Ignored),
    long("fs", true, Ignored),
    known('w', "w", true, Ignored),
    long("vol", true, Ignored),
    long("jobenv", true, Ignored),
    long("stg-transfiles", true, Ignored),
    long("stgin", true, Ignored),
    long("stgin-dir", true, Ignored),
    long("stgin-basedir", true, Ignored),
    long("stgout", true, Ignored),
    long("stgout-dir", true, Ignored),
    long("stgout-basedir", true, Ignored),
    long("stgout-all", true, Ignored),
    long("vset", true, Ignored),
    long("lustre-stgin", true, Ignored),
    long("lustre-stgout", true, Ignored),
    long("restart", false, Ignored),
    long("no-stging", false, Silent),
    long("no-staging", false, Silent),
    long("norestart", false, Silent),
    long("no-check-directory", false, Silent),
    long("all-mount-gfscache", false, Silent),
    long("no-bulk", false, Silent),
    long("interact", false, Honoured),
    known('I', "interactive", false, Honoured),
    long("mswk", false, Ignored),
    long("workflow", true, Refused("workflow jobs are not here")),
];

/// Long names of the table that are not those of public documents.
const INVENTED: [&str; 8] =
    ["export", "export-all", "stats", "STATS", "z", "w", "policy", "interactive"];

/// An option with its value.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) from: Source,
    pub(crate) option: &'static Known,
    /// As it was written.
    pub(crate) name: String,
    /// Empty if the option has none.
    pub(crate) value: String,
}

impl Given {
    pub(crate) fn refuse(&self, what: impl fmt::Display) -> Refusal {
        let Self { from, name, value, .. } = self;
        let value = if value.is_empty() { String::new() } else { format!(" {value}") };
        Refusal::new(from, format!("{name}{value}: {what}"))
    }
}

fn by_long(name: &str) -> Option<&'static Known> {
    OPTIONS.iter().find(|known| known.long == name && !INVENTED.contains(&name))
}

fn by_short(letter: char) -> Option<&'static Known> {
    OPTIONS.iter().find(|known| known.short == Some(letter))
}

/// Reads options, up to the first word that is none. Returns the words from there on, too.
pub(crate) fn read<'a>(
    words: &'a [String],
    from: &Source,
) -> Result<(Vec<Given>, &'a [String]), Refusal> {
    let mut given = Vec::new();
    let mut words = words;
    while let [word, rest @ ..] = words {
        if word == "--" {
            return Ok((given, rest));
        }
        let Some(name) = word.strip_prefix('-').filter(|name| !name.is_empty()) else { break };
        words = rest;
        let next = |words: &mut &'a [String], name: &str| match *words {
            [value, rest @ ..] => {
                *words = rest;
                Ok(value.clone())
            }
            [] => Err(Refusal::new(from, format!("{name}: a value must follow"))),
        };
        let mut take = |option: &'static Known, name: String, value: String| {
            given.push(Given { from: from.clone(), option, name, value });
        };
        if let Some(name) = name.strip_prefix('-') {
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            let option = by_long(name).ok_or_else(|| unknown(from, word))?;
            let value = match (option.valued, value) {
                (true, Some(value)) => value,
                (true, None) => next(&mut words, word)?,
                (false, None) => String::new(),
                (false, Some(_)) => {
                    return Err(Refusal::new(from, format!("{word}: no value may follow")));
                }
            };
            take(option, format!("--{name}"), value);
            continue;
        }
        let mut letters = name.chars();
        while let Some(letter) = letters.next() {
            let option = by_short(letter).ok_or_else(|| unknown(from, word))?;
            let name = format!("-{letter}");
            if !option.valued {
                take(option, name, String::new());
                continue;
            }
            let value = match letters.as_str() {
                "" => next(&mut words, &name)?,
                value => value.to_owned(),
            };
            take(option, name, value);
            break;
        }
    }
    Ok((given, words))
}

fn unknown(from: &Source, word: &str) -> Refusal {
    let name = word.split('=').next().unwrap_or_default().trim_start_matches('-');
    let names = OPTIONS.iter().map(|known| known.long).filter(|name| !INVENTED.contains(name));
    let hint = match tofu_ui::nearest(name, names) {
        Some(near) => format!("; did you mean --{near}?"),
        None => "; pjsub --help lists those there are".to_owned(),
    };
    Refusal::new(from, format!("{word}: no such option{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_are_read_in_all_forms() {
        let words = words("-Lnode=2 -L node=3 --rsc-list=node=4 --mpi proc=2 -js -xA=1 job.sh -j");
        let (given, rest) = read(&words, &Source::CommandLine).unwrap();
        let given: Vec<_> = given.iter().map(|given| (given.option.long, &*given.value)).collect();
        let expected = [
            ("rsc-list", "node=2"),
            ("rsc-list", "node=3"),
            ("rsc-list", "node=4"),
            ("mpi", "proc=2"),
            ("join", ""),
            ("stats", ""),
            ("export", "A=1"),
        ];
        assert_eq!(given, expected);
        assert_eq!(rest, ["job.sh", "-j"]);
    }

    #[test]
    fn wrong_options_are_named_with_their_place() {
        let line = Source::Line("job.sh".to_owned(), 7);
        for (text, expected) in [
            (
                "--rsclist node=2",
                "job.sh line 7: --rsclist: no such option; did you mean --rsc-list?",
            ),
            ("-j -Q", "job.sh line 7: -Q: no such option; pjsub --help lists those there are"),
            ("-o", "job.sh line 7: -o: a value must follow"),
            ("--bulk=3", "job.sh line 7: --bulk=3: no value may follow"),
        ] {
            let error = read(&words(text), &line).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn names_are_there_once() {
        for (index, known) in OPTIONS.iter().enumerate() {
            let later = &OPTIONS[index + 1..];
            assert!(later.iter().all(|other| other.long != known.long), "{known:?}");
            assert!(
                known.short.is_none() || later.iter().all(|other| other.short != known.short),
                "{known:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_words_are_read(
            words in prop::collection::vec("(-{0,2}[a-zA-Z=,]{0,8}|\\PC{0,6})", 0..6),
        ) {
            if let Ok((given, rest)) = read(&words, &Source::CommandLine) {
                prop_assert!(rest.len() <= words.len());
                let has_value = |given: &Given| given.option.valued || given.value.is_empty();
                prop_assert!(given.iter().all(has_value));
            }
        }
    }
}
