//! The register map of BAR0: where each register is and what its fields mean.
//!
//! Offsets, names and bit positions are public facts of the TofuD ICC (BAR0 offset =
//! hardware physical address - 0x4000_0000). A register is 64 bits wide.

use crate::bitfield;
use crate::ids::{BchId, BgId, CqId, Doorbell, TniId};
pub use crate::ids::{KERNEL_CQ, MAX_BG, NUM_BCH, NUM_BG, NUM_CQ, NUM_TNI};
use crate::topology::Port;

/// Link ports of a node.
pub const NUM_PORT: usize = Port::COUNT;

/// Size of BAR0, the register space, in bytes.
pub const BAR0_SIZE: u64 = 256 << 20;
/// Distance in bytes between the register blocks of two TNIs.
pub const TNI_STRIDE: u64 = 0x100_0000;
/// Distance in bytes between the pages of two CQs or two barrier gates.
pub const PAGE_STRIDE: u64 = 0x1_0000;
/// Bytes of a register page that are in use; the rest of the stride is empty.
pub const PAGE_SIZE: u64 = 0x1000;

const CQ_AREA: u64 = 0x00_0000;
const CQS_AREA: u64 = 0x40_0000;
const BGS_AREA: u64 = 0x80_0000;
const TNI_AREA: u64 = 0xc0_0000;
const BCH_AREA: u64 = 0xe0_0000;
const PORT_BASE: u64 = 0x600_0000;
const PORT_STRIDE: u64 = 0x1000;
const XB_BASE: u64 = 0x600_f000;
const TOFU_BASE: u64 = 0x700_0000;

/// Defines the registers of one block: an enum with the offset of each within the block.
macro_rules! registers {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$rmeta:meta])* $reg:ident = $offset:literal, $text:literal ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum $name {
            $( $(#[$rmeta])* $reg = $offset ),*
        }

        impl $name {
            /// Every register of the block, in order of offset.
            pub const ALL: &'static [Self] = &[$(Self::$reg),*];

            /// The register at `offset` bytes from the block's base.
            #[inline]
            pub const fn from_offset(offset: u64) -> Option<Self> {
                match offset {
                    $( $offset => Some(Self::$reg), )*
                    _ => None,
                }
            }

            /// Byte offset from the block's base.
            #[inline]
            pub const fn offset(self) -> u64 {
                self as u64
            }

            /// Public name of the register.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$reg => $text ),*
                }
            }
        }
    };
}

pub(crate) use registers;

registers! {
    /// Control queue page, mappable into a user process.
    pub enum CqReg {
        /// First qword of the direct descriptor register.
        DirectDescriptor0 = 0x00, "TOQ_DIRECT_DESCRIPTOR",
        /// Second qword.
        DirectDescriptor1 = 0x08, "TOQ_DIRECT_DESCRIPTOR1",
        /// Third qword.
        DirectDescriptor2 = 0x10, "TOQ_DIRECT_DESCRIPTOR2",
        /// Fourth qword.
        DirectDescriptor3 = 0x18, "TOQ_DIRECT_DESCRIPTOR3",
        /// Fifth qword: the second descriptor of a two-descriptor command.
        DirectDescriptor4 = 0x20, "TOQ_DIRECT_DESCRIPTOR4",
        /// Sixth qword.
        DirectDescriptor5 = 0x28, "TOQ_DIRECT_DESCRIPTOR5",
        /// Seventh qword.
        DirectDescriptor6 = 0x30, "TOQ_DIRECT_DESCRIPTOR6",
        /// Eighth qword.
        DirectDescriptor7 = 0x38, "TOQ_DIRECT_DESCRIPTOR7",
        /// Doorbell: the TNI fetches transmit order queue entries until it meets a blank one.
        FetchStart = 0x40, "TOQ_FETCH_START",
        /// The number of message receive queue entries that the driver has consumed since the CQ
        /// was enabled. Ours: the device uses the low log2(entries) + 1 bits.
        MrqFullPointer = 0x48, "MRQ_FULL_POINTER",
        /// First qword of the piggyback buffer.
        PiggybackBuffer0 = 0x50, "TOQ_PIGGYBACK_BUFFER0",
        /// Second qword of the piggyback buffer.
        PiggybackBuffer1 = 0x58, "TOQ_PIGGYBACK_BUFFER1",
        /// Third qword of the piggyback buffer.
        PiggybackBuffer2 = 0x60, "TOQ_PIGGYBACK_BUFFER2",
        /// Transmit complete queue entries written since the CQ was enabled.
        TcqNumNotice = 0x68, "TCQ_NUM_NOTICE",
        /// Message receive queue entries written since the CQ was enabled.
        MrqNumNotice = 0x70, "MRQ_NUM_NOTICE",
        /// Payload bytes sent since the CQ was enabled.
        TxPayloadByte = 0x78, "TX_PAYLOAD_BYTE",
        /// Payload bytes received since the CQ was enabled.
        RxPayloadByte = 0x80, "RX_PAYLOAD_BYTE",
    }
}

