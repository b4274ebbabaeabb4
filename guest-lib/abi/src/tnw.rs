//! The network processor (NWP) of the torus network TNW: registers, injection windows, packets and
//! status codes.
//!
//! TNW joined the nodes of QPACE and AuroraScience. Its public source is Pivanti, Schifano and
//! Simma, *An FPGA-based Torus Communication Network* (2010), whose sections the items name. There
//! are six links with eight virtual channels each (section 2), packets of 4 + 128 + 4 bytes
//! (section 2.2), injection windows that programs store to (Pput), sends that the device fetches
//! (Nget), and credits (section 2.1, 2.2). Everything else is *ours*: all offsets and formats of
//! registers, the use of a window's offsets, sequence numbers, notification words and status codes.

use crate::bitfield;
use crate::regs::registers;
use crate::topology::Port;

/// Links of a node (section 2): X-, X+, Y-, Y+, Z- and Z+.
pub const LINKS: usize = 6;
/// Virtual channels of a link (section 2).
pub const CHANNELS: usize = 8;
/// Bytes of data of a packet (section 2.2).
pub const PACKET_DATA: usize = 128;
/// Bytes of a packet on a link: header, data and check sequence (section 2.2).
pub const PACKET_SIZE: usize = 4 + PACKET_DATA + 4;
/// The longest message in bytes: the range of the header's offset (ours).
pub const MAX_MESSAGE: u64 = (PACKET_DATA as u64) << 16;

/// Registers of the processor, the links and the channels: 64-bit, not prefetchable. MSI-X is
/// where the first device has it, in [`crate::pci::MSIX_BAR`].
pub const REGISTER_BAR: u8 = 0;
/// Injection windows: 64-bit, prefetchable, to be mapped write-combining (section 2.1, 3).
pub const WINDOW_BAR: u8 = 4;
/// Size of the BAR of registers in bytes.
pub const REGISTER_BAR_SIZE: u64 = 0x4_0000;
/// Size of the BAR of windows in bytes: room for eight links, two of which do not exist.
pub const WINDOW_BAR_SIZE: u64 = 0x20_0000;

/// Bytes of an injection window.
pub const WINDOW_SIZE: u64 = 0x8000;
/// Bytes of a message for which a window has room at a time. Bytes that are stored at this offset
/// or above belong to the last packet of their message.
pub const WINDOW_RING: u64 = WINDOW_SIZE / 2;
/// Packets that a window has places for.
pub const WINDOW_PLACES: usize = WINDOW_RING as usize / PACKET_DATA;
/// Of a window that is shared memory: the mark of the packet at a place of the ring, a [`Mark`].
#[inline]
pub const fn mark_offset(place: usize) -> u64 {
    WINDOW_RING + 8 * (place % WINDOW_PLACES) as u64
}
/// For a window in shared memory: a word that the device sets to 1 if new data must be announced by
/// a write to TX_BELL, and to 0 while it polls. It is on its own cache line.
pub const BELL_OFFSET: u64 = WINDOW_RING + 8 * WINDOW_PLACES as u64;
/// The longest store to a window: a buffer of a processor that combines writes (section 2.1).
pub const MAX_STORE: usize = 64;

/// Credits of a channel that can wait.
pub const CREDIT_QUEUE: usize = 64;
/// Ngets of a channel that can wait.
pub const NGET_QUEUE: usize = 16;
/// Packets that the reception FIFO of a channel holds.
pub const RECEPTION_FIFO: usize = 512;

/// Bytes of a page of registers: that of a link, or that of a channel, which a process can map.
pub const PAGE_SIZE: u64 = 0x1000;
const LINK_AREA: u64 = 0x1000;
const CHANNEL_AREA: u64 = 0x1_0000;

/// MSI-X vectors (ours): one for the notifications of each link, one for [`Errors`].
pub mod vector {
    /// Vectors of the device; those below [`ERROR`] are for the links, in their order.
    pub const COUNT: u16 = 7;
    /// Something was counted in ERRORS that was not there before.
    pub const ERROR: u16 = 6;
}

/// One of the six links of a node, in the order of section 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Link(u8);

