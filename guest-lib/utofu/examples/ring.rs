//! A ring of four ranks, threads of this program: each puts a greeting into the next one's memory,
//! gets it back from there, and draws a number from a counter at rank 0.
//!
//! Prints, in this order:
//!
//! ```text
//! rank 0: hello from rank 3
//! rank 1: hello from rank 0
//! rank 2: hello from rank 1
//! rank 3: hello from rank 2
//! numbers drawn: [0, 1, 2, 3]
//! ```

use std::error::Error;
use std::sync::{Barrier, Mutex};
use std::thread;

use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_utofu::command::{Packets, Posting};
use tofu_utofu::flags::{LOCAL_MRQ_NOTICE, REMOTE_MRQ_NOTICE, TCQ_NOTICE};
use tofu_utofu::ids::{Stadd, VcqId};
use tofu_utofu::{Code, Command, Context, DeviceShare, Notice, Vcq};
use tofu_utofu_local::{LocalMachine, LocalProvider};

const CMP_ID: u16 = 7;
/// Reserved steering tags, so that peers can compute addresses.
const MAILBOX: u32 = 1;
const COUNTER: u32 = 2;

/// Memory that others may write to at any time. It is never freed.
struct Shared(*mut u8);

impl Shared {
    fn new(bytes: usize) -> Self {
        let memory = vec![0u64; bytes / 8 + 32].leak();
        Self((memory.as_mut_ptr() as usize).next_multiple_of(256) as *mut u8)
    }

    fn write(&self, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: the callers stay inside, and nothing else refers to the memory.
            unsafe { self.0.add(i).write_volatile(*byte) };
        }
    }

    fn read(&self, bytes: usize) -> Vec<u8> {
        // SAFETY: as above.
        (0..bytes).map(|i| unsafe { self.0.add(i).read_volatile() }).collect()
    }

    fn register(&self, vcq: &Vcq<LocalProvider>, stag: u32) -> Result<Stadd, tofu_utofu::Error> {
        // SAFETY: the memory is never freed, and only accessed by volatile accesses.
        unsafe { vcq.reg_mem(self.0, 256, Some(stag), 0) }
    }
}

fn complete(vcq: &Vcq<LocalProvider>, command: &Command) -> Result<(), Box<dyn Error>> {
    vcq.post(command, 0)?;
    loop {
        if let Some(done) = vcq.poll_tcq() {
            return match done.status() {
                Code::Success => Ok(()),
                code => Err(code.name().into()),
            };
        }
        vcq.relax();
    }
}

fn notice(vcq: &Vcq<LocalProvider>) -> Notice {
    loop {
        if let Some(notice) = vcq.poll_mrq() {
            return notice;
        }
        vcq.relax();
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let shape: Shape = "1x1x1x2x2x1".parse()?;
    let nodes: Vec<Coords> = shape.iter().collect();
    let machine = LocalMachine::new(shape)?;
    let (meet, drawn) = (Barrier::new(nodes.len()), Mutex::new(Vec::new()));
    let body = |rank: usize| -> Result<(), Box<dyn Error>> {
        let context = Context::new(machine.node(nodes[rank])?, DeviceShare::new(0, 1)?);
        let vcq = context.create_vcq(0, Some(CMP_ID), 0)?;
        let (mailbox, own, counter) = (Shared::new(256), Shared::new(256), Shared::new(256));
        mailbox.register(&vcq, MAILBOX)?;
        let local = own.register(&vcq, 3)?;
        counter.register(&vcq, COUNTER)?;
        meet.wait();

        // Where the next rank's mailbox is can be computed.
        let next = VcqId::construct(nodes[(rank + 1) % nodes.len()], 0, 0, CMP_ID)?;
        let remote = Stadd::reserved(next, MAILBOX)?;
        let text = format!("hello from rank {rank}");
        own.write(text.as_bytes());
        let to = Posting::new(next.0, rank as u64, TCQ_NOTICE | REMOTE_MRQ_NOTICE)?;
        complete(&vcq, &to.put(local.0, remote.0, text.len(), Packets::default())?)?;
        let got = notice(&vcq);
        let length = (got.rmt_stadd - Stadd::reserved(vcq.id(), MAILBOX)?.0) as usize;

        own.write(&[0; 64]);
        let quiet = Posting::new(next.0, 0, TCQ_NOTICE)?;
        complete(&vcq, &quiet.get(local.0, remote.0, text.len(), Packets::default())?)?;
        assert_eq!(own.read(text.len()), text.as_bytes());

        let zero = VcqId::construct(nodes[0], 0, 0, CMP_ID)?;
        let count = Posting::new(zero.0, 0, LOCAL_MRQ_NOTICE)?;
        vcq.post(&count.armw(2, 1, 8, Stadd::reserved(zero, COUNTER)?.0)?, 0)?;
        let number = notice(&vcq).rmt_value;
        drawn.lock().map_err(|_| "another rank has failed")?.push(number);

        for turn in 0..nodes.len() {
            if turn == rank {
                println!("rank {rank}: {}", String::from_utf8(mailbox.read(length))?);
            }
            meet.wait();
        }
        Ok(())
    };
    thread::scope(|scope| {
        for rank in 0..nodes.len() {
            let body = &body;
            scope.spawn(move || {
                if let Err(error) = body(rank) {
                    eprintln!("rank {rank}: {error}");
                    std::process::exit(1);
                }
            });
        }
    });
    let mut drawn = drawn.into_inner()?;
    drawn.sort_unstable();
    println!("numbers drawn: {drawn:?}");
    Ok(())
}
