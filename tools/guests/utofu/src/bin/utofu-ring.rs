//! Each node puts its number into the next one's memory by uTofu, and waits for that of the
//! previous one.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec;

use tofu_abi::topology::NodeId;
use tofu_guests::{Error, fail, machine_shape, println};
use tofu_utofu::command::Posting;
use tofu_utofu::flags::{REMOTE_MRQ_NOTICE, TCQ_NOTICE};
use tofu_utofu::ids::{Stadd, VcqId};
use tofu_utofu::{Code, Context, Place, Vcq};
use tofu_utofu_bare::BareProvider;

const CMP_ID: u16 = 7;
const MAILBOX: u32 = 1;
/// How long the next node may take to get ready, in nanoseconds.
const PATIENCE_NS: u64 = 30_000_000_000;

tofu_guests::entry!(ring);

/// Puts eight bytes, until the target is there to take them.
fn put(vcq: &Vcq<BareProvider>, to: VcqId, value: u64) -> Result<(), Error> {
    let posting = Posting::new(to.0, 0, TCQ_NOTICE | REMOTE_MRQ_NOTICE)?;
    let command = posting.put_piggyback8(value, 8, Stadd::reserved(to, MAILBOX)?.0)?;
    let start = tofu_guests::now_ns();
    loop {
        vcq.post(&command, 0)?;
        let done = loop {
            if let Some(done) = vcq.poll_tcq() {
                break done;
            }
            vcq.relax();
        };
        match done.status() {
            Code::Success => return Ok(()),
            _ if tofu_guests::now_ns() - start < PATIENCE_NS => {}
            code => return Err(fail!("the next node does not get ready: {}", code.name())),
        }
    }
}

fn ring() -> Result<(), Error> {
    let shape = machine_shape()?;
    let provider = tofu_utofu_bare::open(0).map_err(|e| fail!("{e}"))?;
    // The core counts references across threads; a bare guest has one thread only.
    #[expect(clippy::arc_with_non_send_sync)]
    let context = Context::new(Arc::new(provider), Place::new(0, 1)?);
    let NodeId(rank) =
        shape.node_id(context.coords()).ok_or_else(|| fail!("not in the machine"))?;
    let vcq = context.create_vcq(0, Some(CMP_ID), 0)?;
    let mailbox = vec![u64::MAX; 64].leak().as_mut_ptr();
    let mailbox = (mailbox as usize).next_multiple_of(256) as *mut u64;
    // SAFETY: the memory is never freed, and read by volatile accesses.
    unsafe { vcq.reg_mem(mailbox.cast(), 256, Some(MAILBOX), 0)? };

    let next =
        shape.coords(NodeId((rank + 1) % shape.nodes())).ok_or_else(|| fail!("no next node"))?;
    put(&vcq, VcqId::construct(next, 0, 0, CMP_ID)?, u64::from(rank))?;
    let notice = loop {
        if let Some(notice) = vcq.poll_mrq() {
            break notice;
        }
        vcq.relax();
    };
    // SAFETY: as above.
    let from = unsafe { mailbox.read_volatile() };
    println!("node {from} has written here, from {}", notice.vcq_id.coords());
    // Whoever writes here must still find the memory: the machine ends when all have ended.
    Ok(())
}
