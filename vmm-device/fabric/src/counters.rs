//! Counters of ports and crossbars, by the names of the register map.

use crate::{Port, TNIS};

/// A snapshot of a port's counters; one for each counter in the TofuD register map,
/// except the port's free-running clock.
///
/// The counters are read one after another, so those of a busy port may be a few packets apart. The
/// direct carrier has no transmission errors, filters or full buffers, so their counters stay 0;
/// its nullified TLPs are only those that were sent as such.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Cycles in which each virtual channel had no credit to send.
    pub zero_credit: [u64; 4],
    /// Data-link-layer packets sent. The direct carrier counts one ACK for each TLP
    /// received and no credit updates (ours).
    pub send_dllp: u64,
    /// TLPs sent, system TLPs among them.
    pub send_tlp: u64,
    /// Bytes of the TLPs sent, with their routing headers.
    pub send_bytes: u64,
    /// System TLPs sent.
    pub send_system: u64,
    /// Nullified TLPs sent.
    pub send_nullified: u64,
    /// System TLPs that could not be sent as the link was down.
    pub tx_discard_system: u64,
    /// Other TLPs that could not be sent as the link was down.
    pub tx_discard_normal: u64,
    /// TLPs that the sending filter held back.
    pub tx_filtered: u64,
    /// TLPs sent on before they were complete: with the direct carrier, all (ours).
    pub cut_through: u64,
    /// TLPs that this port marked as bad while it sent them.
    pub generate_nullified: u64,
    /// Data-link-layer packets received: see `send_dllp`.
    pub recv_dllp: u64,
    /// TLPs received, system TLPs among them.
    pub recv_tlp: u64,
    /// Bytes of the TLPs received, with their routing headers.
    pub recv_bytes: u64,
    /// System TLPs received.
    pub recv_system: u64,
    /// Nullified TLPs received.
    pub recv_nullified: u64,
    /// System TLPs received and discarded.
    pub rx_discard_system: u64,
    /// Other TLPs received and discarded.
    pub rx_discard_normal: u64,
    /// TLPs that the receiving filter held back.
    pub rx_filtered: u64,
    /// Nullified TLPs discarded.
    pub rx_discard_nullified: u64,
    /// Frames with a wrong link CRC.
    pub lcrc_errors: u64,
    /// Errors corrected in the retry buffer.
    pub retry_buffer_ce: u64,
    /// Errors corrected in the receive buffers.
    pub receive_buffer_ce: u64,
    /// Errors corrected in the crossbar.
    pub xb_ce: u64,
    /// Frames with neither an ACK nor a NACK before the timeout.
    pub ack_timeouts: u64,
    /// Times that the port took its link down because nothing got through. No register has it.
    pub failures: u64,
    /// Slices with a wrong check sequence, by lane.
    pub slice_fcs_errors: [u64; 2],
}

/// Cycles counted at one input of a crossbar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XbCycles {
    /// Cycles in which data moved: bytes on the wire / 16.
    pub data: u64,
    /// Cycles in which data waited for its output. The direct carrier never waits.
    pub wait: u64,
}

/// Cycles at all inputs of a node's crossbar.
///
/// The register map has one pair of counters for each TNI and port; that they count
/// what comes into the crossbar from there is ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XbCounters {
    /// The packets that each TNI sent.
    pub tni: [XbCycles; TNIS],
    /// The packets that each port received.
    pub port: [XbCycles; Port::COUNT],
}
