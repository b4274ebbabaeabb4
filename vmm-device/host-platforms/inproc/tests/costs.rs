//! The cost of a Put over direct links in instructions, allocations and system calls, and of other
//! commands, a traced Put, a round of a barrier, a Put by uTofu and a frame of IP over Tofu in
//! instructions, so that none of them grows unnoticed.
//!
//! The tests run this program under Valgrind with two numbers of Puts or frames; the difference is
//! due to these alone, even if the host is busy with other work. Instructions depend on the
//! compiler, so with another one they are not counted, and the numbers here must be measured again.

use std::collections::HashMap;
use std::process::Command;
use std::sync::{Arc, Mutex};

use tofu_abi::pci::REGISTER_BAR;
use tofu_abi::table::PageSize;
use tofu_abi::topology::Shape;
use tofu_abi::{Coords, CqId, TniId};
use tofu_driver::{
    Access, Cq, CqConfig, Device, DmaBuffer, MemoryRange, Order, PacketConfig, Platform, Target,
};
use tofu_inproc::{Arena, Backend, InProcess, Interrupts, Pair};
use tofu_ipotofu::offload::{HEAD, Metadata};
use tofu_ipotofu::{Config, Link};
use tofu_machine::{DoorbellBackend, Machine, MachineConfig, Node, NodeParts};
use tofu_pci::{PciFunction, regs};
use tofu_utofu::flags::{REMOTE_MRQ_NOTICE, TCQ_NOTICE};
use tofu_utofu::{Code, Context, DeviceShare, Transfer, VbgSetting};
use tofu_utofu_local::{Generation, LocalMachine};
use vm_memory::{GuestAddress, GuestMemoryMmap, MmapRegion};
use vmm_sys_util::eventfd::EventFd;

/// The compiler of the counts. The profile is that of tests.
const COMPILER: &str = "1.95.";
/// Instructions of commands of this many bytes, measured with that compiler in `ci/test`.
/// Optimised, a Put of 8 bytes takes 2792. In tests, inlining changes with the size of crates and
/// with what is compiled together, and so do these numbers. The last one is for a Put of which 64
/// share a doorbell.
const MEASURED: [(What, u32, f64); 6] = [
    (What::Put, 8, 6_851.0),
    (What::Put, 4096, 7_569.0),
    (What::Get, 8, 6_830.0),
    (What::Piggyback, 8, 7_329.0),
    (What::Add, 8, 7_686.0),
    (What::SharedPut, 8, 5_694.0),
];
/// The same of what goes through uTofu.
const UTOFU: [(What, u32, f64); 2] = [(What::UtofuPut, 8, 17_400.0), (What::Barrier, 0, 14_830.0)];
/// Commands that share a doorbell.
const SHARED: u32 = 64;
/// By how much it may be more.
const MARGIN: f64 = 0.03;

/// The number of additional instructions of a traced one: four records, each with a read of the
/// time stamp counter.
const TRACED: f64 = 1_560.0;
/// By how much that may be more: it is a difference, so what is inlined weighs more.
const TRACED_MARGIN: f64 = 0.1;

/// Instructions of a frame of this many bytes from one node to another, the devices' among them.
const FRAMES: [(u32, f64); 3] = [(60, 15_250.0), (1514, 19_540.0), (9014, 323_000.0)];
/// The same for frames that the other node fetches from where the first one has them, and uses
/// where they are fetched to, with their heads in the requests.
const PLACED: [(u32, f64); 2] = [(9014, 57_000.0), (65_000, 123_000.0)];

/// Tells the test to do something else instead.
const ASKED: &str = "TOFU_COST";

/// This program's modes under Valgrind.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Put,
    TracedPut,
    Frame,
    Placed,
    Get,
    Piggyback,
    Add,
    SharedPut,
    /// A round of a barrier of two nodes by gates, through uTofu.
    Barrier,
    /// A Put through uTofu, its completion, and the notice at the other end.
    UtofuPut,
    /// A command whose doorbell is an event that an engine thread waits for.
    Doorbell,
}

impl What {
    const ALL: [Self; 11] = [
        Self::Put,
        Self::TracedPut,
        Self::Frame,
        Self::Placed,
        Self::Get,
        Self::Piggyback,
        Self::Add,
        Self::SharedPut,
        Self::Barrier,
        Self::UtofuPut,
        Self::Doorbell,
    ];
}