registers! {
    /// Barrier channel page, mappable into a user process.
    pub enum BchReg {
        /// First qword of the input data.
        Idata0 = 0x800, "IDATA",
        /// Input data.
        Idata1 = 0x808, "IDATA1",
        /// Input data.
        Idata2 = 0x810, "IDATA2",
        /// Input data.
        Idata3 = 0x818, "IDATA3",
        /// Input data.
        Idata4 = 0x820, "IDATA4",
        /// Input data.
        Idata5 = 0x828, "IDATA5",
        /// Input data.
        Idata6 = 0x830, "IDATA6",
        /// Last qword of the input data.
        Idata7 = 0x838, "IDATA7",
        /// Bit 63: the channel can take another operation.
        Ready = 0x840, "READY",
        /// Signals that arrived while the channel was masked.
        IgnoredSignalCount = 0x848, "IGNORED_SIGNAL_COUNT",
    }
}

registers! {
    /// System side of a control queue: for the kernel alone.
    pub enum CqsReg {
        /// State of the queue, see [`CqsStatus`].
        Status = 0x00, "STATUS",
        /// Bit 0 enables the queue.
        Enable = 0x08, "ENABLE",
        /// A write empties the translation cache.
        CacheFlush = 0x10, "CACHE_FLUSH",
        /// Bit 0 stops the fetching of descriptors.
        FetchStop = 0x18, "FETCH_STOP",
        /// Rights and limits of the queue, see [`CqsMode`].
        Mode = 0x20, "MODE",
        /// Group process id: only queues with the same one communicate.
        Gpid = 0x28, "GPID",
        /// Address of the transmit order queue.
        ToqIpa = 0x30, "TOQ_IPA",
        /// Size code of the transmit order queue, see [`crate::queue::queue_entries`].
        ToqSize = 0x38, "TOQ_SIZE",
        /// Address of the transmit complete queue; bit 63 cache injection.
        TcqIpa = 0x40, "TCQ_IPA",
        /// Address of the message receive queue; bit 63 cache injection.
        MrqIpa = 0x48, "MRQ_IPA",
        /// Size code of the message receive queue.
        MrqSize = 0x50, "MRQ_SIZE",
        /// Ours: bit 63 set discards notices instead of writing them.
        MrqMask = 0x58, "MRQ_MASK",
        /// Longest time a transmit complete entry may be held back. Ours: nanoseconds.
        TcqDescriptorCoalescingTimer = 0x60, "TCQ_DESCRIPTOR_COALESCING_TIMER",
        /// Longest time a message receive entry may be held back. Ours: nanoseconds.
        MrqDescriptorCoalescingTimer = 0x68, "MRQ_DESCRIPTOR_COALESCING_TIMER",
        /// Longest time an MRQ interrupt may be held back. Ours: nanoseconds.
        MrqInterruptCoalescingTimer = 0x70, "MRQ_INTERRUPT_COALESCING_TIMER",
        /// Entries after which a held back MRQ interrupt is sent.
        MrqInterruptCoalescingCount = 0x78, "MRQ_INTERRUPT_COALESCING_COUNT",
        /// Direct descriptor commands started since the CQ was enabled.
        ToqDirectSourceCount = 0x80, "TOQ_DIRECT_SOURCE_COUNT",
        /// Descriptors taken from the direct descriptor register since the CQ was enabled.
        ToqDirectDescriptorCount = 0x88, "TOQ_DIRECT_DESCRIPTOR_COUNT",
        /// Bit 0 enables the memory block table.
        MemoryBlockTableEnable = 0x90, "MEMORY_BLOCK_TABLE_ENABLE",
        /// Address of the memory block table.
        MemoryBlockTableIpa = 0x98, "MEMORY_BLOCK_TABLE_IPA",
        /// Entries of the memory block table.
        MemoryBlockTableSize = 0xa0, "MEMORY_BLOCK_TABLE_SIZE",
        /// Bit 0 enables the steering table.
        SteeringTableEnable = 0xa8, "STEERING_TABLE_ENABLE",
        /// Address of the steering table.
        SteeringTableIpa = 0xb0, "STEERING_TABLE_IPA",
        /// Entries of the steering table.
        SteeringTableSize = 0xb8, "STEERING_TABLE_SIZE",
        /// Ours: bit n set keeps notices with id n from requesting an interrupt.
        MrqInterruptMask = 0xc0, "MRQ_INTERRUPT_MASK",
        /// Pending interrupt requests, see [`CqsIrqs`](crate::irq::CqsIrqs).
        Irr = 0xc8, "IRR",
        /// Interrupt mask; a write sets mask bits.
        Imr = 0xd0, "IMR",
        /// A write clears pending requests.
        Irc = 0xd8, "IRC",
        /// A write clears mask bits.
        Imc = 0xe0, "IMC",
        /// Control and level; read and write, without effect here.
        Icl = 0xe8, "ICL",
        /// Ours: address of the word in which the driver requests
        /// [`CqsIrqs::ACKNOWLEDGES`](crate::irq::CqsIrqs::ACKNOWLEDGES) interrupts; 0 for none.
        InterruptArmIpa = 0xf0, "INTERRUPT_ARM_IPA",
    }
}

