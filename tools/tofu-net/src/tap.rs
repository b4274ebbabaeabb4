//! The kernel's side: a TAP interface.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tofu_driver::VolatileBuffer;
use tofu_ipotofu::Frame;
use tofu_ipotofu::addr::Mac;
use tofu_ipotofu::offload::{Fields, Metadata};
use tofu_tap::{DEVICE, NAME_MAX};

use crate::AddressPlan;

/// An error of the interface.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The name is empty or too long.
    #[error("{0:?} is no name for an interface: 1 to 15 bytes, without / and spaces")]
    Name(String),
    /// There are no TAP interfaces, or not for this user.
    #[error("{DEVICE}: {0}; is the kernel's module tun there, and the user root?")]
    Device(io::Error),
    /// The kernel refuses something.
    #[error("interface {name}: {what}: {source}")]
    Interface {
        /// The interface.
        name: String,
        /// The request.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A TAP interface: frames that the kernel sends can be read from it, and what is written to it
/// the kernel receives. Neither blocks. Frames are offloaded both ways, as the kernel prefers: it
/// leaves checksums and TCP segmentation to others.
#[derive(Debug)]
pub struct Tap {
    file: File,
    name: String,
}

impl Tap {
    /// Makes the interface `name`, or takes an existing one of that name, if no process has it.
    /// It stays when this is dropped, without a carrier, so that connections outlive this process;
    /// [`Tap::remove`] is the end of it.
    ///
    /// # Errors
    ///
    /// See [`TapError`].
    pub fn open(name: &str) -> Result<Self, TapError> {
        let proper = |b: u8| b.is_ascii_graphic() && b != b'/' && b != b'%';
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(proper) {
            return Err(TapError::Name(name.to_owned()));
        }
        let file = tofu_tap::open().map_err(TapError::Device)?;
        let tap = Self { file, name: name.to_owned() };
        tofu_tap::attach(&tap.file, name, libc::IFF_VNET_HDR).map_err(tap.error("making it"))?;
        raw::offload(tap.file.as_fd()).map_err(tap.error("leaving checksums to others"))?;
        raw::set_persist(tap.file.as_fd(), true).map_err(tap.error("keeping it"))?;
        Ok(tap)
    }

    /// Gives the interface addresses and an MTU in bytes, and switches it on.
    ///
    /// # Errors
    ///
    /// See [`TapError`].
    pub fn configure(&self, plan: &AddressPlan, mtu: u16) -> Result<(), TapError> {
        let name = &self.name;
        let socket = |family, what| {
            let flags = SocketFlags::CLOEXEC;
            socket_with(family, SocketType::DGRAM, flags, None)
                .map_err(|error| self.error(what)(error.into()))
        };
        let inet = socket(AddressFamily::INET, "asking for sockets")?;
        let inet = inet.as_fd();
        raw::set_mac(inet, name, plan.mac).map_err(self.error("its hardware address"))?;
        raw::set_mtu(inet, name, mtu).map_err(self.error("its MTU"))?;
        // Addresses follow from the hardware, so no other node can have them, and router
        // advertisements add nothing. The interface keeps them as long as it exists, also while it
        // is down.
        let settings = [("accept_dad", "0"), ("addr_gen_mode", "0"), ("keep_addr_on_down", "1")];
        for (key, value) in settings {
            // There may be no IPv6.
            let _ = std::fs::write(self.setting(key), value);
        }
        raw::set_up(inet, name).map_err(self.error("switching it on"))?;
        let (address, prefix) = (plan.ipv4, plan.ipv4_prefix);
        if raw::ipv4(inet, name).ok() != Some(address) {
            raw::set_ipv4(inet, name, address).map_err(self.error("its IPv4 address"))?;
        }
        raw::set_ipv4_mask(inet, name, prefix).map_err(self.error("its IPv4 network"))?;
        if let Ok(inet6) = socket(AddressFamily::INET6, "asking for IPv6") {
            match raw::add_ipv6(inet6.as_fd(), inet, name, plan.ipv6, plan.ipv6_prefix) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                // Switched off for this interface.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                other => other.map_err(self.error("its IPv6 address"))?,
            }
        }
        Ok(())
    }

    /// Sends packets without another route to this address, by a route of low preference.
    ///
    /// # Errors
    ///
    /// See [`TapError`].
    pub(crate) fn add_default_route(&self, gateway: Ipv4Addr) -> Result<(), TapError> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None);
        let added = socket
            .map_err(io::Error::from)
            .and_then(|inet| raw::add_default_route(inet.as_fd(), &self.name, gateway));
        match added {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            added => added.map_err(self.error("its default route")),
        }
    }

    fn setting(&self, key: &str) -> PathBuf {
        PathBuf::from("/proc/sys/net/ipv6/conf").join(&self.name).join(key)
    }

    /// Sets the carrier, which programs see in the interface's state.
    ///
    /// # Errors
    ///
    /// See [`TapError`].
    pub fn set_carrier(&self, on: bool) -> Result<(), TapError> {
        raw::set_carrier(self.file.as_fd(), on).map_err(self.error("its carrier"))
    }

    /// Takes the next frame that the kernel sends, with its length and offload metadata; `None` if
    /// there is none now. A frame whose metadata is in an unknown form has the length 0. Bytes that
    /// go `aside` are not in `buf`.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn read<D: VolatileBuffer>(
        &self,
        buf: &mut [u8],
        aside: Option<Aside<'_, D>>,
    ) -> io::Result<Option<(Metadata, usize)>> {
        let mut header = [0; VNET_HEADER];
        let aside = aside.map(|Aside { memory, range, at }| {
            let part = memory.memory().subslice(range.start + at, range.len() - at);
            part.map(|part| (at, part)).map_err(io::Error::other)
        });
        let aside = aside.transpose()?;
        loop {
            let read = match &aside {
                Some((at, aside)) => raw::read(self.file.as_fd(), &mut header, buf, *at, aside),
                None => {
                    let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(buf)];
                    rustix::io::readv(&self.file, &mut parts)
                }
            };
            return match read.map(|len| len.checked_sub(VNET_HEADER)) {
                Ok(Some(len)) => Ok(Some(
                    understand(&header)
                        .map_or((Metadata::default(), 0), |metadata| (metadata, len)),
                )),
                Ok(None) => Ok(Some((Metadata::default(), 0))),
                Err(Errno::AGAIN) => Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => Err(error.into()),
            };
        }
    }

    /// Gives the kernel a frame to receive, with its offload metadata.
    ///
    /// # Errors
    ///
    /// The kernel's error: for example, an interface that is switched off receives nothing.
    pub fn write<D: VolatileBuffer>(
        &self,
        metadata: &Metadata,
        frame: &Frame<'_, D>,
    ) -> io::Result<()> {
        let Frame { head, rest } = frame;
        let len = head.len() + rest.as_ref().map_or(0, |(_, range)| range.len());
        let header = explain(metadata, head, len);
        let Some((memory, range)) = rest else {
            let parts = [IoSlice::new(&header), IoSlice::new(head)];
            return Ok(rustix::io::writev(&self.file, &parts).map(drop)?);
        };
        let rest = memory.memory().subslice(range.start, range.len()).map_err(io::Error::other)?;
        raw::write(self.file.as_fd(), &header, head, &rest)
    }

    /// Removes the interface.
    ///
    /// # Errors
    ///
    /// See [`TapError`].
    pub fn remove(self) -> Result<(), TapError> {
        raw::set_persist(self.file.as_fd(), false).map_err(self.error("letting go of it"))
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn error(&self, what: &'static str) -> impl FnOnce(io::Error) -> TapError {
        let name = self.name.clone();
        move |source| TapError::Interface { name, what, source }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Memory for the bytes of a frame that only others read: those from byte `at` on, as many as fit.
/// The range is laid out like the frame, so its bytes before `at` are unchanged.
#[derive(Debug)]
pub struct Aside<'a, D> {
    /// The memory.
    pub memory: &'a D,
    /// Bytes of it for the frame.
    pub range: Range<usize>,
    /// The first byte of the frame that goes there.
    pub at: usize,
}

/// Bytes of the kernel's metadata in front of a frame: `struct virtio_net_hdr`. Numbers are in
/// the processor's order.
const VNET_HEADER: usize = 10;

fn understand(header: &[u8; VNET_HEADER]) -> Option<Metadata> {
    let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let [flags, kind, ..] = *header;
    Metadata::from_fields(Fields { flags, kind, size: word(4), start: word(6), offset: word(8) })
}

/// The metadata for the kernel of a frame of `len` bytes that begins with `head`.
fn explain(metadata: &Metadata, head: &[u8], len: usize) -> [u8; VNET_HEADER] {
    let Fields { flags, kind, size, start, offset } = metadata.fields();
    let mut header = [0; VNET_HEADER];
    let mut put = |at: usize, word: u16| header[at..at + 2].copy_from_slice(&word.to_ne_bytes());
    if let Ok(Some(headers)) = metadata.check_head(head, len) {
        put(2, headers as u16);
    }
    put(4, size);
    put(6, start);
    put(8, offset);
    (header[0], header[1]) = (flags, kind);
    header
}

/// The kernel's interface, which takes structures by address.
#[allow(unsafe_code)]
mod raw {
    use super::{AddressFamily, BorrowedFd, Errno, Ipv4Addr, Ipv6Addr, Mac, io};
    use libc::{c_int, c_short, ifreq, iovec, rtentry, sockaddr, sockaddr_in};
    use std::ffi::CString;
    use std::os::fd::AsRawFd;

    use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl};
    use tofu_tap::request;
    use vm_memory::VolatileSlice;

    /// The metric of the default route: other routes come first.
    const ROUTE_METRIC: c_short = 100;

    const TUNSETOFFLOAD: Opcode = libc::TUNSETOFFLOAD as Opcode;
    const TUNSETPERSIST: Opcode = libc::TUNSETPERSIST as Opcode;
    const TUNSETCARRIER: Opcode = libc::TUNSETCARRIER as Opcode;
    const SIOCGIFFLAGS: Opcode = libc::SIOCGIFFLAGS as Opcode;
    const SIOCSIFFLAGS: Opcode = libc::SIOCSIFFLAGS as Opcode;
    const SIOCSIFMTU: Opcode = libc::SIOCSIFMTU as Opcode;
    const SIOCSIFHWADDR: Opcode = libc::SIOCSIFHWADDR as Opcode;
    const SIOCGIFADDR: Opcode = libc::SIOCGIFADDR as Opcode;
    const SIOCSIFADDR: Opcode = libc::SIOCSIFADDR as Opcode;
    const SIOCSIFNETMASK: Opcode = libc::SIOCSIFNETMASK as Opcode;
    const SIOCADDRT: Opcode = libc::SIOCADDRT as Opcode;
    const SIOCGIFINDEX: Opcode = libc::SIOCGIFINDEX as Opcode;

    /// An ioctl that reads an `ifreq`.
    fn set<const CODE: Opcode>(fd: BorrowedFd<'_>, request: ifreq) -> io::Result<()> {
        // SAFETY: all codes in use here take the address of an `ifreq`, which outlives the call.
        Ok(unsafe { ioctl(fd, Setter::<CODE, ifreq>::new(request)) }?)
    }

    /// An ioctl that fills an `ifreq` in.
    fn get<const CODE: Opcode>(fd: BorrowedFd<'_>, name: &str) -> io::Result<ifreq> {
        let mut request = request(name);
        // SAFETY: as for `set`.
        unsafe { ioctl(fd, Updater::<CODE, ifreq>::new(&mut request)) }?;
        Ok(request)
    }

    /// Writes a frame whose last part is in memory that a device may write at the same time: the
    /// kernel copies it from there, and nothing here reads it.
    pub(super) fn write(
        tap: BorrowedFd<'_>,
        header: &[u8],
        head: &[u8],
        rest: &VolatileSlice<'_>,
    ) -> io::Result<()> {
        let rest = rest.ptr_guard();
        let part = |from: *const u8, len| iovec { iov_base: from.cast_mut().cast(), iov_len: len };
        let parts = [
            part(header.as_ptr(), header.len()),
            part(head.as_ptr(), head.len()),
            part(rest.as_ptr(), rest.len()),
        ];
        // SAFETY: the kernel reads from all of the parts, which outlive the call.
        let written =
            unsafe { libc::writev(tap.as_raw_fd(), parts.as_ptr(), parts.len() as c_int) };
        if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Reads a frame. Its bytes from `at` on go to memory that a device may read at the same time.
    /// Bytes that do not fit there go to the same places in `buf` as without that memory.
    pub(super) fn read(
        tap: BorrowedFd<'_>,
        header: &mut [u8],
        buf: &mut [u8],
        at: usize,
        aside: &VolatileSlice<'_>,
    ) -> Result<usize, Errno> {
        let Some((start, end)) = buf.split_at_mut_checked(at) else { return Err(Errno::INVAL) };
        let end = end.get_mut(aside.len()..).unwrap_or_default();
        let aside = aside.ptr_guard_mut();
        let part = |to: *mut u8, len| iovec { iov_base: to.cast(), iov_len: len };
        let parts = [
            part(header.as_mut_ptr(), header.len()),
            part(start.as_mut_ptr(), start.len()),
            part(aside.as_ptr(), aside.len()),
            part(end.as_mut_ptr(), end.len()),
        ];
        // SAFETY: the kernel writes to all of the parts, which outlive the call; of the memory that
        // is shared with a device there are no references.
        let read = unsafe { libc::readv(tap.as_raw_fd(), parts.as_ptr(), parts.len() as c_int) };
        usize::try_from(read)
            .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }

    pub(super) fn offload(tun: BorrowedFd<'_>) -> io::Result<()> {
        let all = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        // SAFETY: this one takes a number.
        Ok(unsafe { ioctl(tun, IntegerSetter::<TUNSETOFFLOAD>::new_usize(all as usize)) }?)
    }

    pub(super) fn set_persist(tun: BorrowedFd<'_>, on: bool) -> io::Result<()> {
        // SAFETY: this one takes a number.
        Ok(unsafe { ioctl(tun, IntegerSetter::<TUNSETPERSIST>::new_usize(on.into())) }?)
    }

    pub(super) fn set_carrier(tun: BorrowedFd<'_>, on: bool) -> io::Result<()> {
        // SAFETY: this one takes the address of an int.
        Ok(unsafe { ioctl(tun, Setter::<TUNSETCARRIER, c_int>::new(on.into())) }?)
    }

    pub(super) fn set_mac(inet: BorrowedFd<'_>, name: &str, mac: Mac) -> io::Result<()> {
        let mut request = request(name);
        // SAFETY: all bytes zero is a value of the structure.
        let mut address: sockaddr = unsafe { std::mem::zeroed() };
        address.sa_family = libc::ARPHRD_ETHER;
        for (to, from) in address.sa_data.iter_mut().zip(mac) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_hwaddr = address;
        set::<SIOCSIFHWADDR>(inet, request)
    }

    pub(super) fn set_mtu(inet: BorrowedFd<'_>, name: &str, mtu: u16) -> io::Result<()> {
        let mut request = request(name);
        request.ifr_ifru.ifru_mtu = mtu.into();
        set::<SIOCSIFMTU>(inet, request)
    }

    pub(super) fn set_up(inet: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        let mut request = get::<SIOCGIFFLAGS>(inet, name)?;
        // SAFETY: the kernel has filled in the flags.
        unsafe { request.ifr_ifru.ifru_flags |= libc::IFF_UP as c_short };
        set::<SIOCSIFFLAGS>(inet, request)
    }

    fn with_ipv4(name: &str, address: Ipv4Addr) -> ifreq {
        let mut request = request(name);
        let address = sockaddr_in {
            sin_family: AddressFamily::INET.as_raw(),
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: u32::from(address).to_be() },
            sin_zero: [0; 8],
        };
        // SAFETY: both structures have 16 bytes, and any bytes are a value of either.
        request.ifr_ifru.ifru_addr =
            unsafe { std::mem::transmute::<sockaddr_in, sockaddr>(address) };
        request
    }

    pub(super) fn ipv4(inet: BorrowedFd<'_>, name: &str) -> io::Result<Ipv4Addr> {
        let request = get::<SIOCGIFADDR>(inet, name)?;
        // SAFETY: the kernel has filled in an address, and any bytes are a value of it.
        let address =
            unsafe { std::mem::transmute::<sockaddr, sockaddr_in>(request.ifr_ifru.ifru_addr) };
        Ok(u32::from_be(address.sin_addr.s_addr).into())
    }

    pub(super) fn set_ipv4(inet: BorrowedFd<'_>, name: &str, address: Ipv4Addr) -> io::Result<()> {
        set::<SIOCSIFADDR>(inet, with_ipv4(name, address))
    }

    pub(super) fn set_ipv4_mask(inet: BorrowedFd<'_>, name: &str, prefix: u8) -> io::Result<()> {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        set::<SIOCSIFNETMASK>(inet, with_ipv4(name, mask.into()))
    }

    pub(super) fn add_default_route(
        inet: BorrowedFd<'_>,
        name: &str,
        gateway: Ipv4Addr,
    ) -> io::Result<()> {
        let device = CString::new(name)?;
        let address = |ip| {
            let request = with_ipv4(name, ip);
            // SAFETY: `with_ipv4` has stored an address there.
            unsafe { request.ifr_ifru.ifru_addr }
        };
        // SAFETY: all bytes zero is a value of the structure.
        let mut route: rtentry = unsafe { std::mem::zeroed() };
        route.rt_dst = address(Ipv4Addr::UNSPECIFIED);
        route.rt_genmask = address(Ipv4Addr::UNSPECIFIED);
        route.rt_gateway = address(gateway);
        route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
        // The kernel counts from 1 here.
        route.rt_metric = ROUTE_METRIC + 1;
        route.rt_dev = device.as_ptr().cast_mut();
        // SAFETY: this one takes the address of such a structure; the name outlives the call.
        Ok(unsafe { ioctl(inet, Setter::<SIOCADDRT, rtentry>::new(route)) }?)
    }

    pub(super) fn add_ipv6(
        inet6: BorrowedFd<'_>,
        inet: BorrowedFd<'_>,
        name: &str,
        address: Ipv6Addr,
        prefix: u8,
    ) -> io::Result<()> {
        let index = get::<SIOCGIFINDEX>(inet, name)?;
        let request = libc::in6_ifreq {
            ifr6_addr: libc::in6_addr { s6_addr: address.octets() },
            ifr6_prefixlen: prefix.into(),
            // SAFETY: the kernel has filled in the index.
            ifr6_ifindex: unsafe { index.ifr_ifru.ifru_ifindex },
        };
        // SAFETY: a socket of this family takes the address of such a structure.
        Ok(unsafe { ioctl(inet6, Setter::<SIOCSIFADDR, libc::in6_ifreq>::new(request)) }?)
    }
}
