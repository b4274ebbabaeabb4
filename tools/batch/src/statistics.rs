//! The file of statistics that a job leaves.

use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::key::Part;
use crate::record::{Record, code, date, span};
use crate::resources::joined;

/// Writes the statistics of a job that has ended, if it requests them.
pub(crate) fn write(record: &Record) -> anyhow::Result<()> {
    let Some(name) = record.files().statistics else { return Ok(()) };
    let path = Path::new(&record.folder).join(name);
    fs::write(&path, text(record)).with_context(|| format!("cannot write {}", path.display()))
}

/// The statistics of a job as lines of names and values.
pub(crate) fn text(record: &Record) -> String {
    let Record { request, ending, key, .. } = record;
    let moment = |moment: Option<u64>| moment.map_or("-".to_owned(), date);
    let used = match (record.started, record.ended) {
        (Some(started), Some(ended)) => Some(ended.saturating_sub(started)),
        _ => None,
    };
    let time = |seconds: Option<u64>| {
        seconds.map_or("-".to_owned(), |seconds| format!("{} ({seconds})", span(seconds)))
    };
    let files = record.files();
    let sub = match key.part {
        Part::Whole => "-".to_owned(),
        Part::Step(number) | Part::Bulk(number) => number.to_string(),
    };
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let mut rows = vec![
        ("JOB ID", key.id.to_string()),
        ("SUB JOB NUM", sub),
        ("JOB NAME", record.name.clone()),
        ("JOB TYPE", if request.interactive { "INTERACT" } else { "BATCH" }.to_owned()),
        ("JOB MODEL", key.model().to_owned()),
        ("USER", record.user.clone()),
        ("RESOURCE UNIT", or_none(&request.unit)),
        ("RESOURCE GROUP", or_none(&request.group)),
        ("COMMENT", or_none(&request.comment)),
        ("STATE", record.state.text().to_owned()),
        ("EXIT CODE", ending.exit.to_string()),
        ("SIGNAL NO", ending.signal.to_string()),
        ("PJM CODE", ending.manager.to_string()),
        ("REASON", or_none(&ending.detail).replace('\n', " ")),
        ("HOST NAME", record.host.clone()),
        ("CURRENT DIRECTORY", record.folder.clone()),
        ("STD OUT FILE", files.out),
        ("STD ERR FILE", files.err.unwrap_or_else(|| "-".to_owned())),
        ("ACCEPT DATE", date(record.accepted)),
        ("JOB START DATE", moment(record.started)),
        ("JOB END DATE", moment(record.ended)),
        ("ELAPSE TIME (LIMIT)", time(request.elapse)),
        ("ELAPSE TIME (USE)", time(used)),
        ("NODE NUM (REQUIRE)", request.nodes.required()),
        ("MPI PROC NUM (REQUIRE)", request.ranks().to_string()),
    ];
    if ending.detail.is_none() && ending.manager != code::COMPLETED {
        for (name, value) in &mut rows {
            if *name == "REASON" {
                *value = code::reason(ending.manager).to_owned();
            }
        }
    }
    if let Some((user, system)) = record.processor {
        rows.push(("USER CPU TIME (USE)", format!("{user} ms")));
        rows.push(("SYSTEM CPU TIME (USE)", format!("{system} ms")));
    }
    if request.statistics == Some(true) {
        rows.extend(of_processes(record));
    }
    // Programs that read these files expect the space in front.
    let lines = rows.iter().map(|(name, value)| format!(" {name:<26}: {value}\n"));
    format!("\nJob Statistical Information\n\n{}", lines.collect::<String>())
}

/// The lines that `-S` adds.
fn of_processes(record: &Record) -> [(&'static str, String); 4] {
    let request = &record.request;
    let machine = match &request.time {
        Some(_) => Some("in modelled time".to_owned()),
        None => request.machine.clone(),
    };
    [
        ("MPI SHAPE", joined(request.torus())),
        ("MAX PROC PER NODE", request.on_node().to_string()),
        ("RANK MAP", record.order().to_owned()),
        ("MACHINE", machine.unwrap_or_else(|| "of processes here".to_owned())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::State;
    use crate::record::tests::record;
    use crate::request::Request;

    #[test]
    fn statistics_say_how_a_job_ended() {
        let mut job = record(Part::Bulk(3), Request::default());
        job.request.statistics = Some(true);
        job.request.elapse = Some(60);
        job.state = State::Ext;
        job.started = Some(job.accepted + 1);
        job.ended = Some(job.accepted + 62);
        job.ending.manager = code::ELAPSED;
        job.ending.signal = 24;
        let text = text(&job);
        let value = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!(" {name} ")));
            line.and_then(|line| line.split_once(": ")).map(|(_, value)| value).unwrap_or("none")
        };
        assert_eq!(value("SUB JOB NUM"), "3");
        assert_eq!(value("PJM CODE"), "11");
        assert_eq!(value("REASON"), "ELAPSE LIMIT EXCEEDED");
        assert_eq!(value("ELAPSE TIME (USE)"), "0000:01:01 (61)");
        assert_eq!(value("JOB START DATE"), "2023-11-14 22:13:21");
        assert_eq!(value("RANK MAP"), "rank-map-bychip");
    }
}