impl Link {
    /// All of them.
    pub const ALL: [Self; LINKS] = [Self(0), Self(1), Self(2), Self(3), Self(4), Self(5)];

    /// The link with this number, if there is one.
    #[inline]
    pub const fn new(index: usize) -> Option<Self> {
        if index < LINKS { Some(Self(index as u8)) } else { None }
    }

    /// Its number, 0 to 5.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The port of the topology that it is at.
    pub const fn port(self) -> Port {
        [Port::XMinus, Port::XPlus, Port::YMinus, Port::YPlus, Port::ZMinus, Port::ZPlus]
            [self.index()]
    }

    /// The link at a port. Ports of the axes A, B and C have none.
    pub const fn at(port: Port) -> Option<Self> {
        Self::new((port as usize).wrapping_sub(Port::XMinus as usize))
    }

    /// The link of the neighbour that this one leads to: X+ for X-.
    #[must_use]
    pub const fn opposite(self) -> Self {
        Self(self.0 ^ 1)
    }
}

/// One of the eight virtual channels of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel(u8);

impl Channel {
    /// All of them.
    pub const ALL: [Self; CHANNELS] =
        [Self(0), Self(1), Self(2), Self(3), Self(4), Self(5), Self(6), Self(7)];

    /// The channel with this number, if there is one.
    #[inline]
    pub const fn new(index: usize) -> Option<Self> {
        if index < CHANNELS { Some(Self(index as u8)) } else { None }
    }

