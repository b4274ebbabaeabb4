//! Notices: entries of the message receive queue (MRQ).

use tofu_abi::queue::{MrqEntry, MrqId, MrqWord0, MrqWord1};
use tofu_abi::{Coords, Path, Rcode, StagOffset, TniId};

use crate::command::{CommandKind, Message};

/// The other end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) node: Coords,
    pub(crate) tni: TniId,
}

/// The parts of an MRQ entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    pub(crate) id: MrqId,
    pub(crate) rcode: Rcode,
    pub(crate) peer: Peer,
    pub(crate) path: Path,
    pub(crate) edata: u16,
    pub(crate) initial: bool,
    pub(crate) length: u32,
    pub(crate) local: StagOffset,
    pub(crate) remote: StagOffset,
}

impl Notice {
    pub(crate) fn entry(&self) -> MrqEntry {
        let word0 = MrqWord0(0)
            .with_id(self.id as u8)
            .with_rcode(self.rcode)
            .with_path(self.path)
            .with_coords(self.peer.node)
            .with_i(self.peer.tni.get());
        let word1 = MrqWord1(0)
            .with_initial(self.initial)
            .with_edata(self.edata)
            .with_length(self.length as u16);
        MrqEntry([word0.0, word1.0, self.local.0, self.remote.0])
    }
}

/// The events of a notice at the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoticeEvent {
    /// A TLP that is not the last one of its message was answered.
    Tlp,
    TlpFailed,
    /// The command has ended.
    Last,
    LastFailed,
}

impl CommandKind {
    const fn id(self, event: NoticeEvent) -> MrqId {
        match (self, event) {
            (Self::Armw, NoticeEvent::Tlp | NoticeEvent::Last) => MrqId::Armw,
            (Self::Armw, _) => MrqId::ArmwRemoteError,
            (Self::Get, NoticeEvent::Tlp) => MrqId::Get,
            (Self::Get, NoticeEvent::TlpFailed) => MrqId::GetRemoteError,
            (Self::Get, NoticeEvent::Last) => MrqId::GetLast,
            (Self::Get, NoticeEvent::LastFailed) => MrqId::GetLastRemoteError,
            (Self::Put | Self::Frame, NoticeEvent::Tlp) => MrqId::Put,
            (Self::Put | Self::Frame, NoticeEvent::TlpFailed) => MrqId::PutRemoteError,
            (Self::Put | Self::Frame, NoticeEvent::Last) => MrqId::PutLast,
            (Self::Put | Self::Frame, NoticeEvent::LastFailed) => MrqId::PutLastRemoteError,
        }
    }
}

impl Message {
    /// The peer that the message goes to.
    pub(crate) const fn peer(&self) -> Peer {
        Peer { node: self.header1.target(), tni: self.tni }
    }

    /// The initiator's notice that the whole message has ended.
    #[inline]
    pub(crate) fn last_notice(&self, rcode: Rcode) -> MrqEntry {
        // Most are of one TLP, and a division takes long.
        let whole = if self.length <= self.mtu { 0 } else { (self.length - 1) / self.mtu };
        let tlp = self.length - whole * self.mtu;
        if rcode.is_success() {
            self.notice(NoticeEvent::Last, rcode, self.length, tlp)
        } else {
            self.notice(NoticeEvent::LastFailed, rcode, 0, tlp)
        }
    }

    /// The initiator's notice for a TLP of `tlp` bytes, `advance` bytes into the message.
    pub(crate) fn notice(
        &self,
        event: NoticeEvent,
        rcode: Rcode,
        advance: u32,
        tlp: u32,
    ) -> MrqEntry {
        let id = self.kind.id(event);
        // The last error notice is not advanced; it refers to the message's last TLP. An atomic
        // command has only one id for both.
        let last_failed = id == self.kind.id(NoticeEvent::LastFailed);
        let error_at = if last_failed { self.length - tlp } else { advance };
        let advance = if self.kind == CommandKind::Armw { 0 } else { advance };
        let word0 = MrqWord0::about_target(self.header1).with_id(id as u8).with_rcode(rcode);
        // `advance` is the end of the notice's TLP after a success, and its start after an error.
        let initial = if rcode.is_success() { advance <= tlp } else { error_at == 0 };
        let word1 = MrqWord1(0).with_initial(initial).with_edata(self.header2.edata());
        let word1 = match self.kind {
            CommandKind::Armw => word1.with_op(self.header1.op()),
            _ => word1.with_length(tlp as u16),
        };
        let [local, remote] = [self.local, self.remote].map(|at| at.advanced(advance.into()));
        MrqEntry([word0.0, word1.0, local.0, remote.0])
    }
}