registers! {
    /// System side of a barrier gate.
    pub enum BgsReg {
        /// Bit 0 enables the gate.
        Enable = 0x00, "ENABLE",
        /// Pending interrupt requests, see [`BgsIrqs`](crate::irq::BgsIrqs).
        Irr = 0x08, "IRR",
        /// Interrupt mask; a write sets mask bits.
        Imr = 0x10, "IMR",
        /// A write clears pending requests.
        Irc = 0x18, "IRC",
        /// A write clears mask bits.
        Imc = 0x20, "IMC",
        /// Control and level.
        Icl = 0x28, "ICL",
        /// Bit 0: enabled.
        State = 0x30, "STATE",
        /// Sender of a signal with another group process id.
        ExceptionInfoGpidUnmatch = 0x38, "EXCEPTION_INFO_GPID_UNMATCH",
        /// Sender of a signal that was not expected.
        ExceptionInfoAddressUnmatch = 0x40, "EXCEPTION_INFO_ADDRESS_UNMATCH",
        /// State of signal buffer A.
        SignalA = 0x48, "SIGNAL_A",
        /// State of signal buffer B.
        SignalB = 0x50, "SIGNAL_B",
        /// Which inputs and outputs are absent.
        SignalMask = 0x58, "SIGNAL_MASK",
        /// Local gates to receive from and send to.
        LocalLink = 0x60, "LOCAL_LINK",
        /// Remote gates to receive from and send to.
        RemoteLink = 0x68, "REMOTE_LINK",
        /// Subnet of the gate.
        SubnetSize = 0x70, "SUBNET_SIZE",
        /// Group process id and barrier sequence number.
        GpidBseq = 0x78, "GPID_BSEQ",
        /// Buffer A, first qword of 15.
        DataA0 = 0x108, "DATA_A0",
        /// Buffer A, last qword.
        DataAe = 0x178, "DATA_AE",
        /// Buffer B, first qword of 15.
        DataB0 = 0x188, "DATA_B0",
        /// Buffer B, last qword.
        DataBe = 0x1f8, "DATA_BE",
        /// Mask of the gate's barrier channel, bit 63.
        BchMask = 0x800, "BCH_MASK",
        /// Bit 63: the channel runs.
        BchMaskStatus = 0x808, "BCH_MASK_STATUS",
        /// Address of the 256-byte notice area.
        BchNoticeIpa = 0x810, "BCH_NOTICE_IPA",
    }
}

registers! {
    /// A network interface as a whole.
    pub enum TniReg {
        /// Pending interrupt requests, see [`TniIrqs`](crate::irq::TniIrqs).
        Irr = 0x08, "IRR",
        /// Interrupt mask; a write sets mask bits.
        Imr = 0x10, "IMR",
        /// A write clears pending requests.
        Irc = 0x18, "IRC",
        /// A write clears mask bits.
        Imc = 0x20, "IMC",
        /// Control and level.
        Icl = 0x28, "ICL",
        /// State of the interface, see [`TniState`].
        State = 0x30, "STATE",
        /// Bit 0 enables the interface.
        Enable = 0x38, "ENABLE",
        /// One bit for each control queue that exists.
        CqPresent = 0x40, "CQ_PRESENT",
        /// The last signal to a gate that is not enabled.
        ExceptionInfoInactiveBg = 0x48, "EXCEPTION_INFO_INACTIVE_BG",
        /// Ours: address of the word in which the driver requests PRQ_WRITE_ACKNOWLEDGE interrupts,
        /// as [`CqsReg::InterruptArmIpa`]; 0 for none.
        PrqInterruptArmPa = 0xf8, "PRQ_INTERRUPT_ARM_PA",
        /// The number of packet receive entries that the driver has consumed since PRQ_PA was
        /// written. Ours: the device uses the low log2(entries) + 1 bits.
        PrqFullPointer = 0x100, "PRQ_FULL_POINTER",
        /// Address of the packet buffer queue. Ours: a write restarts the queue, with the size
        /// that PBQ_SIZE has then; 0 turns it off.
        PbqPa = 0x108, "PBQ_PA",
        /// Size code of the packet buffer queue.
        PbqSize = 0x110, "PBQ_SIZE",
        /// Address of the packet receive queue; bit 63 cache injection. Ours: a write restarts the
        /// queue, with the current size in PRQ_SIZE; 0 turns it off.
        PrqPa = 0x118, "PRQ_PA",
        /// Size code of the packet receive queue.
        PrqSize = 0x120, "PRQ_SIZE",
        /// Ours: bit n set discards packets with the code n, see [`crate::queue::PrqRcode`].
        PrqMask = 0x128, "PRQ_MASK",
        /// Longest time a packet receive entry may be held back. Ours: nanoseconds.
        PrqEntryCoalescingTimer = 0x130, "PRQ_ENTRY_COALESCING_TIMER",
        /// Longest time a PRQ interrupt may be held back. Ours: nanoseconds.
        PrqInterruptCoalescingTimer = 0x138, "PRQ_INTERRUPT_COALESCING_TIMER",
        /// Entries after which a held back PRQ interrupt is sent.
        PrqInterruptCoalescingCount = 0x140, "PRQ_INTERRUPT_COALESCING_COUNT",
        /// Cycles with a TLP to send and sending it.
        SendCount = 0x148, "SEND_COUNT",
        /// Cycles without a TLP to send.
        NoSendCount = 0x150, "NO_SEND_COUNT",
        /// Cycles with a TLP to send and none sent.
        BlockSendCount = 0x158, "BLOCK_SEND_COUNT",
        /// Cycles receiving.
        ReceiveCount = 0x160, "RECEIVE_COUNT",
        /// Cycles not receiving.
        NoReceiveCount = 0x168, "NO_RECEIVE_COUNT",
        /// TLPs sent.
        NumSendTlp = 0x170, "NUM_SEND_TLP",
        /// Bytes of the TLPs sent, in units of 16.
        ByteSendTlp = 0x178, "BYTE_SEND_TLP",
        /// System TLPs sent.
        NumSendSystemTlp = 0x180, "NUM_SEND_SYSTEM_TLP",
        /// TLPs received.
        NumReceiveTlp = 0x188, "NUM_RECEIVE_TLP",
        /// Bytes of the TLPs received, in units of 16.
        ByteReceiveTlp = 0x190, "BYTE_RECEIVE_TLP",
        /// TLPs received that were marked bad on their way.
        NumReceiveNullifiedTlp = 0x198, "NUM_RECEIVE_NULLIFIED_TLP",
        /// Received TLPs of no known kind.
        RxNumUnknownTlp = 0x1a0, "RX_NUM_UNKNOWN_TLP",
        /// Received system TLPs.
        RxNumSystemTlp = 0x1a8, "RX_NUM_SYSTEM_TLP",
        /// Received TLPs that met an exception.
        RxNumExceptionTlp = 0x1b0, "RX_NUM_EXCEPTION_TLP",
        /// Unknown TLPs that found no packet buffer.
        RxNumDiscardUnknownTlp = 0x1b8, "RX_NUM_DISCARD_UNKNOWN_TLP",
        /// System TLPs that found no packet buffer.
        RxNumDiscardSystemTlp = 0x1c0, "RX_NUM_DISCARD_SYSTEM_TLP",
        /// TLPs with an exception that found no packet buffer.
        RxNumDiscardExceptionTlp = 0x1c8, "RX_NUM_DISCARD_EXCEPTION_TLP",
    }
}

