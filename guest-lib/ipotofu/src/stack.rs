//! The link as a device of the TCP/IP stack smoltcp.

use alloc::vec;
use alloc::vec::Vec;

use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use tofu_driver::Platform;

use crate::Link;

/// A link with a buffer for each direction.
#[derive(Debug)]
pub struct StackDevice<P: Platform> {
    link: Link<P>,
    rx: Vec<u8>,
    tx: Vec<u8>,
    verify: bool,
}

impl<P: Platform> StackDevice<P> {
    /// Creates a device that uses this link.
    pub fn new(link: Link<P>) -> Self {
        let size = link.config().max_frame();
        Self { link, rx: vec![0; size], tx: vec![0; size], verify: false }
    }

    /// Makes the stack verify checksums of arriving packets. This is useful if something between
    /// sender and receiver recomputes the device's own checksum. To be called before the stack's
    /// interface is created.
    pub fn verify(&mut self) {
        self.verify = true;
    }

    /// The link.
    pub fn link(&mut self) -> &mut Link<P> {
        &mut self.link
    }
}

/// A received frame.
#[derive(Debug)]
pub struct RxToken<'a>(&'a [u8]);

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

/// Permission to send a frame.
#[derive(Debug)]
pub struct TxToken<'a, P: Platform> {
    link: &'a mut Link<P>,
    buf: &'a mut [u8],
}

impl<P: Platform> phy::TxToken for TxToken<'_, P> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let len = len.min(self.buf.len());
        let frame = &mut self.buf[..len];
        let result = f(frame);
        // The sender gets no error: a frame may be lost, as on any other link.
        let _ = self.link.send(frame);
        result
    }
}

impl<P: Platform> phy::Device for StackDevice<P> {
    type RxToken<'a>
        = RxToken<'a>
    where
        P: 'a;
    type TxToken<'a>
        = TxToken<'a, P>
    where
        P: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        let len = self.link.recv(&mut self.rx)?;
        Some((RxToken(&self.rx[..len]), TxToken { link: &mut self.link, buf: &mut self.tx }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Self::TxToken<'_>> {
        self.link.has_room().then_some(TxToken { link: &mut self.link, buf: &mut self.tx })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.link.config().max_frame();
        // The device's own checksum protects packets from end to end, so arriving packets are not
        // checked again unless that is requested. Outgoing packets have checksums, because their
        // receiver may check.
        let kind = || if self.verify { Checksum::Both } else { Checksum::Tx };
        for protocol in [
            &mut capabilities.checksum.ipv4,
            &mut capabilities.checksum.tcp,
            &mut capabilities.checksum.udp,
            &mut capabilities.checksum.icmpv4,
            &mut capabilities.checksum.icmpv6,
        ] {
            *protocol = kind();
        }
        capabilities
    }
}
