//! An end of a transfer: a queue of a node, with a buffer.

use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Context, bail};
use tofu_abi::table::PageSize;
use tofu_abi::{Coords, CqId, TniId};
use tofu_driver::{
    Access, Cq, CqConfig, Device, DmaBuffer, MemoryRange, Order, Platform, Stag, Target,
};
use tofu_inproc::{Buffer, InProcess};

use crate::machine::Model;

/// The most data that comes with one descriptor, and with two.
pub(super) const PIGGYBACK: [u32; 2] = [8, 32];

/// A queue of a node, with a buffer.
pub(super) struct End {
    pub(super) node: Coords,
    pub(super) cq: Cq<InProcess>,
    pub(super) stag: Stag,
    buffer: Buffer,
}

impl End {
    pub(super) fn new(
        model: &Model,
        node: Coords,
        tni: TniId,
        bytes: usize,
    ) -> anyhow::Result<Self> {
        Self::of(model.device(node)?, node, tni, bytes)
    }

    /// Opens an end whose queue is in a memory group far from the interfaces, if there is one.
    pub(super) fn far(
        model: &Model,
        node: Coords,
        tni: TniId,
        bytes: usize,
    ) -> anyhow::Result<Self> {
        let device = model.device(node)?;
        let groups = device.description().groups;
        let cq = device.description().cq_ids().find(|cq| groups.is_far(cq.get()));
        Self::with_queue(device, node, (tni, cq.context("a far memory group")?), bytes)
    }

    /// Opens an end of a device that is not a model's.
    pub(super) fn of(
        device: &Device<InProcess>,
        node: Coords,
        tni: TniId,
        bytes: usize,
    ) -> anyhow::Result<Self> {
        Self::with_queue(device, node, (tni, CqId::ALL[0]), bytes)
    }

    fn with_queue(
        device: &Device<InProcess>,
        node: Coords,
        (tni, cq): (TniId, CqId),
        bytes: usize,
    ) -> anyhow::Result<Self> {
        let buffer = device.platform().alloc_dma(bytes, 64 << 10)?;
        let mut cq = Cq::open(device, &CqConfig::new(tni, cq))?;
        let range = MemoryRange { addr: buffer.device_addr(), len: bytes as u64 };
        let stag = cq.register(&[range], PageSize::Size64K, Access::ReadWrite, None)?;
        Ok(Self { node, cq, stag, buffer })
    }

    pub(super) fn target(&self) -> Target {
        Target::new(self.node, self.cq.tni())
    }

    /// Makes a Put to the same place in another end's buffer, with `mark` as the last word. Up to
    /// `piggyback` bytes come with the command itself.
    pub(super) fn put(
        &self,
        to: &Self,
        bytes: u32,
        mark: u32,
        piggyback: u32,
    ) -> anyhow::Result<Order> {
        let remote = to.stag.at(0);
        let last = bytes.saturating_sub(4) as usize;
        if bytes > piggyback {
            self.buffer.store_u32(last, mark, SeqCst);
            return Ok(Order::put(to.target(), remote, self.stag.at(0), bytes));
        }
        let mut data = [0; PIGGYBACK[1] as usize];
        data[last..last + 4].copy_from_slice(&mark.to_le_bytes());
        Order::put_piggyback(to.target(), remote, &data[..bytes as usize]).context("a piggyback")
    }

    /// Returns whether the last word of a message has arrived.
    pub(super) fn has(&self, bytes: u32, mark: u32) -> bool {
        self.buffer.load_u32(bytes.saturating_sub(4) as usize, SeqCst) == mark
    }

    /// Returns how many commands have ended since the last call.
    pub(super) fn ended(&mut self) -> anyhow::Result<usize> {
        let mut ended = 0;
        while let Some(completion) = self.cq.poll_tcq() {
            if !completion.is_success() {
                bail!("a command of a model: {}", completion.rcode);
            }
            ended += 1;
        }
        while self.cq.poll_mrq().is_some() {}
        Ok(ended)
    }
}
