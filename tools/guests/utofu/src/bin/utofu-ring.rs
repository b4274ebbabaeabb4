//! Each node puts its number into the next one's memory by uTofu, and waits for that of the
//! previous one.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec;

use tofu_abi::topology::NodeId;
use tofu_guests::{Error, fail, println};
use tofu_guests_utofu::{CMP_ID, Node};
use tofu_utofu::command::Posting;
use tofu_utofu::flags::{LOCAL_MRQ_NOTICE, REMOTE_MRQ_NOTICE};
use tofu_utofu::ids::{Stadd, VcqId};
use tofu_utofu::{Code, Notice, Vcq};
use tofu_utofu_bare::BareProvider;

const MAILBOX: u32 = 1;
/// The time limit for the next node to get ready, in nanoseconds.
const PATIENCE_NS: u64 = 30_000_000_000;

tofu_guests::entry!(ring);

/// The next notice.
fn notice(vcq: &Vcq<BareProvider>) -> Notice {
    loop {
        if let Some(notice) = vcq.poll_mrq() {
            return notice;
        }
        vcq.relax();
    }
}

/// Puts eight bytes until the notice reports that the target has taken them. Returns the notice of
/// another node's Put, if one comes before that.
fn put(vcq: &Vcq<BareProvider>, to: VcqId, value: u64) -> Result<Option<Notice>, Error> {
    let posting = Posting::new(to.0, 0, LOCAL_MRQ_NOTICE | REMOTE_MRQ_NOTICE)?;
    let command = posting.put_piggyback8(value, 8, Stadd::reserved(to, MAILBOX)?.0)?;
    let start = tofu_guests::now_ns();
    let mut arrived = None;
    loop {
        vcq.post(&command, 0)?;
        let own = loop {
            let notice = notice(vcq);
            if notice.kind.is_local() {
                break notice;
            }
            arrived = Some(notice);
        };
        match own.status() {
            Code::Success => return Ok(arrived),
            _ if tofu_guests::now_ns() - start < PATIENCE_NS => {}
            code => return Err(fail!("the next node does not get ready: {}", code.name())),
        }
    }
}

fn ring() -> Result<(), Error> {
    let Node { shape, rank, context } = Node::open()?;
    let vcq = context.create_vcq(0, Some(CMP_ID), 0)?;
    let mailbox = vec![u64::MAX; 64].leak().as_mut_ptr();
    let mailbox = (mailbox as usize).next_multiple_of(256) as *mut u64;
    // SAFETY: the memory is never freed, and read by volatile accesses.
    unsafe { vcq.reg_mem(mailbox.cast(), 256, Some(MAILBOX), 0)? };

    let next =
        shape.coords(NodeId((rank + 1) % shape.nodes())).ok_or_else(|| fail!("no next node"))?;
    let arrived = put(&vcq, VcqId::construct(next, 0, 0, CMP_ID)?, u64::from(rank))?;
    let notice = arrived.unwrap_or_else(|| notice(&vcq));
    // SAFETY: as above.
    let from = unsafe { mailbox.read_volatile() };
    println!("node {from} has written here, from {}", notice.vcq_id.coords());
    // A node that writes here must still find the memory, which stays until the machine ends with
    // its last node.
    Ok(())
}
