//! Software offload: completes frames for nodes that do not take offloaded ones.

use alloc::vec::Vec;

use crate::offload::{
    BadMetadata, IPV6_HEADER, Metadata, Segments, TCP, TCP_CHECKSUM, get16, put16,
};
use crate::wire::ETHERNET_HEADER;

/// Offset of the flags in a TCP header.
const TCP_FLAGS: usize = 13;
const FIN: u8 = 1;
const PSH: u8 = 8;
const CWR: u8 = 0x80;

impl Metadata {
    /// Completes a frame: passes the complete frames to `out`, in order.
    ///
    /// # Errors
    ///
    /// If the metadata do not match the frame. Then nothing is passed to `out`.
    pub fn complete(&self, frame: &[u8], out: &mut dyn FnMut(&[u8])) -> Result<(), BadMetadata> {
        let Some(headers) = self.check(frame)? else {
            let mut done = frame.to_vec();
            if let Some((start, offset)) = self.checksum {
                complete_checksum(&mut done, start.into(), offset.into());
            }
            out(&done);
            return Ok(());
        };
        let Some((start, _)) = self.checksum else { return Err(BadMetadata) };
        let tcp = usize::from(start);
        let v4 = self.segments == Segments::Tcp4;
        let payload = &frame[headers..];
        let last = payload.len().div_ceil(self.size.into()) - 1;
        let mut segment = Vec::with_capacity(headers + usize::from(self.size));
        for (n, body) in payload.chunks(self.size.into()).enumerate() {
            segment.clear();
            segment.extend_from_slice(&frame[..headers]);
            segment.extend_from_slice(body);
            let sequence =
                get32(&segment, tcp + 4).wrapping_add((n * usize::from(self.size)) as u32);
            segment[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
            if n != last {
                segment[tcp + TCP_FLAGS] &= !(FIN | PSH);
            }
            if n != 0 {
                segment[tcp + TCP_FLAGS] &= !CWR;
            }
            let length = segment.len() - ETHERNET_HEADER;
            if v4 {
                let id = get16(&segment, ETHERNET_HEADER + 4).wrapping_add(n as u16);
                put16(&mut segment, ETHERNET_HEADER + 2, length as u16);
                put16(&mut segment, ETHERNET_HEADER + 4, id);
                put16(&mut segment, ETHERNET_HEADER + 10, 0);
                let sum = !fold(sum(&segment[ETHERNET_HEADER..tcp]));
                put16(&mut segment, ETHERNET_HEADER + 10, sum);
            } else {
                put16(&mut segment, ETHERNET_HEADER + 4, (length - IPV6_HEADER) as u16);
            }
            // The kernel's sum covers the pseudo header, with the length of the whole frame.
            let addresses = if v4 { 12..20 } else { 8..40 };
            let (from, to) = (ETHERNET_HEADER + addresses.start, ETHERNET_HEADER + addresses.end);
            let tcp_length = (segment.len() - tcp) as u32;
            let pseudo = sum(&segment[from..to]) + u64::from(TCP) + u64::from(tcp_length);
            put16(&mut segment, tcp + TCP_CHECKSUM, fold(pseudo));
            complete_checksum(&mut segment, tcp, TCP_CHECKSUM);
            out(&segment);
        }
        Ok(())
    }
}

/// Replaces the field at `start + offset` by the checksum (RFC 1071) from `start` on, the field
/// included.
fn complete_checksum(frame: &mut [u8], start: usize, offset: usize) {
    let sum = !fold(sum(&frame[start..]));
    // 0 would mean that a UDP datagram has no checksum; ffff is the same number in ones'
    // complement.
    put16(frame, start + offset, if sum == 0 { u16::MAX } else { sum });
}

/// The sum of 16-bit words, big endian, before the carries are added.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(4);
    let rest = words.remainder();
    // Two words at a time. Their sums come together when the carries are added.
    let two = |words: &[u8]| u32::from_be_bytes(words.try_into().unwrap_or_default());
    let mut sum: u64 = words.map(|words| u64::from(two(words))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum += u64::from(u32::from_be_bytes(last));
    sum
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from(get16(bytes, at)) << 16 | u32::from(get16(bytes, at + 2))
}
