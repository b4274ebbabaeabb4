//! In modelled time: two nodes put to one interface of a node between them at full speed, or with
//! gaps, while another node's short Puts pass that node.

use tofu_abi::Coords;
use tofu_abi::topology::{Axis, Shape};
use tofu_machine::{Links, MachineConfig};
use tofu_utofu::command::{Packets, Posting};
use tofu_utofu::flags::TCQ_NOTICE;
use tofu_utofu::{Code, Context, DeviceShare, Vcq};
use tofu_utofu_local::{Generation, LocalMachine, LocalProvider};

/// Bytes that each of the two puts, in Puts of this size.
const BYTES: usize = 64 << 10;
const PUTS: usize = 8;
/// Bytes of the Puts that pass by.
const SHORT: usize = 1024;

const RECEIVER: Coords = Coords::new(2, 0, 0, 0, 0, 0);
const SENDERS: [Coords; 2] = [Coords::new(1, 0, 0, 0, 0, 0), Coords::new(3, 0, 0, 0, 0, 0)];
/// The target of the short Puts, which go from the first sender through the receiver's node.
const PASSER: Coords = Coords::new(2, 1, 0, 0, 0, 0);

/// The effects of a gap.
#[derive(Clone, Copy, Debug)]
pub struct Congestion {
    /// Time until the receiver has all data, in picoseconds.
    pub time_ps: u64,
    /// Mean time of a short Put until it is complete, in picoseconds.
    pub short_ps: u64,
    /// Cycles in which the port to the receiver had something to send and no credit.
    pub zero_credit: u64,
}

/// A Put again and again.
struct Stream {
    vcq: Vcq<LocalProvider>,
    command: tofu_utofu::Command,
    posted: usize,
    done: usize,
    since: u64,
    total_ps: u64,
}

impl Stream {
    fn new(
        from: &Context<LocalProvider>,
        to: &Vcq<LocalProvider>,
        tni: u16,
        bytes: usize,
        gap: usize,
    ) -> Self {
        let vcq = from.create_vcq(tni, None, 0).expect("a VCQ");
        let (local, remote) = (register(&vcq, bytes), register(to, bytes));
        let posting = Posting::new(to.id().0, 0, TCQ_NOTICE).expect("a VCQ ID");
        let packets = Packets::new(0, gap).expect("a gap");
        let command = posting.put(local, remote, bytes, packets).expect("a Put");
        Self { vcq, command, posted: 0, done: 0, since: 0, total_ps: 0 }
    }

    /// Keeps `ahead` Puts in progress.
    fn turn(&mut self, ahead: usize, now: u64) {
        while let Some(completion) = self.vcq.poll_tcq() {
            assert_eq!(completion.status(), Code::Success);
            self.done += 1;
            self.total_ps += now - self.since;
        }
        while self.posted - self.done < ahead {
            self.vcq.post(&self.command, 0).expect("room");
            self.posted += 1;
            self.since = now;
        }
    }
}

/// The STADD of new memory, which is never freed.
#[allow(unsafe_code)]
fn register(vcq: &Vcq<LocalProvider>, bytes: usize) -> u64 {
    let memory = Box::leak(vec![0u8; bytes].into_boxed_slice());
    // SAFETY: the memory is never freed, and its contents do not matter.
    unsafe { vcq.reg_mem(memory.as_mut_ptr(), bytes, None, 0) }.expect("memory").0
}

/// Measures the congestion with a gap, in units of 32 bytes.
pub fn congestion(gap: usize) -> Congestion {
    let shape = Shape::new([4, 2, 1, 1, 1, 1]).expect("a shape");
    let config = MachineConfig { links: Links::Modelled, ..MachineConfig::new(shape) };
    let machine = LocalMachine::stepped(config).expect("a machine");
    let process = |node| {
        let share = DeviceShare::of(Generation::Fugaku, 0, 1).expect("a share");
        Context::new(machine.node(node).expect("a node"), share)
    };
    let (receiver, passer) = (process(RECEIVER), process(PASSER));
    let [first, second] = SENDERS.map(process);
    let [target, passed] = [&receiver, &passer].map(|to| to.create_vcq(0, None, 0).expect("a VCQ"));
    let mut streams = [&first, &second].map(|from| Stream::new(from, &target, 0, BYTES, gap));
    let mut short = Stream::new(&first, &passed, 1, SHORT, 0);
    let fabric = machine.machine().fabric();
    let now = || fabric.modelled_ps().unwrap_or(0);
    while streams.iter().any(|stream| stream.done < PUTS) {
        for stream in &mut streams {
            stream.turn(2.min(PUTS - stream.done), now());
        }
        short.turn(1, now());
        machine.machine().run_turn();
    }
    let at = shape.node_id(SENDERS[0]).expect("a node");
    let counters = fabric.port_counters(at, Axis::X.port(true)).expect("a port");
    Congestion {
        time_ps: now(),
        short_ps: short.total_ps / short.done.max(1) as u64,
        zero_credit: counters.zero_credit.iter().sum(),
    }
}
