//! `tofu-guest selftest`: the device sends to itself.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tofu_abi::desc::ArmwOp;
use tofu_abi::irq::{CqsIrqs, vector};
use tofu_abi::table::PageSize;
use tofu_abi::{CqId, Rcode, StagOffset, TniId};
use tofu_driver::{
    Access, Cq, CqConfig, Device, DmaBuffer, MemoryRange, Order, Platform, Stag, Target, WaitError,
};
use tofu_vfio::{Bdf, Buffer, VfioPlatform};

use crate::output::Output;

/// The time limit for a command or an interrupt, in nanoseconds.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Bytes of a message: more than two TLPs, and an odd number.
const LEN: usize = 4001;
/// The start of the second half of the memory.
const HALF: u64 = 64 << 10;
const MEMORY: usize = 2 * HALF as usize;

type Fault = Box<dyn std::error::Error>;

/// Fails with a text, as `anyhow::ensure` does.
macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            return Err(format!($($text)*).into());
        }
    };
}

/// The result of a check.
struct Finding {
    check: String,
    /// The result, in words.
    result: Result<String, String>,
    time: Duration,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, detail) = match &self.result {
            Ok(detail) => ("ok", detail),
            Err(fault) => ("FAILED", fault),
        };
        let ms = self.time.as_secs_f64() * 1000.0;
        write!(f, "{word:7} {:28} {ms:8.1} ms  {detail}", self.check)
    }
}

fn check(
    name: impl Into<String>,
    findings: &mut Vec<Finding>,
    run: impl FnOnce() -> Result<String, Fault>,
) {
    let start = Instant::now();
    let result = run().map_err(|fault| fault.to_string());
    findings.push(Finding { check: name.into(), result, time: start.elapsed() });
}

/// Tests a device; returns whether all tests passed.
pub(crate) fn run(bdf: Bdf, output: &Output) -> anyhow::Result<bool> {
    let platform = VfioPlatform::open_at(Some(bdf))?;
    let mut findings = Vec::new();
    let mapped = if platform.is_mapped() { "mapped" } else { "by system calls, in part" };
    let device = Device::probe(platform)?;
    check("registers", &mut findings, || Ok(format!("{} {mapped}", device.coords())));
    check("DMA map and unmap", &mut findings, || map_and_unmap(&device));
    for tni in device.description().tni_ids() {
        check(format!("TNI {tni}: put, get, atomics"), &mut findings, || transfers(&device, tni));
        check(format!("TNI {tni}: interrupts"), &mut findings, || interrupts(&device, tni));
    }
    check("interrupt handler", &mut findings, || handler(&device));
    check("memory of the program", &mut findings, || mapped_memory(&device));
    check("IOMMU keeps others out", &mut findings, || stray(&device));
    check("reset", &mut findings, || reset(&device));
    let passed = findings.iter().all(|finding| finding.result.is_ok());
    let list: Vec<_> = findings
        .iter()
        .map(|finding| {
            json!({
                "check": finding.check,
                "ok": finding.result.is_ok(),
                "detail": finding.result.as_ref().map_or_else(String::as_str, String::as_str),
                "ms": finding.time.as_secs_f64() * 1000.0,
            })
        })
        .collect();
    let value = json!({ "device": bdf.to_string(), "ok": passed, "checks": list });
    output.print(&value, |out| {
        for finding in &findings {
            writeln!(out, "{finding}")?;
        }
        let failed = findings.iter().filter(|finding| finding.result.is_err()).count();
        match failed {
            0 => writeln!(out, "{bdf} works: {} checks passed", findings.len()),
            _ => writeln!(out, "{bdf}: {failed} of {} checks failed", findings.len()),
        }
    })?;
    Ok(passed)
}

/// A queue with memory that it can send from and to.
struct Loop {
    cq: Cq<VfioPlatform>,
    memory: Buffer,
    stag: Stag,
    to: Target,
}

impl Loop {
    fn open(device: &Device<VfioPlatform>, tni: TniId, cq: CqId) -> Result<Self, Fault> {
        let memory = device.platform().alloc_dma(MEMORY, 4096)?;
        let mut queue = Cq::open(device, &CqConfig::new(tni, cq))?;
        let range = [MemoryRange::of(&memory)];
        let stag = queue.register(&range, PageSize::Size4K, Access::ReadWrite, None)?;
        device.tni(tni).enable()?;
        let to = Target::new(device.coords(), tni);
        Ok(Self { cq: queue, memory, stag, to })
    }

    fn at(&self, offset: u64) -> StagOffset {
        self.stag.at(offset)
    }

    /// Runs a command and returns how it ended and the old value that an atomic one brings.
    fn end_of(&mut self, order: &Order) -> Result<(Rcode, u64), Fault> {
        self.cq.post_and_ring(order, 0)?;
        self.cq.wait_tcq(PATIENCE_NS)?;
        let notice = self.cq.wait_mrq(PATIENCE_NS)?;
        Ok((notice.word0().rcode(), notice.old_value()))
    }

