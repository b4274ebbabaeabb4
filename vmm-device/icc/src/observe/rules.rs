//! The rules behind result codes and interrupt requests.
//!
//! Most rules are checked where the device finds that it cannot carry out a command or access. It
//! reports that by a result code or an interrupt request. This module maps both to their rules.

use tofu_abi::Rcode;
use tofu_abi::irq::{BgsIrqs, CqsIrqs, TniIrqs};
use tofu_rules::Rule;

/// Returns the rule that a command of this node has broken, if a check of this node, or a table of
/// its queue, gives this code.
pub(crate) fn of_local(rcode: Rcode) -> Option<Rule> {
    Some(match rcode {
        Rcode::UNDEFINED_COMMAND => Rule::CommandCode,
        Rcode::UNSUPPORTED_COMMAND => Rule::CommandHere,
        Rcode::NOT_PERMITTED => Rule::PacketMode,
        Rcode::BAD_LENGTH => Rule::Length,
        Rcode::BAD_MTU => Rule::Mtu,
        Rcode::NO_SUCH_NODE => Rule::TargetInterface,
        Rcode::SUBNET => Rule::OwnSubnet,
        Rcode::BAD_OPERATOR => Rule::Operator,
        Rcode::STEERING_TABLE_DISABLED => Rule::SteeringTable,
        Rcode::STAG_RANGE => Rule::StagRange,
        Rcode::STEERING_UNREADABLE => Rule::SteeringMemory,
        Rcode::STAG_DISABLED => Rule::StagEnabled,
        Rcode::OFFSET_RANGE => Rule::OffsetRange,
        Rcode::READ_ONLY => Rule::StagWrites,
        Rcode::MEMORY_BLOCK_TABLE_DISABLED => Rule::BlockTable,
        Rcode::MEMORY_BLOCK_RANGE => Rule::BlockRange,
        Rcode::MEMORY_BLOCK_UNREADABLE => Rule::BlockMemory,
        Rcode::MEMORY_BLOCK_DISABLED => Rule::BlockEnabled,
        Rcode::BAD_PAGE_SIZE => Rule::PageSize,
        Rcode::PAGE_RANGE => Rule::PageRange,
        Rcode::PAGE_UNREADABLE => Rule::PageMemory,
        Rcode::PAGE_DISABLED => Rule::PageEnabled,
        Rcode::PAYLOAD_ACCESS => Rule::PayloadMemory,
        Rcode::ALIGNMENT => Rule::Alignment,
        _ => return None,
    })
}

/// Returns the rule that a command has broken, if it was sent and fails with this code elsewhere. A
/// link that is down, or a missing answer, breaks none.
pub(crate) fn of_remote(rcode: Rcode) -> Option<Rule> {
    Some(match rcode {
        Rcode::NO_SUCH_NODE => Rule::TargetNode,
        Rcode::NO_SUCH_PATH => Rule::TargetPath,
        Rcode::TNI_DISABLED => Rule::RemoteInterface,
        Rcode::NO_SUCH_CQ => Rule::RemoteQueue,
        Rcode::CQ_DISABLED => Rule::RemoteEnabled,
        Rcode::GPID => Rule::RemoteGroup,
        Rcode::REMOTE_SUBNET => Rule::RemoteSubnet,
        Rcode::TARGET_DMA_OFF => Rule::RemoteMastering,
        // The code of a disabled table is the same at both ends.
        rcode if rcode.local() != rcode || rcode == Rcode::STEERING_TABLE_DISABLED => {
            Rule::RemoteMemory
        }
        _ => return None,
    })
}

/// Returns the rule that a command has broken, if it was begun and then failed with this code at
/// either end.
pub(crate) fn of_begun(rcode: Rcode) -> Option<Rule> {
    match rcode {
        // The network reports these.
        Rcode::NO_SUCH_NODE | Rcode::NO_SUCH_PATH => of_remote(rcode),
        _ if rcode.is_local() => of_local(rcode),
        _ => of_remote(rcode),
    }
}

/// The rules behind exceptions of a control queue.
pub(crate) const OF_QUEUE: [(CqsIrqs, Rule); 5] = [
    (CqsIrqs::TOQ_READ_EXCEPTION, Rule::ToqMemory),
    (CqsIrqs::TOQ_SOURCE_TYPE_EXCEPTION, Rule::SourceType),
    (CqsIrqs::TCQ_WRITE_EXCEPTION, Rule::TcqMemory),
    (CqsIrqs::MRQ_WRITE_EXCEPTION, Rule::MrqMemory),
    (CqsIrqs::MRQ_OVERFLOW, Rule::MrqRoom),
];

/// The rules behind exceptions of an interface.
pub(crate) const OF_INTERFACE: [(TniIrqs, Rule); 5] = [
    (TniIrqs::PBQ_READ_EXCEPTION, Rule::PbqMemory),
    (TniIrqs::PBQ_UNDERFLOW, Rule::PbqBuffers),
    (TniIrqs::PRQ_WRITE_EXCEPTION, Rule::PacketMemory),
    (TniIrqs::PRQ_OVERFLOW, Rule::PrqRoom),
    (TniIrqs::INACTIVE_BG, Rule::GateInactive),
];

/// The rules behind exceptions of a gate, other than those of its links.
pub(crate) const OF_GATE: [(BgsIrqs, Rule); 4] = [
    (
        BgsIrqs::NODE_ADDRESS_UNMATCH.union(BgsIrqs::GPID_UNMATCH).union(BgsIrqs::BSEQ_UNMATCH),
        Rule::GateSource,
    ),
    (BgsIrqs::BG_SEND_ADDRESS_EXCEPTION, Rule::GateSends),
    (BgsIrqs::SIGNAL_STATE_ERROR, Rule::GateSignal),
    (BgsIrqs::DMA_COMPLETION_EXCEPTION, Rule::NoticeArea),
];

/// The rule behind an exception of a control queue.
pub(crate) fn of_queue(exception: CqsIrqs) -> Option<Rule> {
    OF_QUEUE.iter().find(|(bits, _)| *bits == exception).map(|(_, rule)| *rule)
}

/// The same of an interface.
pub(crate) fn of_interface(exception: TniIrqs) -> Option<Rule> {
    OF_INTERFACE.iter().find(|(bits, _)| *bits == exception).map(|(_, rule)| *rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_addresses_have_rules_at_both_ends() {
        for code in 0x10..=0x1f {
            let rcode = Rcode::new(code);
            assert!(of_local(rcode).is_some(), "{rcode:?}");
            assert_eq!(of_remote(rcode.remote()), Some(Rule::RemoteMemory), "{rcode:?}");
        }
    }

    #[test]
    fn lost_commands_break_no_rule() {
        for rcode in [Rcode::SUCCESS, Rcode::LINK_DOWN, Rcode::TIMEOUT] {
            assert_eq!((of_local(rcode), of_remote(rcode)), (None, None));
        }
    }
}