registers! {
    /// A link port: counters, all of them read-only.
    pub enum PortReg {
        /// Cycles in which VC 0 had no credit.
        TxVc0ZeroCreditCount = 0x00, "TX_VC0_ZERO_CREDIT_COUNT",
        /// Cycles in which VC 1 had no credit.
        TxVc1ZeroCreditCount = 0x08, "TX_VC1_ZERO_CREDIT_COUNT",
        /// Cycles in which VC 2 had no credit.
        TxVc2ZeroCreditCount = 0x10, "TX_VC2_ZERO_CREDIT_COUNT",
        /// Cycles in which VC 3 had no credit.
        TxVc3ZeroCreditCount = 0x18, "TX_VC3_ZERO_CREDIT_COUNT",
        /// A free running cycle counter.
        FreeRunCount = 0x80, "FREE_RUN_COUNT",
        /// Data link layer packets sent.
        NumSendDllp = 0xc0, "NUM_SEND_DLLP",
        /// TLPs sent.
        NumSendTlp = 0xc8, "NUM_SEND_TLP",
        /// Bytes of the TLPs sent, in units of 16.
        ByteSendTlp = 0xd0, "BYTE_SEND_TLP",
        /// System TLPs sent.
        NumSendSystemTlp = 0xd8, "NUM_SEND_SYSTEM_TLP",
        /// TLPs sent marked bad.
        NumSendNullifiedTlp = 0xe0, "NUM_SEND_NULLIFIED_TLP",
        /// System TLPs discarded instead of sent.
        NumTxDiscardSystemTlp = 0xe8, "NUM_TX_DISCARD_SYSTEM_TLP",
        /// Other TLPs discarded instead of sent.
        NumTxDiscardNormalTlp = 0xf0, "NUM_TX_DISCARD_NORMAL_TLP",
        /// Other TLPs filtered out before sending.
        NumTxFilteredNormalTlp = 0xf8, "NUM_TX_FILTERED_NORMAL_TLP",
        /// TLPs forwarded before they were received in full.
        NumVirtualCutThroughTlp = 0x100, "NUM_VIRTUAL_CUT_THROUGH_TLP",
        /// TLPs that this port marked bad.
        NumGenerateNullifiedTlp = 0x108, "NUM_GENERATE_NULLIFIED_TLP",
        /// Data link layer packets received.
        NumReceiveDllp = 0x110, "NUM_RECEIVE_DLLP",
        /// TLPs received.
        NumReceiveTlp = 0x118, "NUM_RECEIVE_TLP",
        /// Bytes of the TLPs received, in units of 16.
        ByteReceiveTlp = 0x120, "BYTE_RECEIVE_TLP",
        /// System TLPs received.
        NumReceiveSystemTlp = 0x128, "NUM_RECEIVE_SYSTEM_TLP",
        /// TLPs received that were marked bad.
        NumReceiveNullifiedTlp = 0x130, "NUM_RECEIVE_NULLIFIED_TLP",
        /// System TLPs discarded on arrival.
        NumRxDiscardSystemTlp = 0x138, "NUM_RX_DISCARD_SYSTEM_TLP",
        /// Other TLPs discarded on arrival.
        NumRxDiscardNormalTlp = 0x140, "NUM_RX_DISCARD_NORMAL_TLP",
        /// Other TLPs filtered out on arrival.
        NumRxFilteredNormalTlp = 0x158, "NUM_RX_FILTERED_NORMAL_TLP",
        /// TLPs marked bad and discarded on arrival.
        NumRxDiscardNullifiedTlp = 0x160, "NUM_RX_DISCARD_NULLIFIED_TLP",
        /// Frames with a wrong link CRC.
        FrameLcrcErrorCount = 0x170, "FRAME_LCRC_ERROR_COUNT",
        /// Corrected errors of the retransmission buffer.
        TxRetryBufferCeCount = 0x180, "TX_RETRY_BUFFER_CE_COUNT",
        /// Corrected errors of the receive queues.
        RxVcBufferCeCount = 0x188, "RX_VC_BUFFER_CE_COUNT",
        /// Corrected errors of the crossbar.
        XbCeCount = 0x190, "XB_CE_COUNT",
        /// Times the sender waited too long for an ACK or NACK.
        AckNackTimeOutCount = 0x198, "ACK_NACK_TIME_OUT_COUNT",
        /// Frame check errors of the first lane's slices.
        Slice0FcsErrorCount = 0x1a0, "SLICE0_FCS_ERROR_COUNT",
        /// Frame check errors of the second lane's slices.
        Slice1FcsErrorCount = 0x1a8, "SLICE1_FCS_ERROR_COUNT",
    }
}

