//! Notices for programs, made of message receive queue entries.

use tofu_abi::queue::{MrqEntry, MrqId};
use tofu_abi::{Path, Rcode, StagOffset};

use crate::error::Code;
use crate::ids::{VcqId, path_id};
use crate::wire::Edata;

/// The kind of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NoticeKind {
    /// A Put of this VCQ ended.
    LclPut = 0,
    /// A Put to this VCQ has been written.
    RmtPut = 1,
    /// A Get of this VCQ ended.
    LclGet = 2,
    /// A Get from this VCQ has been read.
    RmtGet = 3,
    /// An atomic command of this VCQ ended.
    LclArmw = 4,
    /// An atomic command changed memory of this VCQ.
    RmtArmw = 5,
}

impl NoticeKind {
    /// Returns whether it is about a command of this VCQ.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LclPut | Self::LclGet | Self::LclArmw)
    }
}

/// A notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The kind of the notice.
    pub kind: NoticeKind,
    /// The result of the command, see [`Rcode`](tofu_abi::Rcode). Always success for commands of
    /// other processes.
    pub rcode: Rcode,
    /// The VCQ at the other end.
    pub vcq_id: VcqId,
    /// The command's data for notices.
    pub edata: u8,
    /// The old value ([`NoticeKind::LclArmw`]), or the address in this process's memory that
    /// another process's command accessed. Otherwise 0.
    pub rmt_value: u64,
    /// The end of the memory of the VCQ that sent the command; its start if the command failed; 0
    /// for atomic commands.
    pub lcl_stadd: u64,
    /// The end of the memory of the VCQ that was the command's target; its start for atomic
    /// commands, and if the command failed.
    pub rmt_stadd: u64,
}

impl Notice {
    /// Returns the return code for it.
    pub fn status(&self) -> Code {
        mrq_code(self.rcode)
    }
}

/// An entry whose VCQ is not known yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) notice: Notice,
    /// The extra value of the VCQ that sent the command.
    pub(crate) sender: u8,
    /// The lower three bits of the target VCQ's extra value.
    pub(crate) target: u8,
    /// Steering tag of the target's memory.
    pub(crate) stag: u32,
    /// True if the sender wants a notice.
    pub(crate) wanted: bool,
}

/// Returns an address word without its control queue.
const fn stadd(word: StagOffset) -> u64 {
    word.with_cqid(0).0
}

impl Entry {
    /// Returns true if the entry is about a command of this queue whose completion was not
    /// requested.
    #[inline]
    pub(crate) fn is_unwanted(entry: &MrqEntry) -> bool {
        const HALFWAY: u64 = 1 << MrqId::ArmwHalfway as u8
            | 1 << MrqId::PutHalfway as u8
            | 1 << MrqId::PutLastHalfway as u8
            | 1 << MrqId::GetHalfway as u8
            | 1 << MrqId::GetLastHalfway as u8;
        let halfway = HALFWAY >> (entry.word0().id() & 63) & 1 != 0;
        !halfway && !Edata(entry.word1().edata().into()).local()
    }

    /// Decodes an entry. Returns `None` for those that are not about the end of a command.
    #[inline(always)]
    pub(crate) fn decode(entry: &MrqEntry) -> Option<Self> {
        use NoticeKind::{LclArmw, LclGet, LclPut, RmtArmw, RmtGet, RmtPut};
        let kind = match entry.id()? {
            MrqId::PutLastHalfway => RmtPut,
            MrqId::GetLastHalfway => RmtGet,
            MrqId::ArmwHalfway => RmtArmw,
            MrqId::PutLast | MrqId::PutLastRemoteError => LclPut,
            MrqId::GetLast | MrqId::GetLastRemoteError => LclGet,
            MrqId::Armw | MrqId::ArmwRemoteError => LclArmw,
            // These are about a part of a message.
            MrqId::PutHalfway
            | MrqId::GetHalfway
            | MrqId::Put
            | MrqId::Get
            | MrqId::PutRemoteError
            | MrqId::GetRemoteError => return None,
        };
        let (word0, edata) = (entry.word0(), Edata(entry.word1().edata().into()));
        // Addresses in the entry are from the view of the queue that it is in.
        let (sender_word, target_word) = if kind.is_local() {
            (entry.local(), entry.remote())
        } else {
            (entry.remote(), entry.local())
        };
        let lcl_stadd = match kind {
            LclArmw | RmtArmw => 0,
            _ => stadd(sender_word),
        };
        let rmt_value = match kind {
            LclArmw => entry.old_value(),
            LclPut | LclGet => 0,
            RmtPut | RmtGet | RmtArmw => stadd(target_word),
        };
        let node = word0.coords();
        let peer = VcqId::at(node, word0.i()).with_cq(entry.remote().cqid());
        let vcq_id = if kind.is_local() {
            // The path is that of the command.
            peer.with_path_id(path_id(Path::new(word0.pa(), word0.pb(), word0.pc())))
        } else {
            peer.with_path_id(path_id(node.default_path())).with_extra(edata.sender())
        };
        let notice = Notice {
            kind,
            rcode: word0.rcode(),
            vcq_id,
            edata: edata.user(),
            rmt_value,
            lcl_stadd,
            rmt_stadd: stadd(target_word),
        };
        Some(Self {
            notice,
            sender: edata.sender(),
            target: edata.target(),
            stag: target_word.stag(),
            wanted: edata.local(),
        })
    }
}

