//! The guest's side of the stream.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use tofu_sync::lock;

use crate::identity;
use crate::job::Job;
use crate::port::{Port, Reports};
use crate::wire::{
    Exec, FrameReader, FromGuest, FromProgram, MAX_PROGRAMS, Status, ToGuest, ToProgram, VERSION,
    WireError,
};

type Jobs = Arc<Mutex<HashMap<u32, Arc<Job>>>>;

/// Serves hosts until the stream ends; then all programs are killed.
///
/// # Errors
///
/// If the stream breaks.
pub fn serve(input: impl Read, output: impl Write + Send + 'static) -> Result<(), WireError> {
    let port = Arc::new(Port::new(Box::new(output)));
    let jobs = Jobs::default();
    let mut input = FrameReader::new(input);
    port.say(&FromGuest::Awake);
    let end = loop {
        match input.receive() {
            Ok(Some(message)) => take(message, &port, &jobs),
            Ok(None) => break Ok(()),
            Err(error @ WireError::Io(_)) => break Err(error),
            // The rest of a host's last message, or a host of another kind.
            Err(error) => log::warn!("from the host: {error}"),
        }
    };
    kill_all(&jobs);
    end
}

fn kill_all(jobs: &Jobs) {
    for (_, job) in lock(jobs).drain() {
        job.kill();
    }
}

fn take(message: ToGuest, port: &Arc<Port>, jobs: &Jobs) {
    match message {
        ToGuest::Hello { session, .. } => {
            kill_all(jobs);
            port.say(&FromGuest::Welcome { version: VERSION, session });
        }
        ToGuest::Ping => port.say(&FromGuest::Pong),
        ToGuest::Exec { id, exec } => start(id, exec, port, jobs),
        ToGuest::Identify(identity) => {
            let done = identity::assume(&identity).map_err(|error| error.to_string());
            port.say(&FromGuest::Identified(done));
        }
        ToGuest::To { id, what } => {
            let job = lock(jobs).get(&id).cloned();
            let Some(job) = job else { return };
            match what {
                ToProgram::Input(bytes) => job.input(bytes),
                ToProgram::InputEnd => job.input_end(),
                ToProgram::Credit(output, bytes) => job.credit(output, bytes),
                ToProgram::Signal(number) => job.signal(number),
                ToProgram::Kill => job.kill(),
                ToProgram::Resize(size) => job.resize(size),
            }
        }
    }
}

fn start(id: u32, exec: Exec, port: &Arc<Port>, jobs: &Jobs) {
    let reports = Reports::new(Arc::clone(port), id);
    let refuse = |missing, why: String| {
        reports.say(FromProgram::Ended(Status::NotRun { missing, why }));
    };
    {
        let jobs = lock(jobs);
        if jobs.contains_key(&id) {
            return log::warn!("the host starts program {id} twice");
        }
        if jobs.len() >= MAX_PROGRAMS {
            drop(jobs);
            return refuse(false, format!("{MAX_PROGRAMS} programs run already"));
        }
    }
    let (job, child) = match Job::spawn(&exec) {
        Ok(started) => started,
        Err((missing, why)) => return refuse(missing, why),
    };
    lock(jobs).insert(id, Arc::clone(&job));
    let jobs = Arc::clone(jobs);
    job.attend(child, reports, move |job| {
        // Another session may have given the number to another program.
        let mut jobs = lock(&jobs);
        if jobs.get(&id).is_some_and(|current| Arc::ptr_eq(current, job)) {
            jobs.remove(&id);
            true
        } else {
            false
        }
    });
}
