//! The IOMMU (1.2, 5.13): a guest maps addresses of a device to memory.
//!
//! [`Iommu`] is the device that a driver uses. It translates for [`Endpoint`]s. A device behind it
//! accesses memory only through [`Endpoint::begin`]. Firmware lists the endpoint number of each
//! function for the guest (ACPI's VIOT).
//!
//! Mappings change while devices work. So an access lasts from before an address is looked up until
//! the memory was used. A request that removes a mapping is answered when every access that may
//! have found it has ended.

mod space;

use std::sync::Arc;

use vm_memory::Permissions;
use vmm_sys_util::eventfd::EventFd;

pub use self::space::{
    Access, DOMAIN_LAST, Endpoint, INPUT_LAST, MAX_MAPPINGS, MSI_WINDOW, PAGE, Unmapped,
};
use self::space::{Failure, Fault, Space};
use crate::device::{ConfigFields, Device, Identity, Io, Work};
use crate::regs::kind;
use crate::ring::{Broken, Chain};

const REQUESTS: usize = 0;
const EVENTS: usize = 1;
const REQUESTS_SIZE: u16 = 256;
const EVENTS_SIZE: u16 = 64;
/// Requests in a turn.
const TURN: usize = 64;

/// The feature that addresses have an upper bound (1.2, 5.13.3).
pub const F_INPUT_RANGE: u64 = 1 << 0;
/// The feature that domains have numbers up to a bound.
pub const F_DOMAIN_RANGE: u64 = 1 << 1;
/// The feature that MAP and UNMAP work.
pub const F_MAP_UNMAP: u64 = 1 << 2;
/// The feature that PROBE works.
pub const F_PROBE: u64 = 1 << 4;
/// The feature that the driver decides what endpoints without a domain reach.
pub const F_BYPASS_CONFIG: u64 = 1 << 6;

/// Size of the configuration in bytes (1.2, 5.13.4).
const CONFIG_SIZE: usize = 48;
/// The offset of `bypass` in the configuration.
const CONFIG_BYPASS: usize = 40;

/// Types of requests (1.2, 5.13.6).
const T_ATTACH: u8 = 1;
const T_DETACH: u8 = 2;
const T_MAP: u8 = 3;
const T_UNMAP: u8 = 4;
const T_PROBE: u8 = 5;

/// Sizes of what the device reads of a request, in bytes.
const ATTACH_SIZE: u64 = 20;
const DETACH_SIZE: u64 = 20;
const MAP_SIZE: u64 = 36;
const UNMAP_SIZE: u64 = 28;
const PROBE_SIZE: u64 = 72;
const LARGEST: usize = PROBE_SIZE as usize;
/// Size of what the device writes: status, and three bytes that are not used.
const TAIL_SIZE: u64 = 4;
/// Size of the properties of an endpoint (ours): one, and the end.
const PROPERTIES: usize = 64;

const ATTACH_BYPASS: u32 = 1 << 0;
const MAP_READ: u32 = 1 << 0;
const MAP_WRITE: u32 = 1 << 1;

/// The property that a region is reserved, with its size and the kind for interrupts (1.2,
/// 5.13.6.9).
const PROPERTY_RESERVED: u16 = 1;
const RESERVED_SIZE: u16 = 20;
const RESERVED_MSI: u8 = 1;

/// Size of an event in bytes (1.2, 5.13.6.10).
const EVENT_SIZE: u64 = 24;
const FAULT_READ: u32 = 1 << 0;
const FAULT_WRITE: u32 = 1 << 1;
const FAULT_ADDRESS: u32 = 1 << 8;

/// An IOMMU. Endpoints can be added at any time. Until the driver says otherwise they reach all of
/// memory, at its own addresses.
#[derive(Clone)]
pub struct Iommu {
    space: Arc<Space>,
}

impl Default for Iommu {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Iommu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iommu").field("mappings", &self.mappings()).finish_non_exhaustive()
    }
}

impl Iommu {
    /// An IOMMU without endpoints. Clones are the same one: one is given to
    /// [`Virtio::new`](crate::Virtio::new), the other makes endpoints.
    pub fn new() -> Self {
        Self { space: Arc::new(Space::new()) }
    }