    /// Its number, 0 to 7.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

registers! {
    /// Registers of the network processor, at offset 0.
    pub enum NwpReg {
        /// PCI device id, and above it the version of this register map, 1.
        Id = 0x00, "ID",
        /// Place of the node: X in bits 7:0, Y in 15:8, Z in 23:16.
        Coordinates = 0x08, "COORDINATES",
        /// Nodes on X, Y and Z, where COORDINATES has them.
        Shape = 0x10, "SHAPE",
        /// Bit 0 enables the device, bit 1 resets it and reads 0.
        Control = 0x18, "CONTROL",
        /// Links that lead to a neighbour, by number.
        Present = 0x20, "PRESENT",
        /// Errors that have occurred, see [`Errors`]. Writing ones clears.
        Errors = 0x28, "ERRORS",
        /// Dropped stores to windows: to links that do not exist, of invalid size, across the end
        /// of a window, or while the device is disabled.
        StrayStores = 0x30, "STRAY_STORES",
        /// Accesses to registers that are not there or not of 4 or 8 bytes.
        BadAccesses = 0x38, "BAD_ACCESSES",
        /// Abilities of the device, see [`Features`].
        Features = 0x40, "FEATURES",
    }
}

registers! {
    /// Registers of a link: its state and counters, which a reset clears.
    pub enum LinkReg {
        /// See [`LinkStatus`].
        Status = 0x00, "STATUS",
        /// Data packets sent, without those sent again.
        Sent = 0x08, "SENT",
        /// Data packets taken into the reception FIFOs.
        Received = 0x10, "RECEIVED",
        /// Positive feedback sent.
        AcksSent = 0x18, "ACKS_SENT",
        /// Negative feedback sent.
        NacksSent = 0x20, "NACKS_SENT",
        /// Negative feedback received.
        NacksReceived = 0x28, "NACKS_RECEIVED",
        /// RESTART commands sent.
        Restarts = 0x30, "RESTARTS",
        /// Data packets sent again.
        Resent = 0x38, "RESENT",
        /// Data packets and commands with a wrong check sequence.
        CrcErrors = 0x40, "CRC_ERRORS",
        /// Data packets that were not the next one.
        SequenceErrors = 0x48, "SEQUENCE_ERRORS",
        /// Data packets discarded while RESTART was awaited, or that had come before.
        Discarded = 0x50, "DISCARDED",
        /// Times that no feedback came.
        Timeouts = 0x58, "TIMEOUTS",
        /// Times that a channel had to wait for room in the neighbour's reception FIFO.
        Stalls = 0x60, "STALLS",
        /// Times that the neighbour began a new life.
        Renewals = 0x68, "RENEWALS",
    }
}

/// Gives each counter of a link a field.
macro_rules! link_counters {
    ($($field:ident = $reg:ident,)*) => {
        /// The counters of a link: its registers without [`LinkReg::Status`]. `struct tnwCounters`
        /// of `tnw.h` is the same for C programs.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct LinkCounters {
            $(#[doc = concat!("[`LinkReg::", stringify!($reg), "`]")] pub $field: u64,)*
        }

        impl LinkCounters {
            /// The value that `read` reads.
            pub fn read(read: impl Fn(LinkReg) -> u64) -> Self {
                Self { $($field: read(LinkReg::$reg),)* }
            }

            /// The value of a register, if it is a counter.
            pub const fn get(&self, reg: LinkReg) -> Option<u64> {
                match reg {
                    LinkReg::Status => None,
                    $(LinkReg::$reg => Some(self.$field),)*
                }
            }
        }
    };
}

link_counters! {
    sent = Sent,
    received = Received,
    acks_sent = AcksSent,
    nacks_sent = NacksSent,
    nacks_received = NacksReceived,
    restarts = Restarts,
    resent = Resent,
    crc_errors = CrcErrors,
    sequence_errors = SequenceErrors,
    discarded = Discarded,
    timeouts = Timeouts,
    stalls = Stalls,
    renewals = Renewals,
}

registers! {
    /// Page of a virtual channel of a link, mappable into a user process.
    pub enum ChannelReg {
        /// Address of the memory that the next credit is for.
        CreditAddress = 0x00, "CREDIT_ADDRESS",
        /// Its length in bytes, 1 to [`MAX_MESSAGE`].
        CreditLength = 0x08, "CREDIT_LENGTH",
        /// Address of its notification word, a multiple of 8.
        CreditNotify = 0x10, "CREDIT_NOTIFY",
        /// Posts the credit, see [`Start`].
        CreditStart = 0x18, "CREDIT_START",
        /// Address of the message that the next Nget sends.
        NgetAddress = 0x20, "NGET_ADDRESS",
        /// Its length in bytes, 1 to [`MAX_MESSAGE`].
        NgetLength = 0x28, "NGET_LENGTH",
        /// Address of its notification word, a multiple of 8.
        NgetNotify = 0x30, "NGET_NOTIFY",
        /// Posts the Nget, see [`Start`].
        NgetStart = 0x38, "NGET_START",
        /// Bytes of the window's ring that have left it since the reset. A program may store as
        /// far as [`WINDOW_RING`] beyond this.
        TxHead = 0x40, "TX_HEAD",
        /// Bytes of the ring up to which everything has been stored since the reset.
        TxTail = 0x48, "TX_TAIL",
        /// Address of a word to which TX_HEAD is written whenever it moves; 0 for none.
        TxReport = 0x50, "TX_REPORT",
        /// Cancels waiting requests, see [`Cancel`].
        Cancel = 0x58, "CANCEL",
        /// Packets in the reception FIFO.
        RxPackets = 0x60, "RX_PACKETS",
        /// Credits that wait, the one in use among them.
        Credits = 0x68, "CREDITS",
        /// Ngets that wait, the one in use among them.
        Ngets = 0x70, "NGETS",
        /// Messages whose last packet was sent.
        MessagesSent = 0x78, "MESSAGES_SENT",
        /// Messages whose last packet was moved to memory, or dropped because the memory could not
        /// be written.
        MessagesReceived = 0x80, "MESSAGES_RECEIVED",
        /// Stores to bytes of the ring that had been stored already. They were dropped.
        Overlaps = 0x88, "OVERLAPS",
        /// Packets of messages whose beginning was lost in a reset. They were dropped.
        Orphans = 0x90, "ORPHANS",
        /// Credits and Ngets that were refused.
        Refused = 0x98, "REFUSED",
        /// The kind of window, see [`Mode`].
        TxMode = 0xa0, "TX_MODE",
        /// Of a window that is shared memory: written when something is new in it and the device
        /// does not poll. Reads 0.
        TxBell = 0xa8, "TX_BELL",
    }
}

/// A register of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// Of the network processor.
    Nwp(NwpReg),
    /// Of a link.
    Link(Link, LinkReg),
    /// Of a channel.
    Channel(Link, Channel, ChannelReg),
}

