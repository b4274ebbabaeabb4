//! Result codes of TCQ and MRQ entries.
//!
//! Two codes are public: 0, success, and 0x10, steering table disabled. All others are ours: each
//! failure has its own code, so that a driver can distinguish them. A command that fails at its
//! initiator has the code in its TCQ entry and, unless it was refused before anything was sent, in
//! its MRQ entry. A command that its target refuses, or that gets lost, has the code only in the
//! MRQ entry: the TCQ entry of a command that was sent reports success. Raw and system packets have
//! no MRQ entry, so their TCQ entry reports a loss. Codes 0x10 to 0x2f are faults of an address;
//! 0x20 is added when it is the remote one ([`Rcode::remote`]), except for
//! [`Rcode::STEERING_TABLE_DISABLED`], which is the same for both.

use core::fmt;

/// A result code. Hardware may answer with one that has no name here.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Rcode(u8);

/// Defines the codes together with their texts.
macro_rules! rcodes {
    ($( $(#[$meta:meta])* $name:ident = $code:literal, $text:literal; )*) => {
        impl Rcode {
            $( $(#[$meta])* pub const $name: Self = Self($code); )*

            /// Every code with its name and a short text; for faults of an address, the code of the
            /// local one.
            pub const ALL: &[(Self, &str, &str)] = &[$((Self($code), stringify!($name), $text)),*];
        }
    };
}

rcodes! {
    /// The command did what it should.
    SUCCESS = 0x00, "success";
    /// No such command.
    UNDEFINED_COMMAND = 0x01, "undefined command";
    /// The command needs a right that CQS MODE does not give.
    NOT_PERMITTED = 0x02, "command not permitted for this queue";
    /// The length is not one that the command can have.
    BAD_LENGTH = 0x03, "length not allowed";
    /// The mtu is not one that the command can have.
    BAD_MTU = 0x04, "mtu not allowed";
    /// The target's coordinates or interface do not exist.
    NO_SUCH_NODE = 0x05, "no such node or interface";
    /// The path's coordinates do not exist.
    NO_SUCH_PATH = 0x06, "no such path";
    /// The target is not in the queue's subnet.
    SUBNET = 0x07, "target outside the queue's subnet";
    /// No such operator.
    BAD_OPERATOR = 0x08, "undefined operator";
    /// The command is one that controllers of this generation do not have.
    UNSUPPORTED_COMMAND = 0x0b, "command not supported";
    /// STEERING_TABLE_ENABLE is 0, at either end.
    STEERING_TABLE_DISABLED = 0x10, "steering table disabled";
    /// The STag is beyond the steering table.
    STAG_RANGE = 0x11, "STag beyond the steering table";
    /// The steering table could not be read.
    STEERING_UNREADABLE = 0x12, "steering table entry unreadable";
    /// The steering entry is disabled.
    STAG_DISABLED = 0x13, "STag disabled";
    /// Offset and length are not within the STag.
    OFFSET_RANGE = 0x14, "offset beyond the STag";
    /// The STag is read-only.
    READ_ONLY = 0x15, "write to a read-only STag";
    /// MEMORY_BLOCK_TABLE_ENABLE is 0.
    MEMORY_BLOCK_TABLE_DISABLED = 0x16, "memory block table disabled";
    /// The memory block id is beyond the table.
    MEMORY_BLOCK_RANGE = 0x17, "memory block beyond the table";
    /// The memory block table could not be read.
    MEMORY_BLOCK_UNREADABLE = 0x18, "memory block entry unreadable";
    /// The memory block entry is disabled.
    MEMORY_BLOCK_DISABLED = 0x19, "memory block disabled";
    /// The page size code is reserved.
    BAD_PAGE_SIZE = 0x1a, "reserved page size";
    /// The page is beyond the memory block.
    PAGE_RANGE = 0x1b, "page beyond the memory block";
    /// The page table could not be read.
    PAGE_UNREADABLE = 0x1c, "page table entry unreadable";
    /// The page table entry is disabled.
    PAGE_DISABLED = 0x1d, "page disabled";
    /// Memory could not be read or written at the translated address.
    PAYLOAD_ACCESS = 0x1e, "payload not accessible";
    /// An atomic command's address is not a multiple of its length.
    ALIGNMENT = 0x1f, "address not aligned";
    /// The target interface is not enabled.
    TNI_DISABLED = 0x40, "target TNI disabled";
    /// The target queue does not exist.
    NO_SUCH_CQ = 0x41, "no such target queue";
    /// The target queue is not enabled.
    CQ_DISABLED = 0x42, "target queue disabled";
    /// The group process ids differ.
    GPID = 0x43, "group process ids differ";
    /// The initiator is not in the target queue's subnet.
    REMOTE_SUBNET = 0x44, "initiator outside the target queue's subnet";
    /// Bus mastering is off at the target.
    TARGET_DMA_OFF = 0x45, "bus mastering off at the target";
    /// The target could not make sense of the TLP.
    ILLEGAL_TLP = 0x46, "illegal TLP";
    /// A link on the way is down.
    LINK_DOWN = 0x50, "link down";
    /// The answer timed out.
    TIMEOUT = 0x51, "no answer in time";
}

impl Rcode {
    /// Added to a code of 0x11 to 0x1f when the address at fault is the remote one.
    const REMOTE: u8 = 0x20;

    /// The code with this number.
    #[inline]
    pub const fn new(raw: u8) -> Self {
        Self(raw)
    }

    /// The number, as in queue entries.
    #[inline]
    pub const fn raw(self) -> u8 {
        self.0
    }

    /// Returns true if the command did what it should.
    #[inline]
    pub const fn is_success(self) -> bool {
        self.0 == Self::SUCCESS.0
    }

    /// The same fault at the target's address; [`Rcode::STEERING_TABLE_DISABLED`] and codes that
    /// concern no address stay as they are.
    #[must_use]
    pub const fn remote(self) -> Self {
        if self.0 > 0x10 && self.0 <= 0x1f { Self(self.0 + Self::REMOTE) } else { self }
    }

    /// The same fault as the owner of the address sees it: the inverse of [`Rcode::remote`].
    #[must_use]
    pub const fn local(self) -> Self {
        if self.is_remote_address() { Self(self.0 - Self::REMOTE) } else { self }
    }

    /// Returns true if the code reports an address at fault at the target.
    pub const fn is_remote_address(self) -> bool {
        self.0 > 0x10 + Self::REMOTE && self.0 <= 0x1f + Self::REMOTE
    }

    /// Returns true if this code in a TCQ entry says that the command was refused before anything
    /// was sent. Then it has no notice.
    pub const fn is_refused_unsent(self) -> bool {
        !self.is_success() && self.0 < Self::STEERING_TABLE_DISABLED.0
    }

    /// Returns true if the code reports a fault of the command or memory on the initiator's side.
    ///
    /// [`Rcode::STEERING_TABLE_DISABLED`] counts as local, although the code alone is ambiguous.
    pub const fn is_local(self) -> bool {
        !self.is_success() && self.0 <= 0x1f
    }

    /// Name and text of the code, at whichever end.
    fn known(self) -> Option<(&'static str, &'static str)> {
        let base = self.local();
        Self::ALL.iter().find(|(code, ..)| *code == base).map(|(_, name, text)| (*name, *text))
    }

    /// A short text for the code.
    pub fn describe(self) -> &'static str {
        self.known().map_or("unknown result code", |(_, text)| text)
    }
}

impl From<u8> for Rcode {
    fn from(raw: u8) -> Self {
        Self(raw)
    }
}

impl From<Rcode> for u8 {
    fn from(code: Rcode) -> u8 {
        code.0
    }
}

impl fmt::Debug for Rcode {
    /// `0x14 OFFSET_RANGE`, `0x34 OFFSET_RANGE remote`, `0xff`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}", self.0)?;
        match self.known() {
            Some((name, _)) if self.is_remote_address() => write!(f, " {name} remote"),
            Some((name, _)) => write!(f, " {name}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Rcode {
    /// The text of [`Rcode::describe`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.describe())
    }
}

impl fmt::LowerHex for Rcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}