    /// Creates the endpoint of this number, which drivers can then attach to domains.
    pub fn endpoint(&self, number: u32) -> Endpoint {
        self.space.add(number);
        Endpoint { space: Arc::clone(&self.space), number }
    }

    /// The number of mappings in all domains; at most [`MAX_MAPPINGS`].
    pub fn mappings(&self) -> usize {
        self.space.mapped()
    }

    /// Serves a request, whose device-readable part is `request`; fills in the properties that a
    /// probe requests.
    fn serve(
        &self,
        io: &Io<'_>,
        request: &[u8],
        properties: Option<&mut [u8; PROPERTIES]>,
    ) -> Result<(), Failure> {
        let word = |at: usize| read::<4>(request, at).map(u32::from_le_bytes);
        let quad = |at: usize| read::<8>(request, at).map(u64::from_le_bytes);
        let kind = *request.first().ok_or(Failure::Invalid)?;
        let (feature, size) = match kind {
            T_ATTACH => (0, ATTACH_SIZE),
            T_DETACH => (0, DETACH_SIZE),
            T_MAP => (F_MAP_UNMAP, MAP_SIZE),
            T_UNMAP => (F_MAP_UNMAP, UNMAP_SIZE),
            T_PROBE => (F_PROBE, PROBE_SIZE),
            _ => return Err(Failure::Unsupported),
        };
        if !io.negotiated(feature) {
            return Err(Failure::Unsupported);
        }
        if request.len() as u64 != size || (kind == T_PROBE) != properties.is_some() {
            return Err(Failure::Invalid);
        }
        let space = &self.space;
        match kind {
            T_ATTACH => {
                let (domain, endpoint, flags) = (word(4)?, word(8)?, word(12)?);
                let known = if io.negotiated(F_BYPASS_CONFIG) { ATTACH_BYPASS } else { 0 };
                if flags & !known != 0 || word(16)? != 0 {
                    return Err(Failure::Invalid);
                }
                space.attach(endpoint, domain, flags & ATTACH_BYPASS != 0)
            }
            T_DETACH => space.detach(word(8)?, word(4)?),
            T_MAP => {
                let flags = word(32)?;
                if flags & !(MAP_READ | MAP_WRITE) != 0 {
                    return Err(Failure::Invalid);
                }
                let may = |flag, what| if flags & flag != 0 { what } else { Permissions::No };
                let rights = may(MAP_READ, Permissions::Read) | may(MAP_WRITE, Permissions::Write);
                space.map(word(4)?, (quad(8)?, quad(16)?), quad(24)?, rights)
            }
            T_UNMAP => space.unmap(word(4)?, (quad(8)?, quad(16)?)),
            _ => {
                if !space.has(word(4)?) {
                    return Err(Failure::NoEntry);
                }
                if let Some(properties) = properties {
                    properties[..2].copy_from_slice(&PROPERTY_RESERVED.to_le_bytes());
                    properties[2..4].copy_from_slice(&RESERVED_SIZE.to_le_bytes());
                    properties[4] = RESERVED_MSI;
                    properties[8..16].copy_from_slice(&MSI_WINDOW.0.to_le_bytes());
                    properties[16..24].copy_from_slice(&MSI_WINDOW.1.to_le_bytes());
                }
                Ok(())
            }
        }
    }

    fn request(&self, io: &mut Io<'_>, chain: Chain) -> Result<(), Broken> {
        let writable = chain.writable();
        if writable < TAIL_SIZE {
            return Err(Broken("a request without room for its status"));
        }
        // One byte more than any request has, so that one which is too long is seen.
        let mut request = [0; LARGEST + 1];
        let len = chain.readable().min(request.len() as u64) as usize;
        chain.read(io.memory(), 0, &mut request[..len])?;
        // The status comes last (1.2, 5.13.6).
        let mut properties = [0; PROPERTIES];
        let result = match writable - TAIL_SIZE {
            0 => self.serve(io, &request[..len], None),
            rest if rest == PROPERTIES as u64 => {
                self.serve(io, &request[..len], Some(&mut properties))
            }
            _ => Err(Failure::Invalid),
        };
        let status = result.err().map_or(0, |failure| failure as u8);
        let written = if writable == TAIL_SIZE + PROPERTIES as u64 {
            chain.write(io.memory(), 0, &properties)?;
            writable
        } else {
            TAIL_SIZE
        };
        chain.write(io.memory(), writable - TAIL_SIZE, &[status, 0, 0, 0])?;
        io.complete(REQUESTS, chain, written as u32)
    }

