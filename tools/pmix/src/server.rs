//! The process that serves.

use std::ffi::CString;
use std::fs;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::library::{Infos, Library};
use crate::{Layout, Said, Task, Variables, confine};

/// The time that the library has to end.
const END: Duration = Duration::from_secs(3);

/// Serves the ranks of a job that a line of standard input describes, until standard input ends.
/// Its messages go to standard output.
///
/// # Errors
///
/// If the line is not a job's, or output cannot be written.
pub fn serve() -> anyhow::Result<u8> {
    let mut line = String::new();
    let mut input = io::stdin().lock();
    input.read_line(&mut line)?;
    let task: Task = serde_json::from_str(&line).context("not a job of this version")?;
    let Task { layout, files } = task;
    let begun = match &layout.away {
        None => begin(&layout, &files),
        // The threads that the library starts are confined as well.
        Some(_) => confine::to(&files).and_then(|()| begin(&layout, &files)),
    };
    let library = match begun {
        Ok((library, variables)) => {
            say(&Said::Ready(variables))?;
            library
        }
        Err(error) => {
            say(&Said::Failed(format!("{error:#}")))?;
            return Ok(1);
        }
    };
    // Nothing more comes.
    let _ = io::copy(&mut input.by_ref(), &mut io::sink());
    end(library, &files);
    Ok(0)
}

fn say(said: &Said) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(said)?)?;
    out.flush()
}

/// Starts the server. Returns the variables of each rank.
fn begin(layout: &Layout, files: &Path) -> anyhow::Result<(Library, Vec<Variables>)> {
    let library = Library::load(&layout.library)?;
    let mut infos = Infos::default();
    infos.text("pmix.srvr.tmpdir", CString::new(files.as_os_str().as_bytes())?);
    let report = |report| {
        if let Err(error) = say(&Said::Reported(report)) {
            log::warn!("a report about a rank is lost ({report}): {error}");
        }
    };
    library.start(&infos, Box::new(report))?;
    let ranks = layout.nodes.iter().map(|(_, ranks)| ranks.len()).sum::<usize>();
    let ranks = u32::try_from(ranks)?;
    library.add_job(&layout.job, ranks, &about(&library, layout, ranks, files)?)?;
    let names = layout.nodes.iter().flat_map(|(name, on)| on.iter().map(move |rank| (rank, name)));
    let mut all = vec![Vec::new(); ranks as usize];
    for (rank, name) in names {
        let mut variables = library.add_rank(&layout.job, *rank, user(layout))?;
        // It takes this host's name otherwise, and then ranks take each other for neighbours.
        set(&mut variables, "PMIX_HOSTNAME", name);
        if let Some(folder) = layout.away.as_ref().and_then(|away| away.folder.to_str()) {
            set(&mut variables, "PMIX_SERVER_TMPDIR", folder);
            set(&mut variables, "PMIX_SYSTEM_TMPDIR", folder);
        }
        *all.get_mut(*rank as usize).context("a rank beyond the last one")? = variables;
    }
    Ok((library, all))
}

/// The numbers of the ranks' user and group: those of this process if they are here.
fn user(layout: &Layout) -> [u32; 2] {
    let own = || [rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()];
    layout.away.as_ref().map_or_else(own, |away| [away.user; 2])
}

fn set(variables: &mut Variables, name: &str, value: &str) {
    variables.retain(|(key, _)| key != name);
    variables.push((name.to_owned(), value.to_owned()));
}

/// Facts about the job for ranks that ask: the keys of the PMIx standard that Open MPI asks for.
fn about(library: &Library, layout: &Layout, ranks: u32, files: &Path) -> anyhow::Result<Infos> {
    let folder = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let list = |ranks: &[u32]| ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let names: Vec<_> = layout.nodes.iter().map(|(name, _)| name.as_str()).collect();
    let lists: Vec<_> = layout.nodes.iter().map(|(_, ranks)| list(ranks)).collect();
    let mut infos = Infos::default();
    infos.text("pmix.jobid", CString::new(layout.job.as_str())?);
    infos.uint32("pmix.univ.size", ranks);
    infos.uint32("pmix.job.size", ranks);
    infos.uint32("pmix.max.size", ranks);
    infos.uint32("pmix.app.size", ranks);
    infos.uint32("pmix.job.napps", 1);
    infos.uint32("pmix.num.nodes", u32::try_from(names.len())?);
    // Where ranks may have files; they are removed with the folder.
    let files = layout.away.as_ref().map_or(files, |away| &away.folder);
    let own = files.join("job");
    infos.text("pmix.tmpdir", folder(files)?);
    infos.text("pmix.nsdir", folder(&own)?);
    infos.flag("pmix.tdir.rmclean", true);
    infos.text("pmix.nmap", library.nodes(&names.join(","))?);
    infos.text("pmix.pmap", library.ranks(&lists.join(";"))?);
    for (id, ((name, on), peers)) in layout.nodes.iter().zip(lists).enumerate() {
        let (id, count) = (u32::try_from(id)?, u32::try_from(on.len())?);
        let mut node = Infos::default();
        node.text("pmix.hname", CString::new(name.as_str())?);
        node.uint32("pmix.nodeid", id);
        node.uint32("pmix.local.size", count);
        node.uint32("pmix.node.size", count);
        node.text("pmix.lpeers", CString::new(peers)?);
        node.rank("pmix.lldr", on.first().copied().unwrap_or_default());
        infos.array("pmix.node.arr", node);
        for (local, rank) in (0..).zip(on) {
            let mut process = Infos::default();
            process.rank("pmix.rank", *rank);
            process.rank("pmix.grank", *rank);
            process.uint16("pmix.lrank", local);
            process.uint16("pmix.nrank", local);
            process.uint32("pmix.nodeid", id);
            process.text("pmix.hname", CString::new(name.as_str())?);
            process.uint32("pmix.appnum", 0);
            let own = own.join(rank.to_string());
            if layout.away.is_none() {
                fs::create_dir_all(&own)?;
            }
            process.text("pmix.pdir", folder(&own)?);
            infos.array("pmix.pdata", process);
        }
    }
    Ok(infos)
}

/// Ends the server. This process ends in any case, so the library must not keep it.
fn end(library: Library, files: &Path) {
    let ended = thread::Builder::new().spawn(move || library.stop());
    let deadline = Instant::now() + END;
    while ended.as_ref().is_ok_and(|thread| !thread.is_finished()) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    // What is left is removed by the process that has started this one, if it still can.
    let _ = fs::remove_dir_all(files);
    std::process::exit(0)
}
