//! A device's thread: it sleeps until there is something to do.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use event_manager::{EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberOps};

use crate::device::{Interest, Work};
use crate::shared::Core;

/// The body of the thread.
pub(crate) fn run(core: &Arc<Core>) {
    if let Err(error) = serve(core) {
        log::error!("{}: {error}", core.name);
    }
}

fn serve(core: &Arc<Core>) -> Result<(), event_manager::Error> {
    let mut sources = EventManager::<Sources>::new()?;
    sources.add_subscriber(Sources { core: Arc::clone(core), listening: Vec::new() });
    while !core.stopping() {
        sources.run()?;
    }
    Ok(())
}

/// The events that the thread sleeps on: the call that wakes it, and the device's own.
struct Sources {
    core: Arc<Core>,
    /// Holding them keeps their numbers from being used for something else.
    listening: Vec<Interest>,
}

impl Sources {
    /// Listens to what the device wants now.
    fn follow(&mut self, ops: &mut EventOps<'_>) {
        let interests = self.core.interests();
        let same = |a: &Arc<UnixStream>, b: &Interest| Arc::ptr_eq(a, &b.stream);
        for old in &self.listening {
            if !interests.iter().any(|interest| same(&old.stream, interest)) {
                self.report(ops.remove(Events::new(&*old.stream, old.events)));
            }
        }
        for interest in &interests {
            match self.listening.iter().find(|old| same(&old.stream, interest)) {
                None => self.report(ops.add(Events::new(&*interest.stream, interest.events))),
                Some(old) if old.events != interest.events => {
                    self.report(ops.modify(Events::new(&*interest.stream, interest.events)));
                }
                Some(_) => {}
            }
        }
        self.listening = interests;
    }

    fn report(&self, result: Result<(), event_manager::Error>) {
        if let Err(error) = result {
            self.core.complain(&format_args!("listening to the host's side: {error}"));
        }
    }
}

impl MutEventSubscriber for Sources {
    fn process(&mut self, events: Events, ops: &mut EventOps<'_>) {
        if events.fd() == self.core.wake.as_raw_fd() {
            let _ = self.core.wake.read();
        }
        while self.core.turn() == Work::More {}
        self.follow(ops);
    }

    fn init(&mut self, ops: &mut EventOps<'_>) {
        if let Err(error) = ops.add(Events::new(&self.core.wake, EventSet::IN)) {
            log::error!("{}: {error}", self.core.name);
        }
    }
}