registers! {
    /// The crossbar's statistics queue (STQ).
    pub enum XbReg {
        /// Bit 0 enables the periodic dump of counters.
        StqEnable = 0x00, "STQ_ENABLE",
        /// Time between two dumps. Ours: nanoseconds.
        StqUpdateInterval = 0x08, "STQ_UPDATE_INTERVAL",
        /// Address of the queue.
        StqPa = 0x10, "STQ_PA",
        /// Size of the queue. Ours: entries of [`crate::queue::STQ_ENTRY_SIZE`] bytes.
        StqSize = 0x18, "STQ_SIZE",
        /// Byte offset in the queue of the next dump.
        StqNextOffset = 0x20, "STQ_NEXT_OFFSET",
    }
}

/// Registers of the TOFU block, which are indexed by TNR, TNI or VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TofuReg {
    /// Coordinates of this node, see [`NodeAddress`].
    NodeAddress,
    /// Settings of the ports.
    PortSetting,
    /// TLP filter of a network router port.
    TdTlpFilter(Port),
    /// Settings of a network router port.
    TdSettings(Port),
    /// Message signalled interrupt base of the network router.
    TnrMsiBase,
    /// Pending interrupt requests of the links, see [`TnrIrqs`](crate::irq::TnrIrqs).
    TnrIrr,
    /// Interrupt mask of the links; a write sets mask bits.
    TnrImr,
    /// A write clears pending requests.
    TnrIrc,
    /// A write clears mask bits.
    TnrImc,
    /// Control and level.
    TnrIcl,
    /// Ours: the generation of the device, see
    /// [`Generation::from_register`](crate::Generation::from_register).
    Generation,
    /// Settings of VM partition `.1` of TNI `.0`.
    TniVms(TniId, u8),
    /// VM partitions of the TNI's control queues.
    TniVmsCq00(TniId),
    /// VM partitions of the TNI's barrier gates 0 to 15.
    TniVmsBg00(TniId),
    /// VM partitions of the TNI's barrier gates 16 to 31.
    TniVmsBg16(TniId),
    /// VM partitions of the TNI's barrier gates 32 to 47.
    TniVmsBg32(TniId),
    /// Message signalled interrupt base of the TNI.
    TniMsiBase(TniId),
}

impl TofuReg {
    /// The register at `offset` bytes from the block's base.
    pub const fn from_offset(offset: u64) -> Option<Self> {
        Some(match offset {
            0x00 => Self::NodeAddress,
            0x08 => Self::PortSetting,
            0x10..=0xaf => {
                let tnr = Port::ALL[((offset - 0x10) / 0x10) as usize];
                match offset % 0x10 {
                    0 => Self::TdTlpFilter(tnr),
                    8 => Self::TdSettings(tnr),
                    _ => return None,
                }
            }
            0xc0 => Self::TnrMsiBase,
            0xc8 => Self::TnrIrr,
            0xd0 => Self::TnrImr,
            0xd8 => Self::TnrIrc,
            0xe0 => Self::TnrImc,
            0xe8 => Self::TnrIcl,
            0xf0 => Self::Generation,
            0x100..=0x6ff => {
                let Some(tni) = TniId::new(((offset - 0x100) / 0x100) as u8) else {
                    return None;
                };
                match offset % 0x100 {
                    o @ 0x00..=0x7f if o % 8 == 0 => Self::TniVms(tni, (o / 8) as u8),
                    0x80 => Self::TniVmsCq00(tni),
                    0xa0 => Self::TniVmsBg00(tni),
                    0xa8 => Self::TniVmsBg16(tni),
                    0xb0 => Self::TniVmsBg32(tni),
                    0xc0 => Self::TniMsiBase(tni),
                    _ => return None,
                }
            }
            _ => return None,
        })
    }

