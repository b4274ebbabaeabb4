//! The table of rules.

use std::fmt;

/// The source of a rule, as in the driver developer's guide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A public fact.
    Public,
    /// Inferred from public names or from what public drivers do.
    Inferred,
    /// A choice of this project.
    Ours,
}

impl Source {
    /// The letter that the guide marks it with.
    pub const fn letter(self) -> char {
        match self {
            Self::Public => 'P',
            Self::Inferred => 'I',
            Self::Ours => 'O',
        }
    }
}

/// The kinds of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The Tofu interconnect controller.
    Tofu,
    /// The network processor of TNW.
    Tnw,
}

/// Defines an enum that lists its values.
macro_rules! listed {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$value_meta:meta])* $value:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$value_meta])* $value,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$value),*];
        }
    };
}

listed! {
    /// Places in a device that a driver passes only if it keeps the rules that name them.
    pub enum Point {
        /// A register was read.
        Read,
        /// A register was written, other than by a doorbell.
        Write,
        /// FETCH_START was written, or a direct descriptor is complete.
        Doorbell,
        /// A control queue was enabled.
        QueueEnabled,
        /// A register that is fixed while its queue is enabled was written while it was not.
        QueueSetUp,
        /// STATUS of a control queue was read after the queue was disabled.
        QueueStopped,
        /// A direct descriptor was taken.
        Direct,
        /// A descriptor without a message was carried out: NOP, WRITE_PIGGYBACK_BUFFER.
        Local,
        /// A command with a message has ended with success.
        Ended,
        /// A command with a message has passed all checks of its descriptor, and failed later.
        Failed,
        /// An atomic command has changed memory here.
        Atomic,
        /// An address was translated.
        Translated,
        /// A notice was written.
        Notice,
        /// The word in which a driver requests interrupts was read.
        Asked,
        /// A raw or system packet was sent.
        PacketSent,
        /// A packet queue was set up.
        PacketQueue,
        /// A packet was written to a buffer.
        PacketTaken,
        /// A barrier gate was enabled.
        GateEnabled,
        /// A register of a gate was written while the gate was not enabled.
        GateSetUp,
        /// A round was begun.
        Round,
        /// A signal has arrived at an enabled gate.
        Signal,
        /// The notice of a round was written.
        RoundNotice,
        /// Statistics were dumped.
        Dump,
        /// TNW: a credit or Nget was accepted.
        Posted,
        /// TNW: a notification was written.
        Notified,
        /// TNW: bytes were stored to a window.
        Stored,
        /// TNW: TX_HEAD was reported.
        Reported,
    }
}

/// A row of the table.
struct Row {
    rule: Rule,
    id: &'static str,
    source: Source,
    kept_at: &'static [Point],
    says: &'static str,
}

macro_rules! rules {
    ($($name:ident $id:literal $source:ident [$($point:ident)*] $says:literal;)*) => {
        /// A rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule { $(#[doc = $says] $name,)* }

        impl Rule {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }

        const ROWS: &[Row] = &[$(Row {
            rule: Rule::$name,
            id: $id,
            source: Source::$source,
            kept_at: &[$(Point::$point),*],
            says: $says,
        }),*];
    };
}

