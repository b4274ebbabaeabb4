//! Interrupt request bits and MSI-X vectors.
//!
//! Each unit has IRR (pending requests), IMR (mask; a write sets bits), IRC (a write
//! clears pending requests), IMC (a write clears mask bits) and ICL. After reset every
//! bit is masked (ours).

use core::fmt;

use crate::regs::NUM_PORT;
use crate::topology::Port;

/// A set of interrupt requests, as in the registers of a unit.
pub trait IrqSet: Copy + fmt::Debug + 'static {
    /// Every request that the unit has.
    const ALL: Self;

    /// The set of these bits, known or not.
    fn from_raw(raw: u64) -> Self;

    /// The bits.
    fn raw(self) -> u64;
}

/// Defines the requests of a unit, one bit each, as a set.
macro_rules! irq_sets {
    ($(
        $(#[$meta:meta])*
        pub struct $set:ident { $( $(#[$rmeta:meta])* $name:ident = $bit:literal; )* }
    )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $set(u64);

        impl $set {
            $( $(#[$rmeta])* pub const $name: Self = Self(1 << $bit); )*

            const NAMES: &'static [(Self, &'static str)] =
                &[$((Self::$name, stringify!($name))),*];
            /// Every request that the unit has.
            pub const ALL: Self = Self(0 $(| 1 << $bit)*);

            /// The names of the requests, in order of bits.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                let contained = move |(request, _): &&(Self, _)| self.intersects(*request);
                Self::NAMES.iter().filter(contained).map(|(_, name)| *name)
            }
        }

        irq_sets!(@ops $set);

        impl fmt::Debug for $set {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_set()
                    .entries(self.names())
                    .entries(Some(self.0 & !Self::ALL.0).filter(|unknown| *unknown != 0))
                    .finish()
            }
        }
    )* };
    (@ops $set:ident) => {
        impl $set {
            /// No request.
            pub const NONE: Self = Self(0);

            /// The set of these bits, known or not.
            #[inline]
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw)
            }

            /// The bits.
            #[inline]
            pub const fn raw(self) -> u64 {
                self.0
            }

            /// Returns true if there is no request.
            #[inline]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Returns true if the sets have a request in common.
            #[inline]
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }

            /// The requests of both sets.
            #[inline]
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The requests of this set that are not in `other`.
            #[inline]
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }

        impl IrqSet for $set {
            const ALL: Self = Self::ALL;

            #[inline]
            fn from_raw(raw: u64) -> Self {
                Self(raw)
            }

            #[inline]
            fn raw(self) -> u64 {
                self.0
            }
        }

        impl core::ops::BitOr for $set {
            type Output = Self;

            #[inline]
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl core::ops::BitOrAssign for $set {
            #[inline]
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }

        impl core::ops::BitAnd for $set {
            type Output = Self;

            #[inline]
            fn bitand(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }
    };
}

irq_sets! {
    /// Requests of a control queue.
    pub struct CqsIrqs {
        /// The transmit order queue could not be read.
        TOQ_READ_EXCEPTION = 0;
        /// The direct descriptor register was misused.
        TOQ_DIRECT_DESCRIPTOR_EXCEPTION = 1;
        /// A descriptor was marked as damaged in memory.
        TOQ_MARKED_UE = 2;
        /// The transmit complete queue could not be written.
        TCQ_WRITE_EXCEPTION = 3;
        /// A descriptor came from another source than its source_type says.
        TOQ_SOURCE_TYPE_EXCEPTION = 4;
        /// A transmit complete entry was written whose descriptor requested an interrupt.
        TCQ_WRITE_ACKNOWLEDGE = 5;
        /// Message receive entries were written.
        MRQ_WRITE_ACKNOWLEDGE = 7;
        /// The message receive queue could not be written.
        MRQ_WRITE_EXCEPTION = 8;
        /// The message receive queue was full and a notice was lost.
        MRQ_OVERFLOW = 9;
        /// A steering table entry could not be used.
        STEERING_READ_EXCEPTION = 36;
        /// A memory block table entry or page table entry could not be used.
        MB_READ_EXCEPTION = 38;
        /// Payload could not be read from memory.
        PAYLOAD_READ_EXCEPTION = 39;
        /// Payload could not be written to memory.
        PAYLOAD_WRITE_EXCEPTION = 40;
    }
    /// Requests of a barrier gate.
    pub struct BgsIrqs {
        /// A signal came from another node than the gate's links say.
        NODE_ADDRESS_UNMATCH = 0;
        /// The gate to receive from does not exist.
        BG_RECV_ADDRESS_EXCEPTION = 1;
        /// The gate to send to does not exist.
        BG_SEND_ADDRESS_EXCEPTION = 2;
        /// A signal came with another group process id.
        GPID_UNMATCH = 3;
        /// A signal came with another barrier sequence number.
        BSEQ_UNMATCH = 4;
        /// A signal came twice or with another operator.
        SIGNAL_STATE_ERROR = 5;
        /// A synchronisation completed.
        SYNCHRONIZATION_ACKNOWLEDGE = 24;
        /// A synchronisation completed with an error.
        ERROR_SYNCHRONIZATION_ACKNOWLEDGE = 25;
        /// The notice could not be written.
        DMA_COMPLETION_EXCEPTION = 26;
    }
    /// Requests of a network interface.
    pub struct TniIrqs {
        /// The packet buffer queue could not be read.
        PBQ_READ_EXCEPTION = 0;
        /// A packet buffer entry was marked as damaged in memory.
        PBQ_MARKED_UE = 1;
        /// No packet buffer was left.
        PBQ_UNDERFLOW = 2;
        /// A packet was discarded.
        PRQ_PACKET_DISCARD = 3;
        /// Packet receive entries were written.
        PRQ_WRITE_ACKNOWLEDGE = 4;
        /// The packet receive queue could not be written.
        PRQ_WRITE_EXCEPTION = 5;
        /// The packet receive queue was full.
        PRQ_OVERFLOW = 6;
        /// A signal came for a gate that is not enabled.
        INACTIVE_BG = 16;
        /// The second translation stage failed.
        STAGE2_TRANSLATION_FAULT = 32;
    }
}

