//! What the library adds to posting by hand: the same commands through the driver's queue alone,
//! through the Rust API, and through the C functions, on a machine in this process.

use std::cell::Cell;
use std::hint::black_box;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::Serialize;
use tofu_abi::Coords;
use tofu_driver::{Cq, CqConfig, Order, Target};
use tofu_utofu::command::Posting;
use tofu_utofu::ids::Stadd;
use tofu_utofu::{Context, Place, flags};
use tofu_utofu_local::LocalMachine;

use crate::api;

/// Commands in a round.
const ROUND: u32 = 2000;
/// Rounds of each kind in turn, of which the fastest counts: the others were disturbed.
const ROUNDS: usize = 100;

/// Time of a Put of 8 bytes to the own node, from posting to the completion that was taken.
#[derive(Debug, Serialize)]
pub(crate) struct Overhead {
    /// Through the driver's queue alone, in nanoseconds.
    pub(crate) by_hand_ns: f64,
    /// Through the Rust API.
    pub(crate) rust_ns: f64,
    /// Through the C functions.
    pub(crate) c_ns: f64,
}

/// Nanoseconds that a command takes in a round.
fn round(one: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..ROUND {
        one()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(ROUND))
}

/// Measures.
pub(crate) fn measure() -> Result<Overhead> {
    let machine = LocalMachine::new("1x1x1x1x1x1".parse()?)?;
    let node = machine.node(Coords::default())?;
    let context = Context::new(Arc::clone(&node), Place::new(0, 1)?);

    let target = context.create_vcq(0, None, 0)?;
    let memory = api::memory(4096);
    // SAFETY: the memory is never freed, and nothing in Rust refers to it.
    let stadd = unsafe { target.reg_mem(memory, 4096, None, 0)? };

    // A queue of its own. Its notices must be taken by hand too; the library does so by itself.
    let config = CqConfig { interrupts: 0, mrq_size: 2, stags: 1, ..CqConfig::new(1, 9) };
    node.device().tni(1)?.enable()?;
    let mut cq = Cq::open(node.device(), &config)?;
    let to = Target::new(Coords::default(), 0);
    let remote = tofu_abi::StagOffset(stadd.0);
    let next = Cell::new(0u64);
    let value = || {
        next.set(next.get() + 1);
        black_box(next.get())
    };
    let mut by_hand = || {
        let value = value();
        let order = Order::put_piggyback(to, remote, &value.to_le_bytes())?;
        cq.post_and_ring(&order, value)?;
        while cq.poll_tcq().is_none() {}
        while cq.poll_mrq().is_some() {}
        Ok(())
    };

    let vcq = context.create_vcq(2, None, 0)?;
    let mut rust = || {
        let value = value();
        let posting = Posting::new(target.id().0, 0, flags::TCQ_NOTICE)?;
        vcq.post(&posting.put_piggyback8(value, 8, stadd.0)?, value as usize)?;
        while vcq.poll_tcq().is_none() {}
        Ok(())
    };
    let mut c = through_c().context("TOFU_PROVIDER=inproc is needed")?;
    let mut best = [f64::MAX; 3];
    for _ in 0..ROUNDS {
        let times = [round(&mut by_hand)?, round(&mut rust)?, round(&mut c)?];
        for (best, time) in best.iter_mut().zip(times) {
            *best = best.min(time);
        }
    }
    let [by_hand_ns, rust_ns, c_ns] = best;
    Ok(Overhead { by_hand_ns, rust_ns, c_ns })
}

/// The same, on the C library's own machine.
fn through_c() -> Result<impl FnMut() -> Result<()>> {
    let (mut target, mut handle, mut id, mut stadd) = (0, 0, 0, 0);
    let memory = api::memory(4096);
    // SAFETY: the memory is never freed, and nothing in Rust refers to it; the other pointers lead
    // to what they are said to.
    unsafe {
        api::ok(tofucom::utofu_create_vcq(0, 0, &raw mut target))?;
        api::ok(tofucom::utofu_query_vcq_id(target, &raw mut id))?;
        api::ok(tofucom::utofu_reg_mem(target, memory.cast(), 4096, 0, &raw mut stadd))?;
        api::ok(tofucom::utofu_create_vcq(2, 0, &raw mut handle))?;
    }
    let stadd = Stadd(stadd).0;
    let mut value = 0u64;
    Ok(move || {
        value += 1;
        let mut cbdata = ptr::null_mut();
        let (data, flags) = (black_box(value), flags::TCQ_NOTICE);
        // SAFETY: as above.
        unsafe {
            api::ok(tofucom::utofu_put_piggyback8(
                handle,
                id,
                data,
                stadd,
                8,
                0,
                flags,
                ptr::null_mut(),
            ))?;
            while tofucom::utofu_poll_tcq(handle, 0, &raw mut cbdata) != 0 {}
        }
        Ok(())
    })
}