impl Register {
    /// Its offset in [`REGISTER_BAR`].
    #[inline]
    pub const fn offset(self) -> u64 {
        match self {
            Self::Nwp(reg) => reg.offset(),
            Self::Link(link, reg) => LINK_AREA + PAGE_SIZE * link.index() as u64 + reg.offset(),
            Self::Channel(link, channel, reg) => channel_page(link, channel) + reg.offset(),
        }
    }

    /// The register at an offset, if there is one.
    #[inline]
    pub fn decode(offset: u64) -> Option<Self> {
        let (page, at) = (offset / PAGE_SIZE, offset % PAGE_SIZE);
        if page == 0 {
            return NwpReg::from_offset(at).map(Self::Nwp);
        }
        if let Some(place) = page.checked_sub(CHANNEL_AREA / PAGE_SIZE) {
            let place = usize::try_from(place).ok()?;
            let link = Link::new(place / CHANNELS)?;
            let channel = Channel::new(place % CHANNELS)?;
            return ChannelReg::from_offset(at).map(|reg| Self::Channel(link, channel, reg));
        }
        let link = Link::new(usize::try_from(page - LINK_AREA / PAGE_SIZE).ok()?)?;
        LinkReg::from_offset(at).map(|reg| Self::Link(link, reg))
    }
}

/// Offset of a channel's page in [`REGISTER_BAR`].
#[inline]
pub const fn channel_page(link: Link, channel: Channel) -> u64 {
    CHANNEL_AREA + PAGE_SIZE * (link.index() * CHANNELS + channel.index()) as u64
}

/// Offset of a channel's injection window in [`WINDOW_BAR`].
#[inline]
pub const fn window(link: Link, channel: Channel) -> u64 {
    WINDOW_SIZE * (link.index() * CHANNELS + channel.index()) as u64
}

/// The target of a store to [`WINDOW_BAR`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPlace {
    /// The link that is sent over.
    pub link: Link,
    /// The channel that is sent on.
    pub channel: Channel,
    /// Offset in the channel's ring of [`WINDOW_RING`] bytes.
    pub at: u64,
    /// True if the packet is the last one of its message.
    pub last: bool,
}

impl WindowPlace {
    /// The place at an offset. `None` if the link does not exist.
    #[inline]
    pub const fn decode(offset: u64) -> Option<Self> {
        let place = (offset / WINDOW_SIZE) as usize;
        let (Some(link), Some(channel)) =
            (Link::new(place / CHANNELS), Channel::new(place % CHANNELS))
        else {
            return None;
        };
        let at = offset % WINDOW_SIZE;
        Some(Self { link, channel, at: at % WINDOW_RING, last: at >= WINDOW_RING })
    }

    /// Its offset.
    #[inline]
    pub const fn offset(self) -> u64 {
        let half = if self.last { WINDOW_RING } else { 0 };
        window(self.link, self.channel) + half + self.at
    }
}

bitfield! {
    /// CONTROL.
    pub struct Control {
        /// The device sends, receives and takes stores.
        enable / with_enable: bool @ 0..=0,
        /// Resets the device.
        reset / with_reset: bool @ 1..=1,
    }
}

bitfield! {
    /// FEATURES.
    pub struct Features {
        /// Windows can be shared memory.
        shared_windows / with_shared_windows: bool @ 0..=0,
        /// They can be nothing else: stores to other windows have no effect.
        only_shared_windows / with_only_shared_windows: bool @ 1..=1,
    }
}

bitfield! {
    /// TX_MODE. A change empties the window, as [`Cancel`] does.
    pub struct Mode {
        /// The window is memory that the device polls, not registers that take stores.
        shared / with_shared: bool @ 0..=0,
    }
}

