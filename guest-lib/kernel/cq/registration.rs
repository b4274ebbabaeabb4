// SPDX-License-Identifier: GPL-2.0

//! The STags of a queue: registration and deregistration of memory, and its unmapping by the
//! process.

use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::uaccess::{UserPtr, UserSlice};
use kernel::workqueue;

use crate::pin::PAGE;
use crate::uapi::{self, AllocStag, FreeStags, Span};
use crate::unmap::{MemoryUser, UsedMemory};

use super::queue::{Cq, Open};
use super::stag::Stag;
use super::tables::{given_out, StagState};

/// STags that FREE_STAGS takes in one call.
const MAX_FREE: u16 = 1024;

impl Cq {
    pub(super) fn alloc_stag(self: &Arc<Self>, arg: u64) -> Result {
        let mut a: AllocStag = uapi::get(arg)?;
        let mut state = self.state.lock();
        let open = state.as_deref_mut().ok_or(EPERM)?;
        let wanted = a.wanted().ok_or(EINVAL)?;
        let span = Span::new(&a, PAGE).ok_or(EINVAL)?;
        let known = match wanted {
            None if a.flags & uapi::NEW_STAG == 0 => self.known_stag(open, &span),
            _ => None,
        };
        let stag = match known {
            Some(stag) => stag,
            None => self.new_stag(open, wanted, &span)?,
        };
        a.stag = stag as i32;
        a.offset = span.offset(stag);
        let told = uapi::put(arg, &a);
        if told.is_err() && known.is_none() {
            self.free(open, &[stag])?;
        }
        told
    }

    /// Returns an STag that is already registered for the same memory, if the process still has its
    /// pages.
    fn known_stag(&self, open: &Open, span: &Span) -> Option<u32> {
        let shared = self.shared.lock();
        let tables = shared.tables.as_ref().filter(|_| shared.enabled)?;
        given_out(open.end, span.is_read_only()).find(|stag| {
            let known = open.stags.get(*stag as usize).and_then(Option::as_ref);
            known.is_some_and(|known| known.serves(span)) && tables.state(*stag) == StagState::Live
        })
    }

    /// Registers memory.
    fn new_stag(
        self: &Arc<Self>,
        open: &mut Open,
        wanted: Option<u32>,
        span: &Span,
    ) -> Result<u32> {
        let stag = self.reserve(wanted, span.is_read_only())?;
        let mut made = self.make_stag(open, stag, span);
        if made == Err(ENOMEM) && self.reclaim(open) {
            made = self.make_stag(open, stag, span);
        }
        if let Err(error) = made {
            if let Some(tables) = self.shared.lock().tables.as_mut() {
                tables.set_state(stag, StagState::Free);
            }
            // Memory that is not mapped is an invalid argument here.
            return Err(if error == EFAULT { EINVAL } else { error });
        }
        Ok(stag)
    }

    /// Reserves an STag.
    fn reserve(&self, wanted: Option<u32>, read_only: bool) -> Result<u32> {
        let mut shared = self.shared.lock();
        if !shared.enabled {
            return Err(EPERM);
        }
        let tables = shared.tables.as_mut().ok_or(EPERM)?;
        let stag = match wanted {
            Some(stag) if tables.state(stag) == StagState::Free => stag,
            Some(_) => return Err(EBUSY),
            None => tables.first_free(read_only).ok_or(ENOSPC)?,
        };
        tables.set_state(stag, StagState::Pending);
        Ok(stag)
    }

    /// Pins the memory of a reserved STag, and enables it in the device.
    fn make_stag(self: &Arc<Self>, open: &mut Open, number: u32, span: &Span) -> Result {
        let stag = Stag::new(self.clone(), &self.device, &self.opener, number, span)?;
        // Before the lock is taken, because this allocates.
        let stag = KBox::new(stag, GFP_KERNEL_ACCOUNT)?;
        let held = open.stags.get_mut(number as usize).ok_or(EINVAL)?;

        let mut shared = self.shared.lock();
        let tables = shared.tables.as_mut().ok_or(EPERM)?;
        if tables.state(number) != StagState::Pending {
            // The STag's notifier is dropped next, and waits for the holder of the lock.
            drop(shared);
            return Err(EFAULT);
        }
        tables.enable(number, &stag.entry());
        *held = Some(stag);
        open.end = open.end.max(number + 1);
        Ok(())
    }

