//! Finds out whether another shard is still alive.
//!
//! The end of a process is noticed immediately, because its kernel closes its connections. Other
//! cases are hosts that are cut off or have lost power, and processes that are stopped. The
//! acknowledgements of the other kernel distinguish them: they come even if its processors are
//! busy, so a host under load is not taken for one that is cut off. If this process was stopped for
//! a while, the others are not considered dead either: only time in which it ran counts.

use std::io;
use std::mem::{offset_of, size_of};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// A shard whose kernel acknowledges data but that is silent for this long is considered dead
/// *(ours)*: its process is stopped, not its host.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);

/// A shard that stops others from sending requests for this long without a break, because of data
/// that it cannot deliver, is considered dead *(ours)*. The time is long enough for that shard to
/// notice first that another shard accepts no data.
pub(crate) const HOLD: Duration = Duration::from_secs(60);

/// The kernel's knowledge of the data that it has sent over a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acks {
    /// True if data is unacknowledged although the other end has room for it.
    pub(crate) missing: bool,
    /// Time since the last acknowledgement.
    pub(crate) last: Duration,
}

impl Acks {
    /// Reads the state of a connection's acknowledgements.
    #[expect(unsafe_code, reason = "no safe interface reads TCP_INFO")]
    pub(crate) fn of(socket: &TcpStream) -> io::Result<Self> {
        // SAFETY: all bytes zero is a value of the structure, which has only integers.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the descriptor is open, as `socket` is borrowed, and the kernel writes at most
        // `length` bytes to `info`, which outlives the call. A shorter answer leaves zeroes.
        let failed = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        let last = Duration::from_millis(info.tcpi_last_ack_recv.into());
        // Kernels before 5.4 don't report the window.
        let reported = length as usize > offset_of!(libc::tcp_info, tcpi_snd_wnd);
        let open = !reported || info.tcpi_snd_wnd > 0;
        // If a process reads nothing, its kernel closes the window, possibly even for data that was
        // already in flight. This kernel then sends such data less and less often, so the other
        // kernel is not to blame for long times without an acknowledgement. If this host has no
        // route left, only probes are sent, and those fail.
        let late = info.tcpi_unacked > 0 || info.tcpi_probes > 0;
        Ok(Self { missing: late && open || info.tcpi_probes > 1, last })
    }
}

/// The reason why a shard is considered dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dead {
    /// Its host acknowledges no data.
    CutOff,
    /// Its process is silent.
    Silent,
    /// Its process accepts no data.
    Full,
    /// Its process stops others from sending requests.
    Holds,
}

/// The observations of another shard at one check.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Signs {
    /// True if anything was received from it.
    pub(crate) received: bool,
    /// True if data waits for it, and it has taken none.
    pub(crate) full: bool,
    /// True if it has throttled this shard's requests.
    pub(crate) holds: bool,
    /// The state of its acknowledgements, as this host's kernel reports it.
    pub(crate) acks: Acks,
}

/// The observations of another shard so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keepalive {
    /// The time for which data was unacknowledged, as seen at the checks of this process.
    missing: Duration,
    /// Time in which this process ran and received nothing.
    silent: Duration,
    /// Time in which this process ran, and the other one took none of the data that waits for it.
    full: Duration,
    /// Time in which this process ran while its requests were throttled.
    held: Duration,
}

impl Keepalive {
    /// Interval between checks, and between keep-alives: a fifth of the time after which a shard
    /// that is cut off is considered dead.
    pub(crate) fn beat(timeout: Duration) -> Duration {
        (timeout / 5).max(Duration::from_millis(1))
    }

