//! Commands that hold, release and change waiting jobs, and commands that show the available
//! resources.

use std::io::{self, Write};

use crate::commands::{accept, named, refuse, revive, split};
use crate::record::{Record, State};
use crate::resources::{self, GROUPS, MOST, Resource, UNIT};
use crate::spool::Spool;

/// Changes the jobs that `words` name and that are in one of the states of `from`. Returns the exit
/// code.
fn change(
    command: &str,
    words: &[String],
    from: &[State],
    each: &dyn Fn(&mut Record),
) -> anyhow::Result<u8> {
    let selections = match named(command, words) {
        Ok(selections) => selections,
        Err(code) => return Ok(code),
    };
    let spool = Spool::open()?;
    let locked = spool.lock()?;
    let result = accept(command, &locked, (&selections, words), from, &|record| {
        let mut record = record.clone();
        each(&mut record);
        locked.write(&record)
    })?;
    drop(locked);
    revive(&spool)?;
    Ok(result)
}

/// Keeps jobs that wait from running. Returns the exit code.
///
/// # Errors
///
/// If the spool cannot be read or written.
pub fn pjhold(words: &[String]) -> anyhow::Result<u8> {
    let (options, words) = split(words, &["-R", "--reason"]);
    for (name, _) in options {
        if !["-R", "--reason", "-f", "--enforce"].contains(&name) {
            return Ok(refuse("pjhold", 99, &format!("{name}: there is --reason")));
        }
    }
    // One that runs would be ended and run again on a real system.
    change("pjhold", &words, &[State::Que], &|record| record.state = State::Hld)
}

/// Releases jobs that are held. Returns the exit code.
///
/// # Errors
///
/// If the spool cannot be read or written.
pub fn pjrls(words: &[String]) -> anyhow::Result<u8> {
    let (options, words) = split(words, &[]);
    if let Some((name, _)) = options.first() {
        return Ok(refuse("pjrls", 99, &format!("{name}: no options are here")));
    }
    change("pjrls", &words, &[State::Hld], &|record| record.state = State::Que)
}

/// Changes the time limit, group or unit of jobs that wait. Returns the exit code.
///
/// # Errors
///
/// If the spool cannot be read or written.
pub fn pjalter(words: &[String]) -> anyhow::Result<u8> {
    let (options, words) = split(words, &["-L", "--rsc-list", "-p", "--at"]);
    let (mut changes, mut ignored) = (Vec::new(), Vec::new());
    for (name, value) in options {
        match (name, value) {
            ("-L" | "--rsc-list", Some(value)) => match resources::resources(value) {
                Ok(resources) => changes.extend(resources),
                Err(why) => return Ok(refuse("pjalter", 99, &format!("{name} {why}"))),
            },
            ("-p" | "--at", value) => {
                ignored.push(format!("{name} {}", value.unwrap_or_default()));
            }
            _ => return Ok(refuse("pjalter", 99, &format!("{name}: there are -L, -p and --at"))),
        }
    }
    for resource in &changes {
        match resource {
            Resource::Nodes(_) | Resource::VirtualNodes(_) => {
                let why = "-L node=: a job keeps its nodes; submit it again";
                return Ok(refuse("pjalter", 99, &why));
            }
            Resource::Ignored(word) => ignored.push(word.clone()),
            Resource::VirtualCores(number) => ignored.push(format!("vnode-core={number}")),
            _ => {}
        }
    }
    if !ignored.is_empty() {
        let ignored = ignored.join("; ");
        let _ = writeln!(io::stderr(), "[INFO] PJM 0099 pjalter Ignored: {ignored}.");
    }
    change("pjalter", &words, &[State::Que, State::Hld], &|record| {
        for change in &changes {
            match change {
                Resource::Elapse(elapse) => record.request.elapse = *elapse,
                Resource::Group(group) => record.request.group = Some(group.clone()),
                Resource::Unit(unit) => record.request.unit = Some(unit.clone()),
                Resource::Nodes(_)
                | Resource::VirtualNodes(_)
                | Resource::VirtualCores(_)
                | Resource::Ignored(_) => {}
            }
        }
    })
}

/// The groups that a user names, or else all.
fn groups(words: &[String]) -> Vec<String> {
    let (options, _) = split(words, &["--rscgrp", "--rg", "--rscunit", "--ru"]);
    let named = options.iter().find(|(name, _)| ["--rscgrp", "--rg"].contains(name));
    match named.and_then(|(_, value)| *value) {
        Some(group) => vec![group.to_owned()],
        None => GROUPS.map(str::to_owned).to_vec(),
    }
}

/// Shows nodes in total, free and in use. Returns the exit code.
///
/// # Errors
///
/// If the spool cannot be read.
pub fn pjshowrsc(words: &[String]) -> anyhow::Result<u8> {
    let records = Spool::open()?.lock()?.records()?;
    let running = records.iter().filter(|record| record.state == State::Run);
    let used: u32 = running.map(|record| record.request.nodes.count()).sum();
    let row = |group: String| {
        let free = MOST.saturating_sub(used).to_string();
        vec![UNIT.to_owned(), group, MOST.to_string(), free, used.to_string()]
    };
    let rows = groups(words).into_iter().map(row);
    let head = ["RSCUNIT", "RSCGRP", "TOTAL", "FREE", "ALLOC"];
    let data = words.iter().any(|word| word == "--data");
    let text = match data {
        true => {
            let rows = rows.map(|row| row.join(",") + "\n").collect::<String>();
            format!("{}\n{rows}", head.join(","))
        }
        false => tofu_ui::table(&head, &[2, 3, 4], rows),
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(0)
}

/// Shows the resources that a user may request. Returns the exit code.
///
/// # Errors
///
/// If output cannot be written.
pub fn pjacl(words: &[String]) -> anyhow::Result<u8> {
    let groups = groups(words).join(",");
    writeln!(
        io::stdout(),
        "rscunit: {UNIT}\nrscgrp: {groups} (any other name is as good)\nnode: 1 to {MOST}\n\
         proc: 1 to {MOST}\nelapse: unlimited"
    )?;
    Ok(0)
}