/// The output of a tool of Valgrind for so many Puts or frames of so many bytes.
fn output(tool: &[&str], what: What, [bytes, times]: [u32; 2]) -> String {
    let itself = std::env::current_exe().expect("a program knows where it is");
    let output = Command::new("valgrind")
        .args(tool)
        .arg(itself)
        .args(["--exact", "work_for_valgrind", "--test-threads", "1"])
        .env(ASKED, format!("{} {bytes} {times}", what as u32))
        .output()
        .expect("it was there a moment ago");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

/// The number after these words in the output of a tool of Valgrind.
fn count(tool: &[&str], words: &str, what: What, numbers: [u32; 2]) -> u64 {
    let said = output(tool, what, numbers);
    let count = said
        .lines()
        .find_map(|line| line.split_once(words))
        .map(|(_, rest)| rest.trim_start().split(' ').next().unwrap_or_default().replace(',', ""));
    count.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no count: {said}"))
}

/// Instructions of a Put or frame of so many bytes.
fn instructions(what: What, bytes: u32) -> f64 {
    let tool = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
    let all = |times| count(&tool, "Collected :", what, [bytes, times * SHARED]);
    (all(48) - all(16)) as f64 / f64::from(32 * SHARED)
}

/// The system calls of the engine's thread, by their names. The first two threads are the test
/// program's own. Under Valgrind, the clock is a system call, too, and is left out.
fn system_calls(what: What, times: u32) -> HashMap<String, i64> {
    let said = output(&["--tool=none", "--trace-syscalls=yes"], what, [8, times]);
    let mut calls = HashMap::new();
    for line in said.lines() {
        // SYSCALL[11697,3](232) sys_epoll_wait ( ...
        let Some((thread, call)) = line.strip_prefix("SYSCALL[").and_then(|l| l.split_once(']'))
        else {
            continue;
        };
        let name = call.split([' ', '(']).nth(2).unwrap_or_default();
        // A call that waits has a second line when it returns.
        if thread.ends_with(",3") && !["...", "sys_clock_gettime"].contains(&name) {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
    }
    calls
}

/// Returns true if there is a Valgrind for programs like this one.
fn valgrind() -> Result<(), &'static str> {
    let itself = std::env::current_exe().expect("a program knows where it is");
    let mut command = Command::new("valgrind");
    let output = command.arg("--tool=none").arg(itself).arg("--list").output();
    match output.map_err(|_| "there is no valgrind")?.status.success() {
        true => Ok(()),
        false => Err("valgrind is for other processors"),
    }
}

fn says(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns true if instructions can be counted here. If not, says that the test is skipped.
fn counts(test: &str) -> bool {
    let compiler = says("rustc").unwrap_or_default();
    let why = if !cfg!(target_arch = "x86_64") {
        "counts are of x86-64".into()
    } else if let Err(why) = valgrind() {
        why.into()
    } else if !compiler.starts_with(&format!("rustc {COMPILER}")) {
        format!("counts are of Rust {COMPILER}x, not of {}", compiler.trim())
    } else {
        return true;
    };
    eprintln!("SKIP {test}: {why}");
    false
}

/// Does nothing unless this program was started by itself, to count Puts or frames.
#[test]
fn work_for_valgrind() {
    let Ok(asked) = std::env::var(ASKED) else { return };
    let mut numbers = asked.split(' ').map(|n| n.parse::<u32>().expect("a number"));
    let mut number = || numbers.next().expect("three numbers");
    let (what, bytes, times) = (What::ALL[number() as usize], number(), number());
    match what {
        What::Frame => frames(bytes, times),
        What::Placed => placed(bytes, times),
        What::Barrier => barriers(times),
        What::UtofuPut => utofu_puts(bytes, times),
        What::Doorbell => doorbells(times),
        what => commands(what, bytes, times),
    }
}

fn commands(what: What, bytes: u32, times: u32) {
    let mut pair = Pair::new().expect("two nodes");
    let order = match what {
        What::Get => pair.get(bytes),
        What::Piggyback => pair.piggyback(),
        What::Add => pair.add(),
        _ => pair.put(bytes),
    };
    let traced = what == What::TracedPut;
    let _trace = traced.then(|| pair.network().trace().expect("a trace"));
    let at_once = if what == What::SharedPut { SHARED } else { 1 };
    for _ in 0..times / at_once {
        pair.run_many(&order, at_once as usize).expect("the command succeeds");
    }
}

/// Two nodes with links, and the machine.
fn links(fetch: bool) -> (Arc<Machine>, [Link<InProcess>; 2]) {
    let shape = Shape::new([1, 1, 1, 2, 1, 1]).expect("two nodes");
    let machine = Arc::new(Machine::new(MachineConfig::new(shape)).expect("a machine"));
    let node = |at| {
        let platform = InProcess::attach(&machine, at, 64 << 20).expect("memory");
        let device = Device::probe(platform).expect("a device");
        let packets = PacketConfig { interrupts: false, ..PacketConfig::new(TniId::ALL[0]) };
        let (offload, rendezvous, split) = (true, fetch, fetch);
        let config = Config { mtu: 9000, offload, rendezvous, split, ..Config::new(shape) };
        Link::open(&device, config, &packets).expect("a link")
    };
    let nodes = [Coords::new(0, 0, 0, 0, 0, 0), Coords::new(0, 0, 0, 1, 0, 0)].map(node);
    (machine, nodes)
}

/// A frame from one node to another.
fn frame(from: &Link<InProcess>, to: &Link<InProcess>, bytes: u32) -> Vec<u8> {
    let mut frame = [&to.mac()[..], &from.mac(), &[0x88, 0xb5]].concat();
    frame.resize(bytes as usize, 7);
    frame
}

/// Sends frames from one node to another, which fetches them one by one.
fn placed(bytes: u32, times: u32) {
    let (machine, [mut from, mut to]) = links(true);
    let mut buf = vec![0; 1 << 14];
    // It says that it fetches.
    to.send(&frame(&to, &from, 60)).expect("there is room");
    to.flush();
    while machine.run_turn() {}
    assert_eq!(from.recv(&mut buf), Some(60));
    let head = frame(&from, &to, HEAD as u32);
    let metadata = Metadata { checksum: Some((14, 0)), ..Metadata::default() };
    for _ in 0..times {
        let place = from.place().expect("a place");
        let is_sent = from.send_placed(&metadata, &head, &place, bytes as usize);
        assert_eq!(is_sent, Ok(true));
        from.flush();
        let mut turns = 0..4;
        let len = loop {
            assert!(turns.next().is_some(), "it does not come");
            while machine.run_turn() {}
            let taken = to.recv_with(&mut buf, |_, frame| {
                frame.head.len() + frame.rest.map_or(0, |(_, range)| range.len())
            });
            if let Some(len) = taken {
                break len;
            }
        };
        assert_eq!(len, bytes as usize);
        to.flush();
        while machine.run_turn() {}
        assert_eq!(from.recv(&mut buf), None);
    }
}

/// Sends frames from one node to another, which takes them one by one.
fn frames(bytes: u32, times: u32) {
    let (machine, [mut from, mut to]) = links(false);
    let frame = frame(&from, &to, bytes);
    let mut buf = vec![0; 1 << 14];
    for _ in 0..times {
        from.send(&frame).expect("there is room");
        from.flush();
        while machine.run_turn() {}
        assert_eq!(to.recv(&mut buf), Some(frame.len()));
        from.flush();
    }
}

/// Two nodes with uTofu, whose devices work in the thread that calls.
fn utofu_pair() -> (LocalMachine, [Context<tofu_utofu_local::LocalProvider>; 2]) {
    let shape = Shape::new([1, 1, 1, 2, 1, 1]).expect("two nodes");
    let machine = LocalMachine::stepped(MachineConfig::new(shape)).expect("a machine");
    let contexts = [0, 1].map(|a| {
        let node = machine.node(Coords::new(0, 0, 0, a, 0, 0)).expect("a node");
        Context::new(node, DeviceShare::of(Generation::Fugaku, 0, 1).expect("a share"))
    });
    (machine, contexts)
}

fn barriers(times: u32) {
    let (machine, contexts) = utofu_pair();
    let [a, b] = [0, 1].map(|i: usize| contexts[i].alloc_vbg(0, 1, 0).expect("gates")[0]);
    for (context, own, peer) in [(&contexts[0], a, b), (&contexts[1], b, a)] {
        let setting = VbgSetting {
            src_local: Some(own),
            dst_local: Some(own),
            src_remote: Some(peer),
            dst_remote: Some(peer),
            ..VbgSetting::new(own)
        };
        context.set_vbg(&[setting]).expect("gates");
    }
    for _ in 0..times {
        contexts[0].barrier(a, 0).expect("it starts");
        contexts[1].barrier(b, 0).expect("it starts");
        for (context, gate) in contexts.iter().zip([a, b]) {
            while let Err(error) = context.poll_barrier(gate, 0) {
                assert_eq!(error.code(), Code::NotCompleted);
                machine.machine().run_turn();
            }
        }
    }
}

fn utofu_puts(bytes: u32, times: u32) {
    let (machine, contexts) = utofu_pair();
    let vcqs = [0, 1].map(|i: usize| contexts[i].create_vcq(0, None, 0).expect("a queue"));
    let stadds = [0, 1].map(|i: usize| {
        let memory = Box::leak(vec![0u8; bytes as usize].into_boxed_slice());
        // SAFETY: the memory is never freed, and nothing else uses it.
        unsafe { vcqs[i].reg_mem(memory.as_mut_ptr(), memory.len(), None, 0) }.expect("memory")
    });
    let transfer = Transfer {
        peer: vcqs[1].id(),
        local: stadds[0],
        remote: stadds[1],
        length: bytes as usize,
        edata: 0,
        flags: TCQ_NOTICE | REMOTE_MRQ_NOTICE,
    };
    for _ in 0..times {
        vcqs[0].put(&transfer, 0).expect("there is room");
        while vcqs[0].poll_tcq().is_none() {
            machine.machine().run_turn();
        }
        assert!(vcqs[1].poll_mrq().is_some());
    }
}

/// A node whose doorbells are events, as those of a VM are.
struct Events {
    node: Mutex<Option<Arc<Node>>>,
    events: Mutex<HashMap<u64, EventFd>>,
    machine: Arc<Machine>,
}

impl Events {
    fn node(&self) -> Arc<Node> {
        self.node.lock().expect("no thread panicked").clone().expect("the node was added")
    }
}

impl DoorbellBackend for Events {
    fn attach_event(&self, offset: u64, event: &EventFd) -> Result<(), String> {
        let event = event.try_clone().map_err(|error| error.to_string())?;
        self.events.lock().expect("no thread panicked").insert(offset, event);
        Ok(())
    }

    fn attach_page(
        &self,
        _: u64,
        _: &Arc<MmapRegion<()>>,
        _: usize,
        _: Box<dyn Fn() + Send + Sync>,
    ) -> Result<(), String> {
        Err("doorbells are trapped".to_owned())
    }

    fn protect_page(&self, _: u64) {}

    fn detach(&self, offset: u64) {
        self.events.lock().expect("no thread panicked").remove(&offset);
    }
}

impl Backend for Events {
    fn bar_read(&self, offset: u64, data: &mut [u8]) {
        self.node().bar_read(REGISTER_BAR, offset, data);
    }

    fn bar_write(&self, offset: u64, data: &[u8]) {
        // Not while the events are locked: a write that enables a queue attaches one.
        let event =
            self.events.lock().expect("no thread panicked").get(&offset).map(EventFd::try_clone);
        match event {
            Some(event) => event.and_then(|event| event.write(1)).expect("an event can be written"),
            None => self.node().bar_write(REGISTER_BAR, offset, data),
        }
    }

    fn now_ns(&self) -> u64 {
        self.machine.now_ns()
    }

    fn pump(&self) -> bool {
        false
    }
}

/// Puts of a node to itself, one after the other, each after its own doorbell. An engine thread
/// runs them.
fn doorbells(times: u32) {
    let coords = Coords::new(0, 0, 0, 0, 0, 0);
    let shape = Shape::new([1, 1, 1, 1, 1, 1]).expect("a node");
    let machine = Arc::new(Machine::new(MachineConfig::new(shape)).expect("a machine"));
    machine.start().expect("threads");
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0x1000), 16 << 20)]);
    let memory = memory.expect("memory");
    let events = Arc::new(Events {
        node: Mutex::default(),
        events: Mutex::default(),
        machine: Arc::clone(&machine),
    });
    let parts = NodeParts {
        backend: Some(Arc::clone(&events) as _),
        ..NodeParts::new(Arc::new(memory.clone()))
    };
    let node = machine.add_node_of(coords, parts).expect("a node");
    let command = regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER;
    node.config_write(regs::COMMAND, &command.to_le_bytes());
    *events.node.lock().expect("no thread panicked") = Some(node);
    let arena = Arena::new(memory).expect("a region");
    let platform = InProcess::new(events, arena, Arc::new(Interrupts::default()));
    let buffer = platform.alloc_dma(1 << 16, 1 << 16).expect("memory");
    let range = MemoryRange { addr: buffer.device_addr(), len: 1 << 16 };
    let device = Device::probe(platform).expect("a device");
    device.tni(TniId::ALL[0]).enable().expect("an interface");
    let mut cq = Cq::open(&device, &CqConfig::new(TniId::ALL[0], CqId::ALL[0])).expect("a queue");
    let stag = cq.register(&[range], PageSize::Size64K, Access::ReadWrite, None).expect("memory");
    let order = Order::put_piggyback(Target::new(coords, TniId::ALL[0]), stag.at(0), &[7; 8]);
    let order = order.expect("8 bytes fit");
    for _ in 0..times {
        cq.post_and_ring(&order, 0).expect("there is room");
        while cq.poll_tcq().is_none() {
            std::thread::yield_now();
        }
        while cq.poll_mrq().is_some() {}
    }
}

