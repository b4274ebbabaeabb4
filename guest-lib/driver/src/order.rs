//! Building commands.

use thiserror::Error;
use tofu_abi::desc::{
    ArmwOp, Command, Descriptor, Header1, Header2, MAX_MESSAGE, MTU_UNIT, PIGGYBACK_BUFFER_MAX,
    PIGGYBACK_MAX,
};
use tofu_abi::{Coords, PacketTarget, Path, StagOffset, TniId};

/// The network interface that a command is sent to. Its control queue is part of the remote
/// [`StagOffset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Node.
    pub node: Coords,
    /// Network interface of the node.
    pub tni: TniId,
}

impl Target {
    /// A network interface of a node.
    pub const fn new(node: Coords, tni: TniId) -> Self {
        Self { node, tni }
    }

    fn header(self) -> Header1 {
        Header1(0)
            .with_target(self.node)
            .with_path(self.node.default_path())
            .with_ri(self.tni.get())
    }
}

/// Piggyback data is 1 to 32 bytes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a piggyback Put carries 1 to {PIGGYBACK_BUFFER_MAX} bytes, not {len}")]
pub struct BadPiggyback {
    /// The requested length, in bytes.
    pub len: usize,
}

/// One command: one or two descriptors for the transmit order queue.
///
/// The path is the target's own A, B, C coordinates unless [`Order::path`] sets another one. All
/// flags are clear and all numbers are 0 unless set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The main descriptor is the last one in use.
    descriptors: [Descriptor; 2],
    len: usize,
}

impl Order {
    const fn single(descriptor: Descriptor) -> Self {
        Self { descriptors: [descriptor, Descriptor([0; 4])], len: 1 }
    }

    const fn double(buffer: [u64; 3], descriptor: Descriptor) -> Self {
        Self { descriptors: [Descriptor::write_piggyback_buffer(buffer), descriptor], len: 2 }
    }

    fn transfer(
        command: Command,
        to: Target,
        remote: StagOffset,
        local: StagOffset,
        len: u32,
    ) -> Self {
        debug_assert!(len <= MAX_MESSAGE);
        Self::single(Descriptor::transfer(command, to.header(), Header2(0), remote, local, len))
    }

    /// Sends a system packet. Its `payload` bytes begin 16 bytes after the device address `frame`
    /// (see [`tofu_abi::frame`]). The queue needs MODE.SYSTEM for it.
    pub(crate) fn system_packet(to: &PacketTarget, frame: u64, payload: u16) -> Self {
        Self::single(to.descriptor(frame, payload, false))
    }

    /// Only completes.
    pub const fn nop() -> Self {
        Self::single(Descriptor::nop())
    }

    /// Writes `len` bytes (at most 2^24 - 1) of local memory to remote memory.
    pub fn put(to: Target, remote: StagOffset, local: StagOffset, len: u32) -> Self {
        Self::transfer(Command::Put, to, remote, local, len)
    }

    /// Reads `len` bytes (at most 2^24 - 1) of remote memory into local memory.
    pub fn get(to: Target, remote: StagOffset, local: StagOffset, len: u32) -> Self {
        Self::transfer(Command::Get, to, remote, local, len)
    }

    /// Like [`Order::get`], by the GETL command.
    pub fn getl(to: Target, remote: StagOffset, local: StagOffset, len: u32) -> Self {
        Self::transfer(Command::GetL, to, remote, local, len)
    }

