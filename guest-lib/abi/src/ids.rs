//! Numbers of the units of a node: network interfaces, control queues, barrier gates and channels.
//!
//! An id of one of these types is a number that the register map has. Whether a device has the unit
//! is another question: a TofuD has fewer barrier gates than the map.

use core::fmt;

/// Network interfaces (TNI) that the register map has: those of a TofuD node. How many of these and
/// of the following units a device has depends on its
/// [`Generation`](crate::generation::Generation).
pub const NUM_TNI: usize = 6;
/// Control queues (CQ) of a TNI.
pub const NUM_CQ: usize = 12;
/// The control queue that belongs to the kernel.
pub const KERNEL_CQ: u8 = 11;
/// Barrier gates (BG) of a TNI of TofuD.
pub const NUM_BG: usize = 48;
/// Barrier gates that a TNI may have: 64 in Tofu and Tofu2, whose gates are reached by the same
/// registers here (ours).
pub const MAX_BG: usize = 64;
/// Barrier channels (BCH) of a TNI: barrier gates 0 to 15 have one each.
pub const NUM_BCH: usize = 16;

/// Defines the checked number of a unit.
macro_rules! ids {
    ($( $(#[$meta:meta])* $name:ident < $count:ident; )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// Every number, in ascending order.
            pub const ALL: [Self; $count] = {
                let mut all = [Self(0); $count];
                let mut n = 0;
                while n < $count {
                    all[n] = Self(n as u8);
                    n += 1;
                }
                all
            };

            /// The id with this number, if the register map has it.
            #[inline]
            pub const fn new(number: u8) -> Option<Self> {
                if (number as usize) < $count { Some(Self(number)) } else { None }
            }

            /// The number.
            #[inline]
            pub const fn get(self) -> u8 {
                self.0
            }

            /// The number, as an index.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<$name> for u8 {
            fn from(id: $name) -> u8 {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )* };
}

ids! {
    /// A network interface (TNI) of a node, 0 to 5.
    TniId < NUM_TNI;
    /// A control queue (CQ) of a network interface, 0 to 11.
    CqId < NUM_CQ;
    /// A barrier gate (BG) of a network interface, 0 to 63.
    BgId < MAX_BG;
    /// A barrier channel (BCH) of a network interface, 0 to 15.
    BchId < NUM_BCH;
}

impl CqId {
    /// The control queue that belongs to the kernel.
    pub const KERNEL: Self = Self(KERNEL_CQ);
}

impl BgId {
    /// The gate that a field of six bits names; bits above them are ignored.
    pub const fn from_field(bits: u8) -> Self {
        Self(bits % MAX_BG as u8)
    }

    /// The channel of a start/end gate.
    pub const fn channel(self) -> Option<BchId> {
        BchId::new(self.0)
    }
}

impl BchId {
    /// The channel's start/end gate.
    pub const fn gate(self) -> BgId {
        BgId(self.0)
    }
}

/// A doorbell of a network interface, which is a page that a user process may map: of a control
/// queue (`TOQ_FETCH_START` rings it) or of a barrier channel (`READY` rings it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Doorbell {
    /// Of a control queue.
    Cq(CqId),
    /// Of a barrier channel.
    Channel(BchId),
}

impl Doorbell {
    /// Doorbells of a network interface.
    pub const COUNT: usize = NUM_CQ + NUM_BCH;

    /// Every doorbell, in ascending order of their numbers.
    pub const ALL: [Self; Self::COUNT] = {
        let mut all = [Self::Cq(CqId::ALL[0]); Self::COUNT];
        let mut n = 0;
        while n < Self::COUNT {
            if let Some(doorbell) = Self::from_number(n as u8) {
                all[n] = doorbell;
            }
            n += 1;
        }
        all
    };

    /// The doorbell with this number: control queues from 0 on, barrier channels from [`NUM_CQ`]
    /// on.
    pub const fn from_number(number: u8) -> Option<Self> {
        match CqId::new(number) {
            Some(cq) => Some(Self::Cq(cq)),
            None => match BchId::new(number - NUM_CQ as u8) {
                Some(bch) => Some(Self::Channel(bch)),
                None => None,
            },
        }
    }

    /// Its number among the doorbells of its network interface.
    pub const fn number(self) -> u8 {
        match self {
            Self::Cq(cq) => cq.get(),
            Self::Channel(bch) => NUM_CQ as u8 + bch.get(),
        }
    }
}

impl From<CqId> for Doorbell {
    fn from(cq: CqId) -> Self {
        Self::Cq(cq)
    }
}

impl From<BchId> for Doorbell {
    fn from(bch: BchId) -> Self {
        Self::Channel(bch)
    }
}

impl fmt::Display for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cq(cq) => write!(f, "CQ {cq}"),
            Self::Channel(bch) => write!(f, "BCH {bch}"),
        }
    }
}