    /// The same, for a command that must succeed.
    fn run(&mut self, order: &Order) -> Result<u64, Fault> {
        let (code, old) = self.end_of(order)?;
        ensure!(code == Rcode::SUCCESS, "a command ended with: {}", code.describe());
        Ok(old)
    }

    /// The error that keeps this end from sending a command. The queue may also report it by an
    /// exception, which may come first.
    fn refusal(&mut self, order: &Order) -> Result<Rcode, Fault> {
        self.cq.post_and_ring(order, 0)?;
        let mut waited = self.cq.wait_tcq(PATIENCE_NS);
        if matches!(waited, Err(WaitError::Exception(_))) {
            self.cq.clear_exceptions();
            waited = self.cq.wait_tcq(PATIENCE_NS);
        }
        let refused = waited?.rcode;
        self.cq.clear_exceptions();
        Ok(refused)
    }

    /// The same for a command whose notice has more fields.
    fn end_of_refused(&mut self, order: &Order) -> Result<Rcode, Fault> {
        self.refusal(order)?;
        Ok(self.cq.wait_mrq(PATIENCE_NS)?.word0().rcode())
    }

    fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset as usize, &mut bytes);
        bytes
    }
}

/// Bytes that depend on `seed` and on the place.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

fn transfers(device: &Device<VfioPlatform>, tni: TniId) -> Result<String, Fault> {
    let mut queue = Loop::open(device, tni, CqId::ALL[0])?;
    let (here, there) = (queue.at(13), queue.at(HALF + 5));
    let sent = pattern(tni.index(), LEN);
    queue.memory.write(13, &sent);
    queue.run(&Order::put(queue.to, there, here, LEN as u32))?;
    ensure!(queue.bytes(HALF + 5, LEN) == sent, "a Put brought other bytes");
    let sent = pattern(tni.index() + 100, LEN);
    queue.memory.write(HALF as usize + 5, &sent);
    queue.run(&Order::get(queue.to, there, here, LEN as u32))?;
    ensure!(queue.bytes(13, LEN) == sent, "a Get brought other bytes");
    let sent = pattern(7, 32);
    queue.run(&Order::put_piggyback(queue.to, there, &sent)?)?;
    ensure!(queue.bytes(HALF + 5, 32) == sent, "a piggyback Put brought other bytes");

    let word = queue.at(HALF);
    queue.memory.store_u64(HALF as usize, 40, Ordering::Release);
    let add = Order::armw8(queue.to, ArmwOp::Add, word, 2);
    if !device.description().atomics {
        let code = queue.refusal(&add)?;
        ensure!(
            code == Rcode::UNSUPPORTED_COMMAND,
            "an unsupported atomic addition ended with: {}",
            code.describe()
        );
        queue.cq.close()?;
        return Ok("Put, Get, piggyback; no atomics".into());
    }
    let old = queue.run(&add)?;
    ensure!(old == 40, "an atomic addition found {old} instead of 40");
    let old = queue.run(&Order::cswap8(queue.to, word, 42, 1 << 40))?;
    ensure!(old == 42, "a compare-and-swap found {old} instead of 42");
    let now = queue.memory.load_u64(HALF as usize, Ordering::Acquire);
    ensure!(now == 1 << 40, "a compare-and-swap left {now:#x}");
    queue.cq.close()?;
    Ok("Put, Get, piggyback, Add, compare-and-swap".into())
}

fn interrupts(device: &Device<VfioPlatform>, tni: TniId) -> Result<String, Fault> {
    let mut queue = Loop::open(device, tni, CqId::ALL[0])?;
    let vector = vector::cq(tni, CqId::ALL[0]);
    let platform = device.platform();
    let start = Instant::now();
    let put = Order::put(queue.to, queue.at(HALF), queue.at(0), 8);
    queue.cq.ask_interrupt();
    queue.cq.post_and_ring(&put.interrupt(), 0)?;
    ensure!(platform.irq_wait(vector, PATIENCE_NS), "MSI-X vector {vector} did not fire");
    let time = start.elapsed();
    // The completion is there or will come, because its notice may have been first.
    queue.cq.wait_tcq(PATIENCE_NS)?;
    queue.cq.wait_mrq(PATIENCE_NS)?;
    queue.cq.close()?;
    Ok(format!("vector {vector}, {} us after the doorbell", time.as_micros()))
}