    /// Checks a shard again, `after` this time since the last check. It is cut off once nothing was
    /// acknowledged for `timeout` less a beat, and data was late at checks for half of `timeout`.
    pub(crate) fn look(
        &mut self,
        after: Duration,
        signs: Signs,
        timeout: Duration,
    ) -> Option<Dead> {
        let Signs { received, full, holds, acks } = signs;
        let beat = Self::beat(timeout);
        // In the time beyond that, this process or its host was stopped.
        let ran = after.min(2 * beat);
        let longer = |still: bool, time: Duration| if still { time + ran } else { Duration::ZERO };
        self.silent = longer(!received, self.silent);
        self.full = longer(full, self.full);
        self.held = longer(holds, self.held);
        // Data that has just been sent is not late, even if the last acknowledgement was long ago.
        let late = acks.missing && acks.last > beat;
        self.missing = longer(late, self.missing);
        if acks.last + beat >= timeout && 2 * self.missing >= timeout {
            return Some(Dead::CutOff);
        }
        match () {
            () if self.silent >= SILENCE => Some(Dead::Silent),
            () if self.full >= SILENCE => Some(Dead::Full),
            () if self.held >= HOLD => Some(Dead::Holds),
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const TIMEOUT: Duration = Duration::from_secs(1);

    fn acks(missing: bool, last_ms: u64) -> Acks {
        Acks { missing, last: Duration::from_millis(last_ms) }
    }

    fn signs(received: bool, acks: Acks) -> Signs {
        Signs { received, acks, ..Signs::default() }
    }

    #[test]
    fn silent_host_is_dead_in_time() {
        let (mut keepalive, beat) = (Keepalive::default(), Keepalive::beat(TIMEOUT));
        let found = (1..).find_map(|beats: u32| {
            let last = beat * beats;
            let acks = Acks { missing: true, last };
            keepalive.look(beat, signs(false, acks), TIMEOUT).map(|why| (why, last))
        });
        let (why, after) = found.unwrap();
        assert_eq!(why, Dead::CutOff);
        assert!(after <= TIMEOUT, "{after:?}");
    }

    #[test]
    fn unscheduled_shard_takes_no_other_for_dead() {
        let mut keepalive = Keepalive::default();
        let beat = Keepalive::beat(TIMEOUT);
        for _ in 0..1000 {
            // The process wakes up after a minute, and another thread has just sent data.
            let look = keepalive.look(60 * TIMEOUT, signs(true, acks(true, 60_000)), TIMEOUT);
            assert_eq!(look, None);
            assert_eq!(keepalive.look(beat, signs(true, acks(false, 1)), TIMEOUT), None);
        }
    }

    #[test]
    fn stopped_process_on_a_live_host_lives() {
        let mut keepalive = Keepalive::default();
        let beat = Keepalive::beat(TIMEOUT);
        let beats =
            (1..).find(|_| keepalive.look(beat, signs(false, acks(false, 5)), TIMEOUT).is_some());
        assert_eq!(beat * beats.unwrap(), SILENCE);
        // A minute in which this process was stopped counts as two beats.
        let mut keepalive = Keepalive::default();
        assert_eq!(keepalive.look(60 * TIMEOUT, signs(false, acks(false, 5)), TIMEOUT), None);
        assert_eq!(keepalive.silent, 2 * beat);
    }

    #[test]
    fn stuck_peer_is_dead_in_the_end() {
        let (beat, well) = (Keepalive::beat(TIMEOUT), signs(true, acks(false, 5)));
        for (signs, why, after) in [
            (Signs { full: true, ..well }, Dead::Full, SILENCE),
            (Signs { holds: true, ..well }, Dead::Holds, HOLD),
        ] {
            let mut keepalive = Keepalive::default();
            // After a break it begins again.
            for _ in 0..100 {
                assert_eq!(keepalive.look(beat, signs, TIMEOUT), None);
            }
            assert_eq!(keepalive.look(beat, well, TIMEOUT), None);
            let mut looks = (1..).map(|beats: u32| (beats, keepalive.look(beat, signs, TIMEOUT)));
            let (beats, found) = looks.find(|(_, found)| found.is_some()).unwrap();
            assert_eq!((found, beat * beats), (Some(why), after));
        }
    }

    #[test]
    fn kernel_reports_acknowledged_bytes() {
        use std::io::{Read, Write};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(b"beat").unwrap();
        far.read_exact(&mut [0; 4]).unwrap();
        // The data was read, so it is acknowledged, or will be in a moment.
        while Acks::of(&near).unwrap().missing {
            std::thread::yield_now();
        }
    }
}