bitfield! {
    /// Of a window that is shared memory: the mark that is stored after all bytes of a packet. The
    /// word is written in one access, and is 0 at first.
    pub struct Mark {
        /// The packet is the last one of its message.
        last / with_last: bool @ 0..=0,
        /// Which packet it is: the first one after the reset has the number 1.
        number / with_number: u64 @ 1..=63,
    }
}

bitfield! {
    /// ERRORS.
    pub struct Errors {
        /// STRAY_STORES has grown.
        stray_store / with_stray_store: bool @ 0..=0,
        /// BAD_ACCESSES has grown.
        bad_access / with_bad_access: bool @ 1..=1,
        /// A credit or Nget was refused and its notification word is no memory either.
        refused / with_refused: bool @ 2..=2,
        /// OVERLAPS of a channel has grown.
        overlap / with_overlap: bool @ 3..=3,
        /// A word that TX_REPORT names is no memory: TX_REPORT is 0 now.
        report / with_report: bool @ 4..=4,
        /// ORPHANS of a channel has grown.
        orphan / with_orphan: bool @ 5..=5,
    }
}

bitfield! {
    /// STATUS of a link.
    pub struct LinkStatus {
        /// It leads to a neighbour.
        present / with_present: bool @ 0..=0,
        /// The neighbour has answered since the reset.
        answered / with_answered: bool @ 1..=1,
        /// Packets are being sent again.
        resending / with_resending: bool @ 2..=2,
        /// No feedback has come for so long that the neighbour may be gone. Packets wait.
        silent / with_silent: bool @ 3..=3,
        /// Received packets are discarded until RESTART.
        discarding / with_discarding: bool @ 4..=4,
        /// Packets in txBuffer.
        unacknowledged / with_unacknowledged: u16 @ 16..=31,
    }
}

bitfield! {
    /// The value that is written to CREDIT_START and NGET_START.
    pub struct Start {
        /// Comes back in the notification word.
        tag / with_tag: u32 @ 0..=22,
        /// The notification is followed by an interrupt.
        interrupt / with_interrupt: bool @ 63..=63,
    }
}

bitfield! {
    /// The value that is written to CANCEL. A message that has begun ends with a packet of zeros.
    pub struct Cancel {
        /// All credits and Ngets end, including those in use. When the write is over the device no
        /// longer touches their memory.
        requests / with_requests: bool @ 0..=0,
        /// Discards data that was stored to the window and not sent. TX_HEAD becomes TX_TAIL.
        window / with_window: bool @ 1..=1,
    }
}

bitfield! {
    /// A notification word: what the device writes when a credit or an Nget is done. The poster
    /// writes 0 there first.
    pub struct Notification {
        /// Bytes moved.
        length / with_length: u32 @ 0..=31,
        /// See [`Status`].
        status / with_status: u8 @ 32..=39,
        /// That of [`Start`].
        tag / with_tag: u32 @ 40..=62,
        /// Set in every notification.
        done / with_done: bool @ 63..=63,
    }
}

bitfield! {
    /// The header of a packet, whose low 32 bits are sent. Channel and offset are section 2.2's;
    /// the sequence number and the mark of the last packet are ours.
    pub struct Header {
        /// Virtual channel.
        channel / with_channel: u8 @ 0..=2,
        /// The last packet of its message.
        last / with_last: bool @ 3..=3,
        /// Number of the packet on its link, modulo [`SEQUENCES`].
        sequence / with_sequence: u16 @ 4..=15,
        /// Place of the data in the message, in units of [`PACKET_DATA`].
        offset / with_offset: u16 @ 16..=31,
    }
}

/// Sequence numbers of packets.
pub const SEQUENCES: u16 = 1 << 12;