/// Returns the return code for the result code of a transmit complete queue entry.
pub(crate) fn tcq_code(code: Rcode) -> Code {
    match code {
        Rcode::SUCCESS => Code::Success,
        Rcode::BAD_LENGTH | Rcode::OFFSET_RANGE => Code::TcqLength,
        Rcode::UNDEFINED_COMMAND
        | Rcode::NOT_PERMITTED
        | Rcode::BAD_MTU
        | Rcode::BAD_OPERATOR
        | Rcode::UNSUPPORTED_COMMAND => Code::TcqDesc,
        Rcode::PAYLOAD_ACCESS => Code::TcqMemory,
        code if (Rcode::STAG_RANGE..=Rcode::PAGE_DISABLED).contains(&code) => Code::TcqStadd,
        _ => Code::TcqOther,
    }
}

/// Returns the return code for the result code of a message receive queue entry.
pub(crate) fn mrq_code(code: Rcode) -> Code {
    if code.is_remote_address() {
        return match code.local() {
            Rcode::OFFSET_RANGE => Code::MrqRmtLength,
            Rcode::PAYLOAD_ACCESS => Code::MrqRmtMemory,
            _ => Code::MrqRmtStadd,
        };
    }
    match code {
        Rcode::SUCCESS => Code::Success,
        Rcode::OFFSET_RANGE => Code::MrqLclLength,
        Rcode::PAYLOAD_ACCESS => Code::MrqLclMemory,
        code if (Rcode::STAG_RANGE..=Rcode::ALIGNMENT).contains(&code) => Code::MrqLclStadd,
        Rcode::NO_SUCH_NODE | Rcode::NO_SUCH_PATH | Rcode::LINK_DOWN | Rcode::TIMEOUT => {
            Code::MrqPeer
        }
        code if (Rcode::TNI_DISABLED..=Rcode::TARGET_DMA_OFF).contains(&code) => Code::MrqPeer,
        _ => Code::MrqOther,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwanted_entries_lack_the_notice_flag() {
        use tofu_abi::queue::{MrqWord0, MrqWord1};
        for id in MrqId::ALL {
            for wanted in [false, true] {
                let edata = Edata(0).with_local(wanted).0 as u16;
                let word0 = MrqWord0(0).with_id(id as u8).0;
                let entry = MrqEntry([word0, MrqWord1(0).with_edata(edata).0, 0, 0]);
                assert_eq!(Entry::is_unwanted(&entry), !id.is_halfway() && !wanted, "{id:?}");
            }
        }
    }

    #[test]
    fn every_result_code_has_a_return_code() {
        for &(code, _, text) in Rcode::ALL {
            for code in [code, code.remote()] {
                let success = code == Rcode::SUCCESS;
                assert_eq!(tcq_code(code) == Code::Success, success, "{text}");
                assert_eq!(mrq_code(code) == Code::Success, success, "{text}");
            }
        }
        assert_eq!(tcq_code(Rcode::STAG_DISABLED), Code::TcqStadd);
        assert_eq!(tcq_code(Rcode::STAG_DISABLED.remote()), Code::TcqOther);
        assert_eq!(mrq_code(Rcode::STAG_DISABLED), Code::MrqLclStadd);
        assert_eq!(mrq_code(Rcode::STAG_DISABLED.remote()), Code::MrqRmtStadd);
        assert_eq!(mrq_code(Rcode::READ_ONLY.remote()), Code::MrqRmtStadd);
        assert_eq!(mrq_code(Rcode::CQ_DISABLED), Code::MrqPeer);
    }
}
