//! Handles of VCQs. They are numbers rather than pointers, so freed VCQs can be recognised.
//!
//! As on real systems, the lowest four bits are the VCQ's extra value, and the next four are 0.

use tofu_abi::Coords;
use tofu_utofu::{Code, Error, SharedQueue, Ticket, Vcq};

use crate::process;
use crate::provider::AnyProvider;

/// Positions of the fields: extra value 3:0, queue 15:8, process 31:16, serial number 55:32, and
/// from 56 on the number of its process in the chain of forks.
const QUEUE: u32 = 8;
const PROCESS: u32 = 16;
const SERIAL: u32 = 32;
const GENERATION: u32 = 56;

/// Returns the handle of a new VCQ of a process.
pub(crate) fn give(vcq: Vcq<AnyProvider>, process: usize) -> Result<usize, Error> {
    let (queue, ticket) = vcq.into_parts();
    let generation = process::own_generation();
    let own = process::existing(process, generation);
    let queues = own.map_or(&[][..], |process| process.queues());
    let same =
        |other: &std::sync::Arc<SharedQueue<AnyProvider>>| std::sync::Arc::ptr_eq(other, &queue);
    let index = queues.iter().position(same).ok_or(no_such_vcq(0))?;
    Ok(usize::from(ticket.extra)
        | index << QUEUE
        | process << PROCESS
        | (ticket.serial as usize) << SERIAL
        | (generation as usize) << GENERATION)
}

/// Returns the VCQ of a handle. Whether it still exists is checked with the queue's lock held.
#[inline(always)]
pub(crate) fn find(handle: usize) -> Result<(&'static SharedQueue<AnyProvider>, Ticket), Error> {
    let queue = || {
        let generation = (handle >> GENERATION) as u32;
        let process = process::existing(handle >> PROCESS & 0xffff, generation)?;
        process.queues().get(handle >> QUEUE & 0xff)
    };
    match queue() {
        Some(queue) if handle & 0xf0 == 0 => {
            let serial = (handle >> SERIAL) as u32 % Ticket::SERIALS;
            Ok((&**queue, Ticket { extra: handle as u8 & 15, serial }))
        }
        _ => Err(not_found(handle)),
    }
}

/// Returns the node of a handle's VCQ.
pub(crate) fn node(handle: usize) -> Option<Coords> {
    find(handle).ok().map(|(queue, _)| queue.coords())
}

#[cold]
fn not_found(handle: usize) -> Error {
    if process::is_of_parent((handle >> GENERATION) as u32) {
        process::parents("VCQ handle")
    } else {
        no_such_vcq(handle)
    }
}

const fn no_such_vcq(handle: usize) -> Error {
    let hint = "there is no such VCQ, or it was freed";
    Error::with_value(Code::InvalidVcqHdl, "VCQ handle", handle as u64, hint)
}