/// The engine waits once for each doorbell, and is woken by its event. It neither reads the event
/// nor sets a timer, and checks all events without waiting after every 16 turns, two of which each
/// command takes.
#[test]
fn trapped_doorbell_costs_one_wait() {
    let test = "trapped_doorbell_costs_one_wait";
    if let Err(why) = valgrind() {
        eprintln!("SKIP {test}: {why}");
        return;
    }
    let [few, many] = [100, 300].map(|times| system_calls(What::Doorbell, times));
    eprintln!("100 doorbells: {few:?}; 300: {many:?}");
    let more = many.values().sum::<i64>() - few.values().sum::<i64>();
    // If the engine is still at work when the next doorbell rings, it need not wait for it.
    assert!((100..=226).contains(&more), "{more} system calls more for 200 doorbells more");
}

#[test]
fn utofu_and_barrier_cost_no_more() {
    if !counts("utofu_and_barrier_cost_no_more") {
        return;
    }
    for (what, bytes, measured) in UTOFU {
        is_no_more(&format!("{what:?}"), bytes, instructions(what, bytes), measured);
    }
}

#[test]
fn direct_put_allocates_nothing() {
    let test = "direct_put_allocates_nothing";
    if let Err(why) = valgrind() {
        eprintln!("SKIP {test}: {why}");
        return;
    }
    let allocations = |puts| count(&["--tool=memcheck"], "total heap usage:", What::Put, [8, puts]);
    let more = allocations(1500).abs_diff(allocations(500));
    eprintln!("{more} allocations more for 1000 Puts more");
    // The test itself makes some, and not always the same number.
    assert!(more < 100, "{more} allocations for 1000 Puts");
}