rules! {
    AccessSize "T-REG-001" Ours [Read Write Doorbell]
        "An access to a register has 4 or 8 bytes, at a multiple of as many.";
    AccessPlace "T-REG-002" Ours [Read Write Doorbell]
        "Accesses are to offsets where this generation has a register.";
    ReadOnly "T-REG-003" Public [Write]
        "Read-only registers are not written.";

    EnableMastering "T-CQ-001" Ours [QueueEnabled]
        "Bus Master Enable is set before a control queue is enabled.";
    QueueSize "T-CQ-002" Public [QueueEnabled]
        "TOQ_SIZE and MRQ_SIZE are 0 to 5.";
    QueueAlignment "T-CQ-003" Ours [QueueEnabled]
        "TOQ_IPA and MRQ_IPA are multiples of 32, and TCQ_IPA is one of 8.";
    SessionMode "T-CQ-004" Ours [QueueEnabled]
        "MODE.SESSION is set only on a generation that has session mode.";
    QueueRegisters "T-CQ-005" Ours [QueueSetUp]
        "Addresses and sizes of the rings change only while the queue is disabled.";
    DoorbellEnabled "T-CQ-006" Ours [Doorbell]
        "FETCH_START and direct descriptors are written only while the queue is enabled.";
    DoorbellValue "T-CQ-007" Public [Doorbell]
        "FETCH_START is written with 1 only.";
    QueueStops "T-CQ-008" Ours [QueueStopped]
        "STATUS is read after a queue was disabled, before it is enabled again or Bus Master \
         Enable is cleared.";
    MasteringLast "T-CQ-009" Ours [QueueStopped]
        "Queues are disabled before Bus Master Enable is cleared.";

    ToqMemory "T-TOQ-001" Public [Local Ended Failed PacketSent]
        "The TOQ is memory that the device can read and write.";
    SourceType "T-TOQ-002" Ours [Local Ended Failed PacketSent]
        "source_type is 0 in the TOQ, and 1 in direct descriptor registers and their placeholders.";
    DirectWaits "T-TOQ-003" Ours [Direct]
        "A direct descriptor is written only when the one before was taken.";
    TcqMemory "T-TCQ-001" Public [Local Ended PacketSent]
        "The TCQ is memory that the device can write.";
    TcqBlank "T-TCQ-002" Public [QueueEnabled]
        "No entry of the TCQ is valid when its queue is enabled.";

    CommandCode "T-CMD-001" Public [Local Ended Failed PacketSent]
        "The command code of a descriptor exists.";
    CommandHere "T-CMD-002" Ours [Local Ended Failed PacketSent]
        "The generation has the command.";
    Mtu "T-CMD-003" Public [Ended Failed]
        "The mtu is at most 240, which is 1920 bytes.";
    Length "T-CMD-004" Public [Ended Failed PacketSent]
        "Piggyback data has at most 32 bytes, an atomic command 4 or 8, and a frame a size that \
         exists.";
    Operator "T-CMD-005" Public [Atomic]
        "The operator of an atomic command is 0 to 5.";
    TargetInterface "T-CMD-006" Public [Ended Failed PacketSent]
        "The target TNI or the port of a descriptor exists.";
    OwnSubnet "T-CMD-007" Public [Ended Failed]
        "The target lies in the subnet of the sending queue.";
    PacketMode "T-CMD-008" Public [PacketSent]
        "Packets are sent only with the bits of MODE that they need.";
    TargetNode "T-CMD-009" Public [Ended]
        "The target is a node of the machine.";
    TargetPath "T-CMD-010" Public [Ended]
        "The path of a command exists in the machine.";

    RemoteMastering "T-RMT-001" Ours [Ended]
        "Commands go to nodes whose device has Bus Master Enable set.";
    RemoteInterface "T-RMT-002" Ours [Ended]
        "Commands go to TNIs that are enabled.";
    RemoteQueue "T-RMT-003" Public [Ended]
        "The remote control queue exists.";
    RemoteEnabled "T-RMT-004" Public [Ended]
        "Commands go to control queues that are enabled.";
    RemoteGroup "T-RMT-005" Public [Ended]
        "Both queues of a command have the same GPID.";
    RemoteSubnet "T-RMT-006" Public [Ended]
        "The initiator lies in the subnet of the target's queue.";
    RemoteMemory "T-RMT-007" Public [Ended]
        "A command names memory that the target has registered, and may do there what it does.";

    SteeringTable "T-AT-001" Public [Translated]
        "STEERING_TABLE_ENABLE is 1 while commands use the queue's memory.";
    StagRange "T-AT-002" Ours [Translated]
        "An STag is less than STEERING_TABLE_SIZE.";
    SteeringMemory "T-AT-003" Ours [Translated]
        "Steering entries are readable memory, at multiples of 8.";
    StagEnabled "T-AT-004" Public [Translated]
        "The steering entry of an STag is enabled while commands use it.";
    OffsetRange "T-AT-005" Public [Translated]
        "Offset and length of an access lie within the STag.";
    StagWrites "T-AT-006" Public [Translated]
        "A read-only STag is not written.";
    BlockTable "T-AT-007" Public [Translated]
        "MEMORY_BLOCK_TABLE_ENABLE is 1 while commands use the queue's memory.";
    BlockRange "T-AT-008" Ours [Translated]
        "The mbid of a steering entry is less than MEMORY_BLOCK_TABLE_SIZE.";
    BlockMemory "T-AT-009" Ours [Translated]
        "Memory block entries are readable memory, at multiples of 8.";
    BlockEnabled "T-AT-010" Public [Translated]
        "The memory block of an STag in use is enabled.";
    PageSize "T-AT-011" Ours [Translated]
        "The page size code of a memory block is 0, 1, 2, 4 or 5.";
    PageRange "T-AT-012" Ours [Translated]
        "All pages of an STag lie within its memory block.";
    PageMemory "T-AT-013" Ours [Translated]
        "Page table entries are readable memory, at multiples of 8.";
    PageEnabled "T-AT-014" Public [Translated]
        "The page table entries of memory in use are enabled.";
    PayloadMemory "T-AT-015" Public [Translated]
        "Translated addresses, and addresses of frames, are memory that the device can reach.";
    Alignment "T-AT-016" Ours [Atomic PacketSent]
        "The address of an atomic command is a multiple of its length, and that of a frame one of \
         256.";
    Flush "T-AT-017" Public [Translated]
        "After an entry of a table was disabled or changed, CACHE_FLUSH is written.";

    MrqRoom "T-MRQ-001" Public [Notice]
        "MRQ_FULL_POINTER advances before the message receive queue is full.";
    MrqMemory "T-MRQ-002" Public [Notice]
        "The MRQ is memory that the device can write.";
    MrqWritten "T-MRQ-003" Ours [Notice]
        "MRQ_FULL_POINTER is not ahead of the notices that were written.";
    MrqBlank "T-MRQ-004" Public [QueueEnabled]
        "No entry of the MRQ is valid when its queue is enabled.";

    ArmWord "T-IRQ-001" Ours [Asked]
        "INTERRUPT_ARM_IPA is the address of a word in memory, a multiple of 8.";
    MsixEnabled "T-IRQ-002" Ours []
        "MSI-X is enabled while interrupt requests are unmasked.";

    PbqMemory "T-PKT-001" Public [PacketTaken]
        "The PBQ is memory that the device can read.";
    PbqBuffers "T-PKT-002" Public [PacketTaken]
        "There is a buffer in the PBQ for each packet that arrives.";
    PrqRoom "T-PKT-003" Public [PacketTaken]
        "PRQ_FULL_POINTER advances before the packet receive queue is full.";
    PacketMemory "T-PKT-004" Public [PacketTaken]
        "The PRQ and its buffers are memory that the device can write, and so is the word at \
         PRQ_INTERRUPT_ARM_PA.";
    PacketQueues "T-PKT-005" Ours [PacketQueue]
        "PBQ_PA and PRQ_PA are multiples of 8, and the sizes written before are 0 to 5.";
    PrqWritten "T-PKT-006" Ours [PacketTaken]
        "PRQ_FULL_POINTER is not ahead of the entries that were written.";
    PrqBlank "T-PKT-007" Public [PacketQueue]
        "No entry of the PRQ is valid when PRQ_PA is written.";

    GateLinks "T-BG-001" Public [GateEnabled]
        "The links of a gate lead to gates that exist when it is enabled.";
    GateRegisters "T-BG-002" Public [GateSetUp]
        "Masks, links and numbers of a gate change only while it is disabled.";
    RoundReady "T-BG-003" Public [Round]
        "A round is started only while READY is set.";
    GateSends "T-BG-004" Public [Signal Round]
        "Gates send to nodes that exist.";
    GateInactive "T-BG-005" Ours [Signal]
        "A gate and its TNI are enabled before others send to it.";
    GateSource "T-BG-006" Public [Signal]
        "Signals come from where the gate's links say, with its GPID and sequence number.";
    GateSignal "T-BG-007" Public [Signal Round]
        "The operator of a round exists, and is the same in all its signals.";
    NoticeArea "T-BG-008" Public [RoundNotice]
        "BCH_NOTICE_IPA is memory that the device can write.";

    StatisticsQueue "T-XB-001" Ours [Dump]
        "The statistics queue is memory that the device can write.";

    TnwAccess "N-REG-001" Ours [Read Write]
        "An access has 4 or 8 bytes and is to a register.";
    TnwEnabled "N-REQ-001" Ours [Posted]
        "Credits and Ngets are posted only while the device is enabled.";
    TnwLink "N-REQ-002" Public [Posted]
        "Credits and Ngets are posted at links that lead to a neighbour.";
    TnwLength "N-REQ-003" Ours [Posted]
        "The length of a credit or Nget is not 0, and not more than a message may have.";
    TnwMemory "N-REQ-004" Ours [Posted]
        "The addresses of a credit or Nget are memory that the device can use.";
    TnwRoom "N-REQ-005" Ours [Posted]
        "At most 64 credits and 16 Ngets of a channel wait.";
    TnwNotify "N-REQ-006" Ours [Notified]
        "The notification word of a credit or Nget is memory when the request ends.";
    TnwStray "N-WIN-001" Ours [Stored]
        "Stores to windows have 1 to 64 bytes, go to links that lead somewhere, and are made while \
         the device is enabled.";
    TnwOverlap "N-WIN-002" Public [Stored]
        "A byte of a window is stored only when the byte before it at its place has left.";
    TnwReport "N-WIN-003" Ours [Reported]
        "TX_REPORT is the address of a word in memory.";
}