    /// Byte offset from the block's base.
    pub const fn offset(self) -> u64 {
        match self {
            Self::NodeAddress => 0x00,
            Self::PortSetting => 0x08,
            Self::TdTlpFilter(tnr) => 0x10 + tnr as u64 * 0x10,
            Self::TdSettings(tnr) => 0x18 + tnr as u64 * 0x10,
            Self::TnrMsiBase => 0xc0,
            Self::TnrIrr => 0xc8,
            Self::TnrImr => 0xd0,
            Self::TnrIrc => 0xd8,
            Self::TnrImc => 0xe0,
            Self::TnrIcl => 0xe8,
            Self::Generation => 0xf0,
            Self::TniVms(tni, vms) => 0x100 + tni.get() as u64 * 0x100 + vms as u64 * 8,
            Self::TniVmsCq00(tni) => 0x180 + tni.get() as u64 * 0x100,
            Self::TniVmsBg00(tni) => 0x1a0 + tni.get() as u64 * 0x100,
            Self::TniVmsBg16(tni) => 0x1a8 + tni.get() as u64 * 0x100,
            Self::TniVmsBg32(tni) => 0x1b0 + tni.get() as u64 * 0x100,
            Self::TniMsiBase(tni) => 0x1c0 + tni.get() as u64 * 0x100,
        }
    }
}

/// A register of BAR0, with the unit that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// Of a control queue's user page.
    Cq {
        /// Network interface.
        tni: TniId,
        /// Control queue.
        cq: CqId,
        /// Register.
        reg: CqReg,
    },
    /// Of a control queue's system page.
    Cqs {
        /// Network interface.
        tni: TniId,
        /// Control queue.
        cq: CqId,
        /// Register.
        reg: CqsReg,
    },
    /// Of a barrier channel's user page.
    Bch {
        /// Network interface.
        tni: TniId,
        /// Barrier channel.
        bch: BchId,
        /// Register.
        reg: BchReg,
    },
    /// Of a barrier gate's system page.
    Bgs {
        /// Network interface.
        tni: TniId,
        /// Barrier gate, 0 to 47 (TofuD).
        bg: BgId,
        /// Register.
        reg: BgsReg,
    },
    /// One of the 2 x 15 data qwords of a barrier gate.
    BgsData {
        /// Network interface.
        tni: TniId,
        /// Barrier gate, 0 to 47 (TofuD).
        bg: BgId,
        /// Buffer: 0 = A, 1 = B.
        buffer: u8,
        /// Qword, 0 to 14.
        qword: u8,
    },
    /// Of a network interface.
    Tni {
        /// Network interface.
        tni: TniId,
        /// Register.
        reg: TniReg,
    },
    /// Of a link port.
    Port {
        /// Port.
        port: Port,
        /// Register.
        reg: PortReg,
    },
    /// Of the crossbar.
    Xb(XbReg),
    /// Of the node as a whole.
    Tofu(TofuReg),
}

impl Register {
    /// The register at BAR0 offset `offset`, or `None` where no register is.
    ///
    /// Offsets that are not a multiple of 8 belong to no register.
    #[inline]
    pub const fn decode(offset: u64) -> Option<Self> {
        if offset >= PORT_BASE {
            return Self::decode_node(offset);
        }
        let Some(tni) = TniId::new((offset / TNI_STRIDE) as u8) else {
            return None;
        };
        let area = offset % TNI_STRIDE;
        // At most 63: an area has 64 pages.
        let unit = ((area % 0x40_0000) / PAGE_STRIDE) as u8;
        let reg = area % PAGE_STRIDE;
        if area < CQS_AREA {
            match (CqId::new(unit), CqReg::from_offset(reg)) {
                (Some(cq), Some(reg)) => Some(Self::Cq { tni, cq, reg }),
                _ => None,
            }
        } else if area < BGS_AREA {
            match (CqId::new(unit), CqsReg::from_offset(reg)) {
                (Some(cq), Some(reg)) => Some(Self::Cqs { tni, cq, reg }),
                _ => None,
            }
        } else if area < TNI_AREA {
            match BgId::new(unit) {
                Some(bg) => Self::decode_bgs(tni, bg, reg),
                None => None,
            }
        } else if area < BCH_AREA {
            match TniReg::from_offset(area - TNI_AREA) {
                Some(reg) => Some(Self::Tni { tni, reg }),
                None => None,
            }
        } else {
            let unit = ((area - BCH_AREA) / PAGE_STRIDE) as u8;
            match (BchId::new(unit), BchReg::from_offset(reg)) {
                (Some(bch), Some(reg)) => Some(Self::Bch { tni, bch, reg }),
                _ => None,
            }
        }
    }

    /// The control queue whose FETCH_START register is at BAR0 offset `offset`.
    #[inline]
    pub const fn doorbell(offset: u64) -> Option<(TniId, CqId)> {
        let (tni, area) = (offset / TNI_STRIDE, offset % TNI_STRIDE);
        let (cq, reg) = (area / PAGE_STRIDE, area % PAGE_STRIDE);
        if offset >= PORT_BASE || area >= CQS_AREA || reg != CqReg::FetchStart.offset() {
            return None;
        }
        match (TniId::new(tni as u8), CqId::new(cq as u8)) {
            (Some(tni), Some(cq)) => Some((tni, cq)),
            _ => None,
        }
    }

