//! Common set-up of the programs: the device, and VCQs on every interface with a peer.
#![no_std]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use tofu_abi::Coords;
use tofu_abi::topology::{NodeId, Shape};
use tofu_guests::{Error, fail, machine_shape};
use tofu_utofu::ids::VcqId;
use tofu_utofu::{Context, DeviceShare, Provider, Vcq};
use tofu_utofu_bare::BareProvider;

/// Component ID of all VCQs.
pub const CMP_ID: u16 = 7;
/// Steering tag of each node's memory.
pub const MEMORY: u32 = 1;

/// This node, which uses its device alone.
pub struct Node {
    /// The machine.
    pub shape: Shape,
    /// This node's number in it.
    pub rank: u32,
    /// The process.
    pub context: Context<BareProvider>,
}

impl Node {
    /// Takes over the device.
    ///
    /// # Errors
    ///
    /// If it does not work, or the node is not in the machine that the command line names.
    pub fn open() -> Result<Self, Error> {
        let shape = machine_shape()?;
        let provider = tofu_utofu_bare::open(0).map_err(|e| fail!("{e}"))?;
        let share = DeviceShare::of(provider.generation(), 0, 1)?;
        // The core counts references across threads; a bare guest has only one thread.
        #[expect(clippy::arc_with_non_send_sync)]
        let context = Context::new(Arc::new(provider), share);
        let NodeId(rank) =
            shape.node_id(context.coords()).ok_or_else(|| fail!("not in the machine"))?;
        Ok(Self { shape, rank, context })
    }

    /// The coordinates of a node of the machine.
    ///
    /// # Errors
    ///
    /// If there is none of this number.
    pub fn coords(&self, rank: u32) -> Result<Coords, Error> {
        self.shape.coords(NodeId(rank)).ok_or_else(|| fail!("no such node"))
    }
}

/// A VCQ on every interface, all with the same memory, and those of a peer that has done the same.
pub struct Vcqs {
    /// This node's, by interface.
    pub own: Vec<Vcq<BareProvider>>,
    /// The peer's.
    pub ids: Vec<VcqId>,
    /// The memory, at a multiple of 256, which is never freed.
    pub memory: *mut u8,
}

impl Vcqs {
    /// Makes VCQs with `size` bytes of memory, which start as zeroes, under the steering tag
    /// [`MEMORY`].
    ///
    /// # Errors
    ///
    /// Those of uTofu.
    pub fn open(node: &Node, peer: Coords, size: usize) -> Result<Self, Error> {
        let memory = vec![0u64; size / 8 + 32].leak().as_mut_ptr();
        let memory = (memory as usize).next_multiple_of(256) as *mut u8;
        let (mut own, mut ids) = (Vec::new(), Vec::new());
        for tni in node.context.share().tnis() {
            let vcq = node.context.create_vcq(tni.get().into(), Some(CMP_ID), 0)?;
            // SAFETY: the memory is never freed, and programs access it by its address only.
            unsafe { vcq.reg_mem(memory, size, Some(MEMORY), 0)? };
            own.push(vcq);
            ids.push(VcqId::construct(peer, tni.get().into(), 0, CMP_ID)?);
        }
        Ok(Self { own, ids, memory })
    }
}