/// Interrupts through the event loop.
fn handler(device: &Device<VfioPlatform>) -> Result<String, Fault> {
    const CQ: CqId = CqId::ALL[1];
    let fired = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&fired);
    let mut queue = Loop::open(device, TniId::ALL[0], CQ)?;
    device.platform().on_interrupt(vector::cq(TniId::ALL[0], CQ), move || {
        counter.fetch_add(1, Ordering::SeqCst);
    })?;
    // A notice by itself.
    queue.cq.ask_interrupt();
    let put = Order::put(queue.to, queue.at(HALF), queue.at(0), 8).remote_notice();
    queue.cq.post_and_ring(&put, 0)?;
    let start = Instant::now();
    while fired.load(Ordering::SeqCst) == 0 {
        let waited = start.elapsed().as_nanos() as u64;
        ensure!(waited < PATIENCE_NS, "the handler was not called");
        std::thread::sleep(Duration::from_micros(100));
    }
    let irr = queue.cq.exception();
    ensure!(irr.is_none(), "an exception: {}", irr.map_or(0, |exception| exception.irr.raw()));
    let bits = CqsIrqs::MRQ_WRITE_ACKNOWLEDGE.raw();
    queue.cq.close()?;
    Ok(format!("called after a notice (request {bits:#x})"))
}

fn map_and_unmap(device: &Device<VfioPlatform>) -> Result<String, Fault> {
    let platform = device.platform();
    // The memory that small buffers come from is mapped once and kept.
    drop(platform.alloc_dma(8, 8)?);
    let before = platform.free_addresses();
    let sizes = [1, 8, 4096, 100_000, 2 << 20, 16 << 20];
    let mut buffers = Vec::new();
    for size in sizes {
        let buffer = platform.alloc_dma(size, 4096)?;
        buffer.store_u8(size - 1, 0x5a, Ordering::Relaxed);
        ensure!(buffer.load_u8(size - 1, Ordering::Relaxed) == 0x5a, "memory does not keep bytes");
        ensure!(buffer.device_addr().is_multiple_of(4096), "a buffer is not aligned");
        buffers.push(buffer);
    }
    drop(buffers);
    let after = platform.free_addresses();
    ensure!(after == before, "{} bytes of addresses were lost", before.abs_diff(after));
    Ok(format!("{} sizes, 1 byte to 16 MiB", sizes.len()))
}

/// A Put from memory of the program's own.
fn mapped_memory(device: &Device<VfioPlatform>) -> Result<String, Fault> {
    const BYTES: usize = 3 << 20;
    let own: Vec<AtomicU8> = pattern(3, BYTES).into_iter().map(AtomicU8::new).collect();
    let memory = own.as_ptr().cast_mut().cast();
    // SAFETY: `own` lives until the queue is closed, and is made of atomics, so that there are no
    // references to memory that the device could write; it only reads here.
    #[allow(unsafe_code)]
    let mapped = unsafe { device.platform().map_user(memory, BYTES)? };
    let target = device.platform().alloc_dma(BYTES, 4096)?;
    let mut queue = Loop::open(device, TniId::ALL[0], CqId::ALL[0])?;
    let range = [MemoryRange { addr: mapped.device_addr(), len: BYTES as u64 }];
    let source = queue.cq.register(&range, PageSize::Size4K, Access::ReadOnly, None)?;
    let range = [MemoryRange::of(&target)];
    let there = queue.cq.register(&range, PageSize::Size4K, Access::ReadWrite, None)?;
    queue.run(&Order::put(queue.to, there.at(0), source.at(0), BYTES as u32))?;
    let mut found = vec![0; BYTES];
    target.read(0, &mut found);
    let same = found.iter().zip(&own).all(|(a, b)| *a == b.load(Ordering::Relaxed));
    ensure!(same, "other bytes arrived");
    queue.cq.close()?;
    drop(mapped);
    Ok(format!("{} MiB of the program's heap", BYTES >> 20))
}

/// An address that leads nowhere must give an error and not bytes of another process.
fn stray(device: &Device<VfioPlatform>) -> Result<String, Fault> {
    let buffer = device.platform().alloc_dma(4 << 20, 4096)?;
    let addr = buffer.device_addr();
    drop(buffer);
    let mut queue = Loop::open(device, TniId::ALL[0], CqId::ALL[0])?;
    let range = [MemoryRange { addr, len: 4096 }];
    let nowhere = queue.cq.register(&range, PageSize::Size4K, Access::ReadWrite, None)?;
    let read = queue.end_of_refused(&Order::put(queue.to, queue.at(0), nowhere.at(0), 8))?;
    let write = queue.end_of_refused(&Order::put(queue.to, nowhere.at(0), queue.at(0), 8))?;
    for (what, code) in [("read", read), ("write", write)] {
        let text = code.describe();
        ensure!(code != Rcode::SUCCESS, "a {what} of memory that was taken away: {text}");
    }
    queue.cq.close()?;
    Ok(format!("refused: {}, {}", read.describe(), write.describe()))
}

fn reset(device: &Device<VfioPlatform>) -> Result<String, Fault> {
    let queue = Loop::open(device, TniId::ALL[0], CqId::ALL[0])?;
    ensure!(queue.cq.status().cq_enable(), "a queue that was opened is not enabled");
    device.platform().reset();
    ensure!(!queue.cq.status().cq_enable(), "a queue is still enabled");
    drop(queue);
    transfers(device, TniId::ALL[0])?;
    Ok("closes queues; the device works afterwards".into())
}