/// Asserts that a Put or frame takes no more instructions than it did, and a margin.
fn is_no_more(what: &str, bytes: u32, each: f64, measured: f64) {
    eprintln!("{bytes} bytes: {each:.0} instructions a {what}, {measured} when it was measured");
    assert!(each <= measured * (1.0 + MARGIN), "{bytes} bytes: {each}, more than {measured}");
}

#[test]
fn direct_commands_cost_no_more() {
    if !counts("direct_commands_cost_no_more") {
        return;
    }
    for (what, bytes, measured) in MEASURED {
        is_no_more(&format!("{what:?}"), bytes, instructions(what, bytes), measured);
    }
}

#[test]
fn trace_of_put_costs_no_more() {
    if !counts("trace_of_put_costs_no_more") {
        return;
    }
    let more = instructions(What::TracedPut, 8) - instructions(What::Put, 8);
    eprintln!("traced: {more:.0} more, {TRACED} when it was measured");
    assert!(more <= TRACED * (1.0 + TRACED_MARGIN), "traced: {more}, more than {TRACED}");
}

#[test]
fn ip_frame_costs_no_more() {
    if !counts("ip_frame_costs_no_more") {
        return;
    }
    for (bytes, measured) in FRAMES {
        is_no_more("frame", bytes, instructions(What::Frame, bytes), measured);
    }
    for (bytes, measured) in PLACED {
        is_no_more("placed frame", bytes, instructions(What::Placed, bytes), measured);
    }
}
