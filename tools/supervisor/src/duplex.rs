//! The streams of a port of a virtual machine.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use anyhow::Context;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// Bytes of output that wait for this process, in modelled time: as many as Linux allows everyone.
const PIPE: usize = 1 << 20;

/// Our ends of a port of a virtual machine, such as its console.
#[derive(Debug)]
pub struct Duplex {
    /// Its output.
    pub output: File,
    /// Its input, for writing.
    pub input: UnixStream,
}

impl Duplex {
    /// Of a stream that has both.
    ///
    /// # Errors
    ///
    /// If the process has no descriptors left.
    pub fn on(stream: UnixStream) -> io::Result<Self> {
        Ok(Self { input: stream.try_clone()?, output: OwnedFd::from(stream).into() })
    }

    /// Makes a bidirectional stream. Also returns its other end.
    ///
    /// # Errors
    ///
    /// As [`Duplex::on`].
    pub fn pair() -> anyhow::Result<(Self, UnixStream)> {
        let (ours, there) = UnixStream::pair().context("no sockets left")?;
        Ok((Self::on(ours)?, there))
    }

    /// Makes a port with separate channels for input and output. Returns the other ends, that of
    /// the output first. The output has a large buffer, so that the speed at which this process
    /// reads it does not affect the virtual machine.
    ///
    /// # Errors
    ///
    /// As [`Duplex::on`].
    pub fn split() -> anyhow::Result<(Self, OwnedFd, UnixStream)> {
        let (output, output_there) = pipe_with(PipeFlags::CLOEXEC).context("no pipes left")?;
        // With a smaller one, a busy host may be noticed.
        let _ = fcntl_setpipe_size(&output, PIPE);
        let (input, input_there) = UnixStream::pair().context("no sockets left")?;
        Ok((Self { output: output.into(), input }, output_there, input_there))
    }
}
