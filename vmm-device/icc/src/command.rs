//! Commands: descriptors after all checks that need only the descriptor and the rights of its
//! queue.

use std::fmt;

use tofu_abi::desc::{
    ArmwOp, Command, Descriptor, Header1, Header2, MAX_MTU, MTU_UNIT, PIGGYBACK_BUFFER_MAX,
};
use tofu_abi::frame::{FRAME_ALIGN, HEADER_SIZE, SYSTEM_PAYLOAD_MAX, is_frame_size};
use tofu_abi::generation::Description;
use tofu_abi::regs::CqsMode;
use tofu_abi::{CqId, Rcode, StagOffset, TniId};
use tofu_fabric::Port;

use crate::fault::Fault;

/// The kinds of commands that wait for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandKind {
    Put,
    Get,
    Armw,
    /// A raw or system packet. Its command has a TCQ entry but no notice.
    Frame,
}

/// Fields common to all commands that send something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) kind: CommandKind,
    pub(crate) header1: Header1,
    pub(crate) header2: Header2,
    /// Interface of the target. A packet of one hop has it in its frame, and interface 0 here.
    pub(crate) tni: TniId,
    pub(crate) remote: StagOffset,
    pub(crate) local: StagOffset,
    /// Bytes of the message.
    pub(crate) length: u32,
    /// Most payload bytes of one TLP; not 0.
    pub(crate) mtu: u32,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, header1, tni, remote, local, length, .. } = self;
        let (node, cq) = (header1.target(), remote.cqid());
        write!(f, "{kind:?} of {length} bytes to node {node} TNI {tni} CQ {cq}, ")?;
        write!(f, "STag {:#x} offset {:#x}, ", remote.stag(), remote.offset())?;
        write!(f, "own STag {:#x} offset {:#x}", local.stag(), local.offset())
    }
}

/// The way a packet is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PacketRoute {
    /// A system packet, by distances.
    System,
    /// A frame as it is, to a node.
    Raw,
    /// A frame as it is, one hop.
    Hop(Port),
}

/// A raw or system packet in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketCommand {
    pub(crate) route: PacketRoute,
    /// Its address.
    pub(crate) at: u64,
    pub(crate) message: Message,
}

/// A parsed descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Nop,
    WritePiggybackBuffer([u64; 3]),
    /// A Put or Get between memories.
    Transfer(Message),
    /// A Put of data that begins with these eight bytes and continues in the piggyback buffer.
    PutPiggyback(Message, u64),
    /// An atomic command with its operand.
    Armw(Message, ArmwOp, u64),
    Packet(PacketCommand),
}

/// Parses a descriptor of a queue with these rights, or returns why it is refused.
#[inline]
pub(crate) fn parse(
    descriptor: &Descriptor,
    queue: CqId,
    mode: CqsMode,
    description: &Description,
) -> Result<Action, Fault> {
    let header1 = descriptor.header1();
    let command = Command::from_code(header1.command()).ok_or(Rcode::UNDEFINED_COMMAND)?;
    if !description.has_command(command) {
        return Err(Rcode::UNSUPPORTED_COMMAND.into());
    }
    let kind = match command {
        Command::Nop => return Ok(Action::Nop),
        Command::WritePiggybackBuffer => {
            let [_, a, b, c] = descriptor.0;
            return Ok(Action::WritePiggybackBuffer([a, b, c]));
        }
        command @ (Command::TransmitRawPacket1
        | Command::TransmitRawPacket2
        | Command::TransmitSystemPacket1
        | Command::TransmitSystemPacket2) => {
            return parse_packet(command, descriptor, mode, description);
        }
        Command::Put | Command::PutPiggyback => CommandKind::Put,
        Command::Get | Command::GetL => CommandKind::Get,
        Command::AtomicReadModifyWrite => CommandKind::Armw,
    };
    let header2 = descriptor.header2();
    let tni = target(header1, description)?;
    if !mode.subnet_allows(header1.rx(), header1.ry(), header1.rz()) {
        return Err(Rcode::SUBNET.into());
    }
    let piggyback = header1.command() == Command::PutPiggyback as u8;
    let length = if piggyback { header2.piggyback_length().into() } else { header2.length() };
    // The bits of the mtu are those of the operator in an atomic command.
    let mtu = match (kind, u32::from(header1.mtu()) * MTU_UNIT) {
        (CommandKind::Armw, _) | (_, 0) => MAX_MTU,
        (_, mtu) => mtu,
    };
    if mtu > MAX_MTU {
        return Err(Rcode::BAD_MTU.into());
    }
    if piggyback && length as usize > PIGGYBACK_BUFFER_MAX
        || kind == CommandKind::Armw && length != 4 && length != 8
    {
        return Err(Rcode::BAD_LENGTH.into());
    }
    // Piggyback data and operands come with the command. The packet names their queue nevertheless.
    let local = if piggyback || kind == CommandKind::Armw {
        StagOffset::new(queue, 0, 0)
    } else {
        descriptor.local().with_cqid(queue.get())
    };
    let remote = descriptor.remote();
    let message = Message { kind, header1, header2, tni, remote, local, length, mtu };
    if piggyback {
        return Ok(Action::PutPiggyback(message, descriptor.data()));
    }
    if kind == CommandKind::Armw {
        let op = ArmwOp::from_code(header1.op()).ok_or(Rcode::BAD_OPERATOR)?;
        return Ok(Action::Armw(message, op, descriptor.data()));
    }
    Ok(Action::Transfer(message))
}

/// The interface that a command is for.
#[inline]
fn target(header1: Header1, description: &Description) -> Result<TniId, Rcode> {
    let tni = TniId::new(header1.ri()).filter(|tni| description.has_tni(*tni));
    tni.ok_or(Rcode::NO_SUCH_NODE)
}

fn parse_packet(
    command: Command,
    descriptor: &Descriptor,
    mode: CqsMode,
    description: &Description,
) -> Result<Action, Fault> {
    let header1 = descriptor.header1();
    let raw = matches!(command, Command::TransmitRawPacket1 | Command::TransmitRawPacket2);
    let allowed = match command {
        Command::TransmitRawPacket1 => mode.trp1_enable(),
        Command::TransmitRawPacket2 => mode.trp2_enable(),
        _ => true,
    };
    if !mode.system() || !allowed {
        return Err(Rcode::NOT_PERMITTED.into());
    }
    let length = usize::from(descriptor.header2().packet_length());
    let fits = if raw {
        is_frame_size(length)
    } else {
        (HEADER_SIZE..=HEADER_SIZE + SYSTEM_PAYLOAD_MAX).contains(&length)
    };
    if !fits {
        return Err(Rcode::BAD_LENGTH.into());
    }
    let (route, tni) = if command == Command::TransmitRawPacket2 {
        let port = Port::from_index(header1.port().into()).ok_or(Rcode::NO_SUCH_NODE)?;
        (PacketRoute::Hop(port), TniId::ALL[0])
    } else {
        let route = if raw { PacketRoute::Raw } else { PacketRoute::System };
        (route, target(header1, description)?)
    };
    let at = descriptor.packet_address();
    if !at.is_multiple_of(FRAME_ALIGN) {
        return Err(Fault { rcode: Rcode::ALIGNMENT, ..Fault::payload(false) });
    }
    let message = Message {
        kind: CommandKind::Frame,
        header1,
        header2: descriptor.header2(),
        tni,
        remote: StagOffset(0),
        local: StagOffset(0),
        length: length as u32,
        mtu: MAX_MTU,
    };
    Ok(Action::Packet(PacketCommand { route, at, message }))
}