    /// Tells the driver about accesses that were refused, as long as it has buffers for that.
    fn events(&self, io: &mut Io<'_>) -> Result<(), Broken> {
        while self.space.fault_waits() {
            let Some(chain) = io.pop(EVENTS)? else { return Ok(()) };
            if chain.writable() < EVENT_SIZE {
                return Err(Broken("a buffer too short for an event"));
            }
            // A reset may have taken it; the buffer goes back unused, as it does upon reset.
            let Some(fault) = self.space.next_fault() else { return Ok(()) };
            chain.write(io.memory(), 0, &event(fault))?;
            io.complete(EVENTS, chain, EVENT_SIZE as u32)?;
        }
        Ok(())
    }
}

fn event(fault: Fault) -> [u8; EVENT_SIZE as usize] {
    let did = |what, flag| if fault.access.allow(what) { flag } else { 0 };
    let flags =
        FAULT_ADDRESS | did(Permissions::Read, FAULT_READ) | did(Permissions::Write, FAULT_WRITE);
    let mut event = [0; EVENT_SIZE as usize];
    event[0] = fault.reason as u8;
    event[4..8].copy_from_slice(&flags.to_le_bytes());
    event[8..12].copy_from_slice(&fault.endpoint.to_le_bytes());
    event[16..24].copy_from_slice(&fault.address.to_le_bytes());
    event
}

/// A field of a request.
fn read<const N: usize>(request: &[u8], at: usize) -> Result<[u8; N], Failure> {
    let field = request.get(at..).and_then(|rest| rest.first_chunk());
    field.copied().ok_or(Failure::Invalid)
}

impl Device for Iommu {
    fn identity(&self) -> Identity {
        let mut config = vec![0; CONFIG_SIZE];
        // All sizes from a page on: any multiple of it can be mapped.
        config[..8].copy_from_slice(&(!(PAGE - 1)).to_le_bytes());
        config[16..24].copy_from_slice(&INPUT_LAST.to_le_bytes());
        config[28..32].copy_from_slice(&DOMAIN_LAST.to_le_bytes());
        config[32..36].copy_from_slice(&(PROPERTIES as u32).to_le_bytes());
        Identity {
            kind: kind::IOMMU,
            // A system peripheral: an IOMMU.
            class: 0x08_06_00,
            features: F_INPUT_RANGE | F_DOMAIN_RANGE | F_MAP_UNMAP | F_PROBE | F_BYPASS_CONFIG,
            queues: vec![REQUESTS_SIZE, EVENTS_SIZE],
            config,
        }
    }

    fn connect(&mut self, wake: EventFd) {
        self.space.wake_by(wake);
    }

    fn fields(&self) -> Option<Arc<dyn ConfigFields>> {
        Some(Arc::clone(&self.space) as Arc<dyn ConfigFields>)
    }

    fn work(&mut self, io: &mut Io<'_>) -> Result<Work, Broken> {
        for _ in 0..TURN {
            let Some(chain) = io.pop(REQUESTS)? else {
                self.events(io)?;
                return Ok(Work::Done);
            };
            self.request(io, chain)?;
        }
        self.events(io)?;
        Ok(Work::More)
    }

    fn reset(&mut self) {
        self.space.reset();
    }
}

impl ConfigFields for Space {
    fn read(&self, config: &mut [u8]) {
        if let Some(field) = config.get_mut(CONFIG_BYPASS) {
            *field = self.bypass().into();
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        if let (CONFIG_BYPASS, &[value @ 0..=1]) = (offset as usize, data) {
            self.set_bypass(value == 1);
        }
    }
}
