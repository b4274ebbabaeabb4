//! A thread that calls functions upon events.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use event_manager::{
    EventManager, EventOps, EventSet, Events, MutEventSubscriber, RemoteEndpoint, SubscriberOps,
};
use vmm_sys_util::eventfd::EventFd;

/// The callback upon an eventfd.
struct Handler {
    event: EventFd,
    call: Box<dyn FnMut() + Send>,
}

impl MutEventSubscriber for Handler {
    fn init(&mut self, ops: &mut EventOps<'_>) {
        if let Err(error) = ops.add(Events::new(&self.event, EventSet::IN)) {
            log::error!("waiting for an interrupt: {error}");
        }
    }

    fn process(&mut self, _events: Events, _ops: &mut EventOps<'_>) {
        // Another reader may have been faster.
        if self.event.read().is_ok() {
            (self.call)();
        }
    }
}

/// An event loop on a separate thread, until it is dropped.
pub(crate) struct EventLoop {
    endpoint: RemoteEndpoint<Handler>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EventLoop {
    pub(crate) fn start() -> io::Result<Self> {
        let mut manager = EventManager::<Handler>::new().map_err(io::Error::other)?;
        let endpoint = manager.remote_endpoint();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("tofu-events".into()).spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                if let Err(error) = manager.run() {
                    log::error!("waiting for interrupts: {error}");
                    return;
                }
            }
        })?;
        Ok(Self { endpoint, stop, thread: Some(thread) })
    }

    /// From now on, calls `call` whenever `event` is written. Events that come while it runs, or
    /// close together, cause one call.
    pub(crate) fn add(
        &self,
        event: EventFd,
        call: impl FnMut() + Send + 'static,
    ) -> io::Result<()> {
        let handler = Handler { event, call: Box::new(call) };
        let add = move |ops: &mut dyn SubscriberOps<Subscriber = Handler>| {
            ops.add_subscriber(handler);
            Ok::<_, event_manager::Error>(())
        };
        self.endpoint.call_blocking(add).map_err(io::Error::other)
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.endpoint.kick();
        if let Some(thread) = self.thread.take()
            // A handler may own the last reference to what the loop belongs to.
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::irq::new_event;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn each_event_calls_its_function() {
        let events = EventLoop::start().unwrap();
        let (sender, called) = mpsc::channel();
        let fds = [(); 2].map(|()| new_event().unwrap());
        for (i, fd) in fds.iter().enumerate() {
            let sender = sender.clone();
            events.add(fd.try_clone().unwrap(), move || sender.send(i).unwrap()).unwrap();
        }
        for i in [1, 0, 0, 1] {
            fds[i].write(1).unwrap();
            assert_eq!(called.recv_timeout(Duration::from_secs(20)), Ok(i));
        }
        drop(events);
        fds[0].write(1).unwrap();
        assert!(called.recv_timeout(Duration::from_millis(20)).is_err(), "the loop has ended");
    }
}
