//! A node of a torus of TNW as the driver's device.

use std::sync::Arc;

use tofu_abi::Coords;
use tofu_abi::tnw::{REGISTER_BAR, vector};
use tofu_machine::{Torus, TorusNode};
use tofu_pci::{EndpointDevice, PciFunction};

use crate::node::{node_memory, set_up};
use crate::{AttachError, Backend, InProcess};

impl InProcess {
    /// Puts a network processor with `size` bytes of memory of its own at `coords` of `torus`, does
    /// what firmware would do, and returns the platform to drive it with.
    ///
    /// # Errors
    ///
    /// See [`AttachError`].
    pub fn attach_nwp(
        torus: &Arc<Torus>,
        coords: Coords,
        size: usize,
    ) -> Result<Self, AttachError> {
        let (memory, arena) = node_memory(size)?;
        let node = torus.add_node(coords, memory)?;
        let interrupts = set_up(&*node, EndpointDevice::endpoint(&*node), vector::COUNT);
        let backend = NwpNode { torus: Arc::clone(torus), node };
        Ok(Self::new(Arc::new(backend), arena, interrupts))
    }
}

struct NwpNode {
    torus: Arc<Torus>,
    node: Arc<TorusNode>,
}

impl Backend for NwpNode {
    fn bar_read(&self, offset: u64, data: &mut [u8]) {
        self.node.bar_read(REGISTER_BAR, offset, data);
    }

    fn bar_write(&self, offset: u64, data: &[u8]) {
        self.node.bar_write(REGISTER_BAR, offset, data);
    }

    fn bar_store(&self, bar: u8, offset: u64, data: &[u8]) {
        self.node.bar_write(bar, offset, data);
    }

    fn now_ns(&self) -> u64 {
        self.torus.now_ns()
    }

    fn pump(&self) -> bool {
        let alone = !self.torus.has_engine();
        if alone {
            self.torus.run_pending();
        }
        alone
    }
}
