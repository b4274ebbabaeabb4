//! A node's controller as a PCI function, for guests that keep modelled time.

use std::sync::Arc;

use tofu_abi::Coords;
use tofu_abi::pci::REGISTER_BAR;
use tofu_abi::topology::NodeId;
use tofu_icc::Icc;
use tofu_icc::device_faults::Injector;
use tofu_pci::{Endpoint, EndpointDevice, Error};

use crate::EventEngine;

/// A controller of an [`EventEngine`] behind its PCI endpoint.
///
/// An access happens at the time that the engine has reached, so a guest must have its turn before
/// it accesses the device. Doorbells are ordinary accesses; an event or a polled page would have no
/// modelled time. MSI-X messages are sent when the driver passes the engine's interrupts to
/// [`Endpoint::trigger`].
#[derive(Debug)]
pub struct Function {
    engine: Arc<EventEngine>,
    node: NodeId,
    coords: Coords,
    endpoint: Endpoint,
}

impl Function {
    /// The function of a node; `None` if the engine does not have it.
    ///
    /// # Errors
    ///
    /// As [`tofu_pci::controller`].
    pub fn new(engine: &Arc<EventEngine>, node: NodeId) -> Result<Option<Self>, Error> {
        let Some(coords) = engine.icc(node).map(|icc| icc.coords()) else { return Ok(None) };
        let endpoint = tofu_pci::controller(engine.generation(), coords)?;
        Ok(Some(Self { engine: Arc::clone(engine), node, coords, endpoint }))
    }

    /// The coordinates of the node.
    pub const fn coords(&self) -> Coords {
        self.coords
    }

    fn note_access(&self, offset: u64, write: bool) {
        if let Some(observer) = self.engine.observer() {
            observer.access(self.node, offset, write);
        }
    }

    /// The faults of the device.
    pub fn faults(&self) -> &Injector {
        self.engine.device_faults(self.node).expect("checked when this was made")
    }

    /// The controller.
    pub fn icc(&self) -> &Icc {
        self.engine.icc(self.node).expect("checked when this was made")
    }
}

impl EndpointDevice for Function {
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn bus_master_changed(&self, on: bool) {
        self.icc().set_bus_master(on);
    }

    fn read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        match bar {
            REGISTER_BAR => {
                self.note_access(offset, false);
                if self.faults().is_gone() {
                    data.fill(0xff);
                } else {
                    self.icc().bar_read(offset, data);
                    self.faults().read(data);
                }
            }
            _ => data.fill(0xff),
        }
    }

    fn write(&self, bar: u8, offset: u64, data: &[u8]) {
        if bar == REGISTER_BAR {
            self.note_access(offset, true);
            if !self.faults().is_gone() && !self.faults().keeps_queue(offset, data) {
                self.icc().bar_write(offset, data);
            }
        }
    }

    fn answers(&self) -> bool {
        !self.faults().is_gone()
    }

    fn reset_device(&self) {
        self.icc().reset();
        self.icc().set_bus_master(false);
        self.engine.reset(self.node);
        self.faults().reset();
    }
}

#[cfg(test)]
mod tests {
    use tofu_abi::Generation;
    use tofu_icc::device_faults::DeviceFaults;
    use tofu_netmodel::Arbiter;
    use vm_memory::{GuestAddress, GuestMemoryMmap};

    use super::*;

    fn function() -> Function {
        let range = (GuestAddress(0x1000), 1 << 20);
        let memory = GuestMemoryMmap::<()>::from_ranges(&[range]).unwrap();
        let shape = "1x1x1x1x1x1".parse().unwrap();
        let memories = [Arc::new(memory) as _];
        let none = Box::new(|_| {});
        let engine =
            EventEngine::new(Generation::Fugaku, shape, Arbiter::InTurn, memories, none).unwrap();
        assert!(Function::new(&engine, NodeId(1)).unwrap().is_none());
        Function::new(&engine, NodeId(0)).unwrap().unwrap()
    }

    tofu_pci::testing::law_tests!(function);

    #[test]
    fn device_that_is_gone_answers_nothing() {
        let function = function();
        let read = || {
            let mut data = [0; 8];
            function.read(REGISTER_BAR, 0, &mut data);
            data
        };
        let before = read();
        assert!(function.answers() && before != [0xff; 8]);
        let gone = DeviceFaults { gone: true, ..DeviceFaults::default() };
        assert!(function.engine.set_device_faults(NodeId(0), gone));
        assert_eq!((function.answers(), read()), (false, [0xff; 8]));
        assert!(function.engine.set_device_faults(NodeId(0), DeviceFaults::default()));
        assert_eq!((function.answers(), read()), (true, before));
    }
}