    const fn decode_bgs(tni: TniId, bg: BgId, reg: u64) -> Option<Self> {
        let a = BgsReg::DataA0.offset();
        let b = BgsReg::DataB0.offset();
        if reg >= a && reg <= BgsReg::DataAe.offset() && reg % 8 == 0 {
            return Some(Self::BgsData { tni, bg, buffer: 0, qword: ((reg - a) / 8) as u8 });
        }
        if reg >= b && reg <= BgsReg::DataBe.offset() && reg % 8 == 0 {
            return Some(Self::BgsData { tni, bg, buffer: 1, qword: ((reg - b) / 8) as u8 });
        }
        // Barrier gates above 15 have no barrier channel, so no BCH registers.
        if reg >= BgsReg::BchMask.offset() && bg.channel().is_none() {
            return None;
        }
        match BgsReg::from_offset(reg) {
            Some(reg) => Some(Self::Bgs { tni, bg, reg }),
            None => None,
        }
    }

    const fn decode_node(offset: u64) -> Option<Self> {
        if offset < PORT_BASE + NUM_PORT as u64 * PORT_STRIDE {
            let rel = offset - PORT_BASE;
            match PortReg::from_offset(rel % PORT_STRIDE) {
                Some(reg) => {
                    Some(Self::Port { port: Port::ALL[(rel / PORT_STRIDE) as usize], reg })
                }
                None => None,
            }
        } else if offset >= XB_BASE && offset < XB_BASE + PAGE_SIZE {
            match XbReg::from_offset(offset - XB_BASE) {
                Some(reg) => Some(Self::Xb(reg)),
                None => None,
            }
        } else if offset >= TOFU_BASE && offset < TOFU_BASE + PAGE_SIZE {
            match TofuReg::from_offset(offset - TOFU_BASE) {
                Some(reg) => Some(Self::Tofu(reg)),
                None => None,
            }
        } else {
            None
        }
    }

    /// BAR0 offset of the register.
    #[inline]
    pub const fn offset(self) -> u64 {
        match self {
            Self::Cq { tni, cq, reg } => cq_page(tni, cq) + reg.offset(),
            Self::Cqs { tni, cq, reg } => cqs_page(tni, cq) + reg.offset(),
            Self::Bch { tni, bch, reg } => bch_page(tni, bch) + reg.offset(),
            Self::Bgs { tni, bg, reg } => bgs_page(tni, bg) + reg.offset(),
            Self::BgsData { tni, bg, buffer, qword } => {
                let first = if buffer == 0 { BgsReg::DataA0 } else { BgsReg::DataB0 };
                bgs_page(tni, bg) + first.offset() + qword as u64 * 8
            }
            Self::Tni { tni, reg } => tni_base(tni) + reg.offset(),
            Self::Port { port, reg } => PORT_BASE + port as u64 * PORT_STRIDE + reg.offset(),
            Self::Xb(reg) => XB_BASE + reg.offset(),
            Self::Tofu(reg) => TOFU_BASE + reg.offset(),
        }
    }
}

/// BAR0 offset of a control queue's user page.
#[inline]
pub const fn cq_page(tni: TniId, cq: CqId) -> u64 {
    tni.get() as u64 * TNI_STRIDE + CQ_AREA + cq.get() as u64 * PAGE_STRIDE
}

/// BAR0 offset of a control queue's system page.
#[inline]
pub const fn cqs_page(tni: TniId, cq: CqId) -> u64 {
    tni.get() as u64 * TNI_STRIDE + CQS_AREA + cq.get() as u64 * PAGE_STRIDE
}

/// BAR0 offset of a barrier channel's user page.
#[inline]
pub const fn bch_page(tni: TniId, bch: BchId) -> u64 {
    tni.get() as u64 * TNI_STRIDE + BCH_AREA + bch.get() as u64 * PAGE_STRIDE
}

impl Doorbell {
    /// BAR0 offset of its page.
    pub const fn page(self, tni: TniId) -> u64 {
        match self {
            Self::Cq(cq) => cq_page(tni, cq),
            Self::Channel(bch) => bch_page(tni, bch),
        }
    }
}

/// BAR0 offset of a barrier gate's system page.
#[inline]
pub const fn bgs_page(tni: TniId, bg: BgId) -> u64 {
    tni.get() as u64 * TNI_STRIDE + BGS_AREA + bg.get() as u64 * PAGE_STRIDE
}

/// BAR0 offset of a network interface's own registers.
#[inline]
pub const fn tni_base(tni: TniId) -> u64 {
    tni.get() as u64 * TNI_STRIDE + TNI_AREA
}

/// BAR0 offset of a TOFU register.
#[inline]
pub const fn tofu(reg: TofuReg) -> u64 {
    Register::Tofu(reg).offset()
}

bitfield! {
    /// CQS STATUS.
    pub struct CqsStatus {
        /// Byte offset in the transmit order queue of the next descriptor.
        next_descriptor_offset_units / with_next_descriptor_offset_units: u32 @ 5..=29,
        /// Session offset. Ours: how many descriptors may still be taken in session mode.
        session_offset / with_session_offset: u32 @ 32..=56,
        /// The session offset would have become larger than its field.
        session_offset_overflow / with_session_offset_overflow: bool @ 57..=57,
        /// The session ended with an error.
        session_dead / with_session_dead: bool @ 58..=58,
        /// The queue is enabled.
        cq_enable / with_cq_enable: bool @ 59..=59,
        /// A cache flush is going on.
        cache_flush_busy / with_cache_flush_busy: bool @ 60..=60,
        /// The flip bit that a blank entry has at the next descriptor's place.
        blank_entry_flip_bit / with_blank_entry_flip_bit: bool @ 61..=61,
        /// Fetching has stopped.
        descriptor_fetch_stop / with_descriptor_fetch_stop: bool @ 62..=62,
        /// Processing has stopped.
        descriptor_process_stop / with_descriptor_process_stop: bool @ 63..=63,
    }
}