    /// Writes 1 to 32 bytes to remote memory. The command itself carries them: one descriptor for
    /// up to 8 bytes, two for more.
    ///
    /// # Errors
    ///
    /// [`BadPiggyback`] if `data` is empty or longer.
    pub fn put_piggyback(
        to: Target,
        remote: StagOffset,
        data: &[u8],
    ) -> Result<Self, BadPiggyback> {
        let len = data.len();
        if len == 0 || len > PIGGYBACK_BUFFER_MAX {
            return Err(BadPiggyback { len });
        }
        let mut padded = [0; PIGGYBACK_BUFFER_MAX];
        padded[..len].copy_from_slice(data);
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(padded.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [first, rest @ ..] = words;
        let put = Descriptor::put_piggyback(to.header(), Header2(0), remote, first, len as u8);
        Ok(if len <= PIGGYBACK_MAX { Self::single(put) } else { Self::double(rest, put) })
    }

    /// Applies `op` with a 4-byte operand to remote memory, which must be aligned to 4.
    ///
    /// For a compare-and-swap use [`Order::cswap4`].
    pub fn armw4(to: Target, op: ArmwOp, remote: StagOffset, operand: u32) -> Self {
        let header = to.header();
        Self::single(Descriptor::armw(header, Header2(0), op, remote, operand.into(), 4))
    }

    /// Applies `op` with an 8-byte operand to remote memory, which must be aligned to 8.
    ///
    /// For a compare-and-swap use [`Order::cswap8`].
    pub fn armw8(to: Target, op: ArmwOp, remote: StagOffset, operand: u64) -> Self {
        Self::single(Descriptor::armw(to.header(), Header2(0), op, remote, operand, 8))
    }

    /// Writes `new` to 4 bytes of remote memory if they hold `old`.
    pub fn cswap4(to: Target, remote: StagOffset, old: u32, new: u32) -> Self {
        let operand = u64::from(new) << 32 | u64::from(old);
        let op = ArmwOp::CompareAndSwap;
        Self::single(Descriptor::armw(to.header(), Header2(0), op, remote, operand, 4))
    }

    /// Writes `new` to 8 bytes of remote memory if they hold `old`. Takes two descriptors.
    pub fn cswap8(to: Target, remote: StagOffset, old: u64, new: u64) -> Self {
        let op = ArmwOp::CompareAndSwap;
        let armw = Descriptor::armw(to.header(), Header2(0), op, remote, old, 8);
        Self::double([new, 0, 0], armw)
    }

    /// A command made of descriptors, for commands that have no builder here.
    ///
    /// # Panics
    ///
    /// If the number of descriptors is not 1 or 2.
    pub fn raw(descriptors: &[Descriptor]) -> Self {
        match *descriptors {
            [one] => Self::single(one),
            [one, two] => Self { descriptors: [one, two], len: 2 },
            _ => panic!("an order has one or two descriptors, not {}", descriptors.len()),
        }
    }

    /// The descriptors, with flip bits clear.
    pub fn descriptors(&self) -> &[Descriptor] {
        &self.descriptors[..self.len]
    }

    fn map1(mut self, f: impl FnOnce(Header1) -> Header1) -> Self {
        let main = &mut self.descriptors[self.len - 1];
        main.0[0] = f(main.header1()).0;
        self
    }

    fn map2(mut self, f: impl FnOnce(Header2) -> Header2) -> Self {
        let main = &mut self.descriptors[self.len - 1];
        main.0[1] = f(main.header2()).0;
        self
    }

    /// Flag s: the payload is written after all earlier accesses.
    #[must_use]
    pub fn strong_order(self) -> Self {
        self.map2(|h| h.with_strong_order(true))
    }

    /// Flag r: a notice for every TLP rather than for the last one only.
    #[must_use]
    pub fn packet_response(self) -> Self {
        self.map2(|h| h.with_packet_response(true))
    }

    /// Flag q: the target's message receive queue gets a notice too.
    #[must_use]
    pub fn remote_notice(self) -> Self {
        self.map2(|h| h.with_remote_notice(true))
    }

    /// Flag p: TLPs are padded to whole cache lines on the link.
    #[must_use]
    pub fn padding(self) -> Self {
        self.map2(|h| h.with_padding(true))
    }

    /// Flag j: the target writes into its processor's cache.
    #[must_use]
    pub fn cache_injection(self) -> Self {
        self.map2(|h| h.with_cache_injection(true))
    }

    /// Requests an interrupt when the command's TCQ entry is written.
    #[must_use]
    pub fn interrupt(self) -> Self {
        self.map1(|h| h.with_interrupt(true))
    }

    /// The most payload bytes of a TLP: a multiple of 8, rounded down. Not for atomic commands,
    /// whose operator has bits in the same place.
    #[must_use]
    pub fn mtu(self, bytes: u32) -> Self {
        self.map1(|h| h.with_mtu((bytes / MTU_UNIT).min(0xff) as u8))
    }

    /// Gap between two TLPs, in units of the device.
    #[must_use]
    pub fn gap(self, gap: u8) -> Self {
        self.map2(|h| h.with_gap(gap))
    }

    /// Path through the network.
    #[must_use]
    pub fn path(self, path: Path) -> Self {
        self.map1(|h| h.with_path(path))
    }

    /// Data for the notices at both ends.
    #[must_use]
    pub fn edata(self, edata: u16) -> Self {
        self.map2(|h| h.with_edata(edata))
    }

    /// Session progress steps to add at the target, 0 to 15.
    #[must_use]
    pub fn sps(self, steps: u8) -> Self {
        self.map1(|h| h.with_sps(steps))
    }
}