    pub(super) fn free_stags(self: &Arc<Self>, arg: u64) -> Result {
        let mut a: FreeStags = uapi::get(arg)?;
        if a.num > MAX_FREE {
            return Err(EINVAL);
        }
        let mut state = self.state.lock();
        let open = state.as_deref_mut().ok_or(EPERM)?;
        let count = usize::from(a.num);
        let mut list = KVec::with_capacity(count, GFP_KERNEL)?;
        let user = || UserSlice::new(UserPtr::from_addr(a.stags as usize), count * 4);
        let mut reader = user().reader();
        for _ in 0..count {
            list.push(reader.read::<i32>()?, GFP_KERNEL)?;
        }
        let mut freed = KVec::with_capacity(count, GFP_KERNEL)?;
        let mut result = Ok(());
        for stag in list.iter_mut() {
            let number = *stag as u32;
            if *stag < 0 || number as usize >= open.stags.len() {
                result = Err(EINVAL);
                break;
            }
            if self.stag_state(number) != Some(StagState::Live) || freed.contains(&number) {
                result = Err(ENOENT);
                continue;
            }
            freed.push(number, GFP_KERNEL)?;
            *stag = -1;
        }
        self.free(open, &freed)?;
        let mut writer = user().writer();
        for stag in &list {
            writer.write(stag)?;
        }
        a.num = freed.len() as u16;
        uapi::put(arg, &a)?;
        result
    }

    fn stag_state(&self, stag: u32) -> Option<StagState> {
        let shared = self.shared.lock();
        shared.tables.as_ref().map(|tables| tables.state(stag))
    }

    /// Frees STags, with one flush for all.
    fn free(&self, open: &mut Open, stags: &[u32]) -> Result {
        if stags.is_empty() {
            return Ok(());
        }
        {
            let mut shared = self.shared.lock();
            let enabled = shared.enabled;
            if let Some(tables) = shared.tables.as_mut() {
                stags.iter().for_each(|stag| tables.disable(*stag));
            }
            if enabled {
                if let Err(error) = self.device.flush_cq(self.id) {
                    // They stay pinned and allocated, because the device might still use them.
                    self.stop(&mut shared);
                    return Err(error);
                }
            }
            if let Some(tables) = shared.tables.as_mut() {
                // No other caller allocates them while `state` is locked.
                stags
                    .iter()
                    .for_each(|stag| tables.set_state(*stag, StagState::Free));
            }
        }
        for stag in stags {
            if let Some(held) = open.stags.get_mut(*stag as usize) {
                *held = None;
            }
        }
        Ok(())
    }

    /// Frees the resources of STags whose memory was unmapped.
    pub(super) fn reclaim_unmapped(&self) {
        if let Some(open) = self.state.lock().as_deref_mut() {
            self.reclaim(open);
        }
    }

    /// The same. Returns whether there were any. The memory of a queue that was not seen to stop
    /// stays until its file is closed.
    fn reclaim(&self, open: &mut Open) -> bool {
        if self.shared.lock().is_stuck {
            return false;
        }
        let mut any = false;
        for (stag, held) in (0..).zip(open.stags.iter_mut()) {
            if held.is_some() && self.stag_state(stag) == Some(StagState::Dead) {
                *held = None;
                any = true;
                if let Some(tables) = self.shared.lock().tables.as_mut() {
                    tables.set_state(stag, StagState::Free);
                }
            }
        }
        any
    }
}

impl MemoryUser for Cq {
    fn unmapped(self: Arc<Self>, memory: UsedMemory) {
        let mut shared = self.shared.lock();
        let enabled = shared.enabled;
        match memory {
            UsedMemory::Ring => {
                shared.ring_gone = true;
                if enabled {
                    self.stop(&mut shared);
                }
            }
            UsedMemory::Stag(stag) => {
                let Some(tables) = shared.tables.as_mut() else {
                    return;
                };
                match tables.state(stag) {
                    StagState::Pending => tables.set_state(stag, StagState::Aborted),
                    StagState::Live => {
                        tables.disable(stag);
                        tables.set_state(stag, StagState::Dead);
                        if enabled && self.device.flush_cq(self.id).is_err() {
                            self.stop(&mut shared);
                        }
                        drop(shared);
                        // The notifier cannot be removed here, in its own callback.
                        let _ = workqueue::system_long().enqueue(self);
                    }
                    _ => {}
                }
            }
        }
    }
}