impl CqsIrqs {
    /// That an entry was written.
    pub const ACKNOWLEDGES: Self = Self::TCQ_WRITE_ACKNOWLEDGE.union(Self::MRQ_WRITE_ACKNOWLEDGE);
    /// The requests that report an exception rather than an entry that was written.
    pub const EXCEPTIONS: Self = Self::ALL.without(Self::ACKNOWLEDGES);
}

impl BgsIrqs {
    /// That a round has ended, well or not.
    pub const ACKNOWLEDGES: Self =
        Self::SYNCHRONIZATION_ACKNOWLEDGE.union(Self::ERROR_SYNCHRONIZATION_ACKNOWLEDGE);
    /// The requests that report an exception rather than the end of a round.
    pub const EXCEPTIONS: Self = Self::ALL.without(Self::ACKNOWLEDGES);
}

/// The interrupt requests of a link port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PortRequest {
    /// A TLP was filtered out on arrival.
    RxFilterOut = 0,
    /// A TLP was filtered out before sending.
    TxFilterOut = 1,
    /// The link is down or failed with a TLP to send.
    PortError = 2,
    /// A TLP crossed the date line on the wrong virtual channel.
    DatelineError = 3,
    /// A TLP has no way to go.
    RoutingError = 4,
}

/// Requests of the links (TNR): five for each of the ten ports, at bit `6 * port`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct TnrIrqs(u64);

impl TnrIrqs {
    /// Every request that the unit has.
    pub const ALL: Self = {
        let mut all = 0;
        let mut port = 0;
        while port < NUM_PORT {
            all |= 0x1f << (6 * port);
            port += 1;
        }
        Self(all)
    };

    /// The request of a port.
    pub const fn of(port: Port, request: PortRequest) -> Self {
        Self(1 << (6 * port as u32 + request as u32))
    }

    /// The ports that have this request.
    pub fn ports(self, request: PortRequest) -> impl Iterator<Item = Port> {
        Port::ALL.into_iter().filter(move |port| self.intersects(Self::of(*port, request)))
    }
}

irq_sets!(@ops TnrIrqs);

impl fmt::Debug for TnrIrqs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// MSI-X vectors (ours; real TofuD is not a PCIe device).
pub mod vector {
    use crate::ids::{CqId, TniId};

    /// Links (TNR).
    pub const TNR: u16 = 0;
    /// Vectors of a TofuD node.
    pub const COUNT: u16 = 1 + 16 * crate::regs::NUM_TNI as u16;

    /// Exceptions and notices of one control queue.
    pub const fn cq(tni: TniId, cq: CqId) -> u16 {
        1 + 16 * tni.get() as u16 + cq.get() as u16
    }

    /// All barrier gates of a TNI.
    pub const fn bg(tni: TniId) -> u16 {
        1 + 16 * tni.get() as u16 + 12
    }

    /// Packet queues of a TNI.
    pub const fn tni(tni: TniId) -> u16 {
        1 + 16 * tni.get() as u16 + 13
    }
}