bitfield! {
    /// CQS MODE: rights of a queue and the subnet with which it may communicate.
    ///
    /// On each of X, Y, Z: `n` = size of the system, `s` = first coordinate, `l` =
    /// length of the partition; length 0 means no limit. See [`subnet_contains`].
    pub struct CqsMode {
        /// Length of the partition on Z.
        lz / with_lz: u8 @ 0..=5,
        /// First Z of the partition.
        sz / with_sz: u8 @ 6..=11,
        /// Z size of the system.
        nz / with_nz: u8 @ 12..=17,
        /// Length of the partition on Y.
        ly / with_ly: u8 @ 18..=23,
        /// First Y of the partition.
        sy / with_sy: u8 @ 24..=29,
        /// Y size of the system.
        ny / with_ny: u8 @ 30..=35,
        /// Length of the partition on X.
        lx / with_lx: u8 @ 36..=41,
        /// First X of the partition.
        sx / with_sx: u8 @ 42..=47,
        /// X size of the system.
        nx / with_nx: u8 @ 48..=53,
        /// Ours: failed commands request an interrupt, even if their descriptors do not.
        failures / with_failures: bool @ 59..=59,
        /// Session mode.
        session / with_session: bool @ 60..=60,
        /// Raw packets of the first kind may be sent.
        trp1_enable / with_trp1_enable: bool @ 61..=61,
        /// Raw packets of the second kind may be sent.
        trp2_enable / with_trp2_enable: bool @ 62..=62,
        /// System packets may be sent.
        system / with_system: bool @ 63..=63,
    }
}

/// The fields of a queue's mode that limit its subnet.
const SUBNET: u64 =
    CqsMode(0).with_nx(!0).with_sx(!0).with_lx(!0).with_ny(!0).with_sy(!0).with_ly(!0).0
        | CqsMode(0).with_nz(!0).with_sz(!0).with_lz(!0).0;

impl CqsMode {
    /// Returns true if a node at (`x`, `y`, `z`) lies in the queue's subnet.
    #[inline]
    pub const fn subnet_allows(self, x: u8, y: u8, z: u8) -> bool {
        // Most queues are not limited at all.
        self.0 & SUBNET == 0 || self.subnet_contains(x, y, z)
    }

    const fn subnet_contains(self, x: u8, y: u8, z: u8) -> bool {
        subnet_contains(self.nx(), self.sx(), self.lx(), x)
            && subnet_contains(self.ny(), self.sy(), self.ly(), y)
            && subnet_contains(self.nz(), self.sz(), self.lz(), z)
    }
}

/// Returns true if coordinate `p` lies in the partition that starts at `s` and is `l` long on a
/// ring of `n`.
///
/// As the public kernel driver checks it, except that a queue whose `n` is 0 as well
/// as its `l` (the reset value) is not limited at all (ours: the driver's rule `p < n`
/// would leave such a queue without any peer).
pub const fn subnet_contains(n: u8, s: u8, l: u8, p: u8) -> bool {
    if l == 0 {
        return n == 0 || p < n;
    }
    let p = p as u16;
    let (n, s, l) = (n as u16, s as u16, l as u16);
    let p = if p < s { p + n } else { p };
    p < s + l
}

bitfield! {
    /// TOFU NODE_ADDRESS.
    pub struct NodeAddress {
        /// C coordinate.
        c / with_c: u8 @ 4..=4,
        /// B coordinate.
        b / with_b: u8 @ 5..=6,
        /// A coordinate.
        a / with_a: u8 @ 7..=7,
        /// Z coordinate.
        z / with_z: u8 @ 8..=12,
        /// Y coordinate.
        y / with_y: u8 @ 13..=17,
        /// X coordinate.
        x / with_x: u8 @ 18..=22,
    }
}

impl NodeAddress {
    /// The register value for a node.
    pub const fn from_coords(n: crate::Coords) -> Self {
        Self(0).with_x(n.x).with_y(n.y).with_z(n.z).with_a(n.a).with_b(n.b).with_c(n.c)
    }

    /// The node's coordinates.
    pub const fn coords(self) -> crate::Coords {
        crate::Coords::new(self.x(), self.y(), self.z(), self.a(), self.b(), self.c())
    }
}

/// TNI STATE, bits 1:0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum TniState {
    /// Not enabled: sends nothing, and what arrives is an error.
    Disable = 0,
    /// At work.
    Normal = 2,
    /// Stopped by an error.
    Error = 3,
}

/// Bit 63 of TCQ_IPA, MRQ_IPA and PRQ_PA: write entries into the processor's cache.
pub const CACHE_INJECTION: u64 = 1 << 63;

/// MRQ_MASK: all notices are discarded (ours). Lower bits discard those of one kind, see
/// [`MrqId::mask_all_but`](crate::queue::MrqId::mask_all_but).
pub const MRQ_MASK_DISCARD: u64 = 1 << 63;
