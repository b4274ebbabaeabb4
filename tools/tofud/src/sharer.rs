//! A process that shares its control queue with another one.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use tofu_queue_owner::{Member, Refused, Reply, SharedQueues};
use tofu_vfio::broker::wire::{IsolatedRequest, Page};

use crate::isolated::{NewMemory, NewQueue, check_registrations};

/// The process, and the node's memory that it takes.
pub(crate) struct Sharer {
    pub(crate) member: Member,
    /// Bytes for its rings, while they are open.
    rings: u64,
    /// Bytes for memory that it has registered, by steering tag.
    registered: BTreeMap<u32, u64>,
}

impl Sharer {
    /// One that has opened nothing.
    pub(crate) const fn new(member: Member) -> Self {
        Self { member, rings: 0, registered: BTreeMap::new() }
    }

    /// Returns whether a request is about a control queue.
    pub(crate) const fn is_about_queue(request: &IsolatedRequest) -> bool {
        match request {
            IsolatedRequest::OpenQueue { .. }
            | IsolatedRequest::CloseQueue { .. }
            | IsolatedRequest::Register { .. }
            | IsolatedRequest::RegisterMapped { .. }
            | IsolatedRequest::Deregister { .. } => true,
            IsolatedRequest::Write { page, .. } | IsolatedRequest::Read { page, .. } => {
                matches!(page, Page::Queue(_))
            }
            _ => false,
        }
    }

    /// Bytes of the node's memory that it has.
    pub(crate) fn taken(&self) -> u64 {
        self.registered.values().sum::<u64>() + self.rings
    }

    /// Handles a request about the queue, if the memory that it takes `fits`.
    pub(crate) fn handle(
        &mut self,
        queues: &mut dyn SharedQueues,
        request: &IsolatedRequest,
        fds: &[OwnedFd],
        fits: impl Fn(u64) -> Result<(), Refused>,
    ) -> Result<Option<Reply>, Refused> {
        let queue = self.member.place();
        match *request {
            IsolatedRequest::OpenQueue { stags, mrq_size, session, .. } => {
                let cost = NewQueue { queue, stags, mrq_size, session }.cost();
                fits(cost)?;
                let reply = queues.handle(&mut self.member, request, fds)?;
                self.rings = cost;
                Ok(reply)
            }
            IsolatedRequest::Register {
                stag, offset, address, len, read_only, ref runs, ..
            } => {
                let Some(file) = fds.first().map(AsFd::as_fd) else {
                    return queues.handle(&mut self.member, request, fds);
                };
                let new = NewMemory { queue, stag, offset, address, len, read_only, file, runs };
                fits(new.cost())?;
                check_registrations(self.registered.len())?;
                let reply = queues.handle(&mut self.member, request, fds)?;
                self.registered.insert(stag, new.cost());
                Ok(reply)
            }
            IsolatedRequest::Deregister { stag, .. } => {
                let reply = queues.handle(&mut self.member, request, fds)?;
                self.registered.remove(&stag);
                Ok(reply)
            }
            _ => queues.handle(&mut self.member, request, fds),
        }
    }

    /// Returns what it waits for, if it can be had by now.
    pub(crate) fn settle(
        &mut self,
        queues: &mut dyn SharedQueues,
    ) -> Result<Option<Reply>, Refused> {
        let settled = queues.settle(&mut self.member);
        // It has closed the queue, or does not get it.
        if !matches!(settled, Ok(None | Some(Reply::Memory(..)))) {
            self.rings = 0;
            self.registered.clear();
        }
        settled
    }
}