impl Rule {
    /// Number of rules.
    pub const COUNT: usize = ROWS.len();

    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Its id, which never changes.
    pub fn id(self) -> &'static str {
        self.row().id
    }

    /// Its source.
    pub fn source(self) -> Source {
        self.row().source
    }

    /// The rule.
    pub fn says(self) -> &'static str {
        self.row().says
    }

    /// The points at which it was kept.
    pub(crate) fn kept_at(self) -> &'static [Point] {
        self.row().kept_at
    }

    /// The device that it is a rule of.
    pub fn device(self) -> Device {
        if self.id().starts_with('T') { Device::Tofu } else { Device::Tnw }
    }

    /// The rule with this id.
    pub fn from_id(id: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.id == id).map(|row| row.rule)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn rows_are_in_the_order_of_rules() {
        for (rule, row) in Rule::ALL.iter().zip(ROWS) {
            assert_eq!(*rule, row.rule);
            assert_eq!(Rule::from_id(rule.id()), Some(*rule));
        }
    }

    #[test]
    fn ids_have_one_form_and_are_unique() {
        let ids: BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.id()).collect();
        assert_eq!(ids.len(), Rule::COUNT);
        for id in ids {
            let [device, area, number] = id.split('-').collect::<Vec<_>>()[..] else {
                panic!("{id}");
            };
            assert!(matches!(device, "T" | "N"), "{id}");
            assert!(area.bytes().all(|c| c.is_ascii_uppercase()), "{id}");
            assert!(number.len() == 3 && number.parse::<u16>().is_ok(), "{id}");
        }
    }

    #[test]
    fn each_rule_can_be_kept_and_each_point_is_used() {
        for rule in Rule::ALL {
            // Messages are counted where they are sent.
            assert!(!rule.kept_at().is_empty() || *rule == Rule::MsixEnabled, "{rule}");
            assert!(rule.says().ends_with('.') && !rule.says().contains("  "), "{rule}");
        }
        for point in Point::ALL {
            assert!(Rule::ALL.iter().any(|rule| rule.kept_at().contains(point)), "{point:?}");
        }
    }
}