/// The result of a credit or Nget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// All bytes were moved.
    Ok = 0,
    /// The message was longer than the credit: the rest of it was thrown away.
    Truncated = 1,
    /// The message was shorter than the credit.
    Short = 2,
    /// The length is 0 or above [`MAX_MESSAGE`].
    BadLength = 3,
    /// The memory is not there, or not any more.
    BadAddress = 4,
    /// As many wait as the channel has room for.
    Full = 5,
    /// CANCEL was written before it was done.
    Cancelled = 6,
    /// The neighbour was reset in the midst of the message.
    Cut = 7,
    /// Nothing is at the other end of the link.
    NoLink = 8,
    /// The device is disabled.
    Disabled = 9,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Ok,
        Self::Truncated,
        Self::Short,
        Self::BadLength,
        Self::BadAddress,
        Self::Full,
        Self::Cancelled,
        Self::Cut,
        Self::NoLink,
        Self::Disabled,
    ];

    /// The status with this number, if there is one.
    pub const fn from_raw(raw: u8) -> Option<Self> {
        if (raw as usize) < Self::ALL.len() { Some(Self::ALL[raw as usize]) } else { None }
    }

    /// Its meaning for a message.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Ok => "done",
            Self::Truncated => "the message was longer than the credit",
            Self::Short => "the message was shorter than the credit",
            Self::BadLength => "a length of 0 or more than 8 MiB",
            Self::BadAddress => "no memory at the address",
            Self::Full => "too many wait",
            Self::Cancelled => "cancelled",
            Self::Cut => "the neighbour was reset in the midst of the message",
            Self::NoLink => "no link",
            Self::Disabled => "the device is disabled",
        }
    }
}

impl core::fmt::Display for Status {
    /// [`Status::text`].
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.text())
    }
}

/// Packets that `bytes` bytes of a message need: the last one is filled up with zeros.
#[inline]
pub const fn packets(bytes: u64) -> u64 {
    bytes.div_ceil(PACKET_DATA as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Register> {
        let nwp = NwpReg::ALL.iter().map(|reg| Register::Nwp(*reg));
        let links = Link::ALL
            .into_iter()
            .flat_map(|link| LinkReg::ALL.iter().map(move |reg| Register::Link(link, *reg)));
        let channels = Link::ALL.into_iter().flat_map(|link| {
            Channel::ALL.into_iter().flat_map(move |channel| {
                ChannelReg::ALL.iter().map(move |reg| Register::Channel(link, channel, *reg))
            })
        });
        nwp.chain(links).chain(channels)
    }

    #[test]
    fn registers_have_distinct_bar_offsets() {
        let mut last = None;
        for register in all() {
            let offset = register.offset();
            assert_eq!(Register::decode(offset), Some(register));
            assert!(offset.is_multiple_of(8) && offset < REGISTER_BAR_SIZE);
            assert!(last < Some(offset), "{register:?}");
            last = Some(offset);
        }
        assert_eq!(Register::decode(4), None);
        assert_eq!(Register::decode(0x7000), None, "there is no seventh link");
        assert_eq!(Register::decode(REGISTER_BAR_SIZE), None);
        assert_eq!(Register::decode(u64::MAX), None);
    }

    #[test]
    fn windows_lie_side_by_side() {
        for link in Link::ALL {
            for channel in Channel::ALL {
                for (at, last) in [(0, false), (WINDOW_RING - 1, true)] {
                    let place = WindowPlace { link, channel, at, last };
                    assert!(place.offset() < WINDOW_BAR_SIZE);
                    assert_eq!(WindowPlace::decode(place.offset()), Some(place));
                }
            }
        }
        let end = WINDOW_SIZE * (LINKS * CHANNELS) as u64;
        assert_eq!(WindowPlace::decode(end), None);
        assert_eq!(WindowPlace::decode(u64::MAX), None);
    }

    #[test]
    fn links_are_ports() {
        for link in Link::ALL {
            assert_eq!(Link::at(link.port()), Some(link));
            assert_eq!(link.opposite().port(), link.port().opposite());
        }
        assert_eq!(Link::at(Port::A), None);
        assert_eq!(Link::at(Port::BPlus), None);
    }

    #[test]
    fn statuses_have_their_numbers() {
        for (number, status) in (0..).zip(Status::ALL) {
            assert_eq!(status as u8, number);
            assert_eq!(Status::from_raw(number), Some(status));
        }
        assert_eq!(Status::from_raw(10), None);
    }

    #[test]
    fn packets_are_filled_up() {
        assert_eq!([0, 1, 128, 129, MAX_MESSAGE].map(packets), [0, 1, 1, 2, 1 << 16]);
    }
}
