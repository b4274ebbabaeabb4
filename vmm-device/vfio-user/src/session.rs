//! The conversation with a client: the version of the protocol, then requests and answers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::io::Errno;
use serde::Deserialize;
use smallvec::SmallVec;

use crate::channel::{Channel, Message};
use crate::client_device::ClientDevice;
use crate::error::Error;
use crate::memory::{Backing, HUGE};
use crate::process::ClientProcess;
use crate::requests;
use crate::sent::SentFd;
use crate::wire::{
    Fields, HEADER_SIZE, MAX_DATA, MAX_FDS, MAX_MAPS_TOLD, MAX_SENT_FDS, PAGE_SIZE, VERSION,
    command,
};

/// The longest description of a client's capabilities, in bytes.
const MAX_CAPABILITIES: usize = 64 << 10;

/// One client.
pub(crate) struct Session<'a> {
    client: &'a ClientDevice,
    /// The process that ranges without a descriptor are memory of.
    process: Option<Arc<ClientProcess>>,
    channel: Channel,
    /// The reply under construction, and the descriptors to send with it.
    reply: Vec<u8>,
    fds: Vec<SentFd>,
    /// The number of descriptors the client takes with a message.
    takes_fds: usize,
    /// The user knows that memory cannot be reached.
    told: bool,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        client: &'a ClientDevice,
        process: Option<Arc<ClientProcess>>,
        socket: UnixStream,
    ) -> Self {
        Self {
            client,
            process,
            channel: Channel::new(socket),
            reply: Vec::new(),
            fds: Vec::new(),
            takes_fds: 1,
            told: false,
        }
    }

    /// Serves the client until it leaves.
    ///
    /// # Errors
    ///
    /// If the client broke the protocol.
    pub(crate) fn run(&mut self) -> Result<(), Error> {
        if !self.negotiate()? {
            return Ok(());
        }
        while self.lives()
            && let Some(Message { header, fds }) = self.channel.receive()?
        {
            self.start_reply();
            let result = fds.and_then(|fds| self.execute(header.command, fds));
            if let Err(errno) = result {
                log::debug!("command {} of a vfio-user client: {errno}", header.command);
                self.tell_of_memory(header.command, errno);
            }
            let fds: SmallVec<[BorrowedFd<'_>; 1]> = self.fds.iter().map(AsFd::as_fd).collect();
            self.channel.reply(header, &mut self.reply, result, &fds)?;
        }
        Ok(())
    }

    /// Reports, once, memory that the device cannot reach: the guest would wait for ever.
    fn tell_of_memory(&mut self, command: u16, errno: Errno) {
        if command != command::DMA_MAP || std::mem::replace(&mut self.told, true) {
            return;
        }
        log::warn!(
            "node {}: the client's memory cannot be reached ({errno}): {}",
            self.client.device.coords(),
            why_unreachable(self.client.memory.backing(), errno)
        );
    }

    /// Waits for a message; returns false if there will be none, as the client's process is no
    /// more.
    fn lives(&self) -> bool {
        let Some(process) = self.process.as_ref().filter(|_| !self.channel.has_read_ahead()) else {
            return true;
        };
        process.wait(self.channel.socket()).unwrap_or(false)
    }

    fn start_reply(&mut self) {
        self.fds.clear();
        self.reply.clear();
        self.reply.resize(HEADER_SIZE, 0);
    }

    /// Negotiates the protocol's version; returns false if the client disconnected without a
    /// message.
    fn negotiate(&mut self) -> Result<bool, Error> {
        let Some(Message { header, .. }) = self.channel.receive()? else {
            return Ok(false);
        };
        self.start_reply();
        let result = match header.command {
            command::VERSION => self.version(),
            _ => Err(Errno::INVAL),
        };
        self.channel.reply(header, &mut self.reply, result, &[])?;
        if result.is_ok() { Ok(true) } else { Err(Error::Version) }
    }

    fn version(&mut self) -> Result<(), Errno> {
        let mut body = Fields(self.channel.body());
        let (major, minor) = (body.u16()?, body.u16()?);
        let takes_fds = check_capabilities(body.0)?;
        if major != VERSION.0 {
            return Err(Errno::OPNOTSUPP);
        }
        let capabilities = serde_json::json!({ "capabilities": {
            "max_msg_fds": MAX_FDS,
            "max_data_xfer_size": MAX_DATA,
            "max_dma_maps": self.client.memory.limits().ranges.min(MAX_MAPS_TOLD),
            "pgsizes": PAGE_SIZE,
            "write_multiple": true,
        }});
        self.takes_fds = takes_fds;
        self.reply.extend_from_slice(&VERSION.0.to_ne_bytes());
        self.reply.extend_from_slice(&minor.min(VERSION.1).to_ne_bytes());
        self.reply.extend_from_slice(capabilities.to_string().as_bytes());
        self.reply.push(0);
        Ok(())
    }

    fn execute(&mut self, command: u16, fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let body = Fields(self.channel.body());
        let (client, reply) = (self.client, &mut self.reply);
        match command {
            command::DMA_MAP => requests::dma_map(client, body, fds),
            command::DMA_UNMAP => requests::dma_unmap(client, body, reply),
            command::DEVICE_GET_INFO => requests::device_info(body, reply),
            command::DEVICE_GET_REGION_INFO => {
                requests::region_info(client, body, reply, &mut self.fds, self.takes_fds)
            }
            command::DEVICE_GET_REGION_IO_FDS => {
                requests::region_io_fds(client, body, reply, &mut self.fds, self.takes_fds)
            }
            command::DEVICE_GET_IRQ_INFO => requests::irq_info(client, body, reply),
            command::DEVICE_SET_IRQS => requests::set_irqs(client, body, fds),
            command::REGION_READ => requests::region_read(client, body, reply),
            command::REGION_WRITE => requests::region_write(client, body, reply),
            command::REGION_WRITE_MULTI => requests::region_write_multi(client, body, reply),
            command::DEVICE_RESET => {
                client.reset();
                Ok(())
            }
            command::VERSION => Err(Errno::INVAL),
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

/// The reason why memory of a client cannot be reached, for the user.
fn why_unreachable(backing: Backing, errno: Errno) -> &'static str {
    match backing {
        Backing::Process => "its process has unmapped it, or may not write it",
        Backing::Sealed if errno == HUGE => {
            "it is of huge pages, which the host may run out of; --any-memory takes it nevertheless"
        }
        Backing::Sealed => {
            "it must be shared, as by memory-backend-memfd,share=on of QEMU; --any-memory takes \
             files that are not sealed, too"
        }
        Backing::Any => "it must be shared, as by memory-backend-memfd,share=on of QEMU",
    }
}

/// The capabilities of a client. The server sends only as much data as was requested.
#[derive(Deserialize)]
struct ClientVersion {
    #[serde(default)]
    capabilities: ClientCapabilities,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClientCapabilities {
    max_msg_fds: Option<u64>,
    max_data_xfer_size: Option<u64>,
}

/// Returns how many descriptors the client takes with a message.
fn check_capabilities(data: &[u8]) -> Result<usize, Errno> {
    /// The protocol's defaults.
    const DEFAULT_FDS: u64 = 1;
    if data.is_empty() {
        return Ok(DEFAULT_FDS as usize);
    }
    let json = data.strip_suffix(&[0]).filter(|json| json.len() <= MAX_CAPABILITIES);
    let version: ClientVersion =
        json.and_then(|json| serde_json::from_slice(json).ok()).ok_or(Errno::INVAL)?;
    let ClientCapabilities { max_msg_fds, max_data_xfer_size } = version.capabilities;
    log::debug!("vfio-user client: {max_msg_fds:?} descriptors, {max_data_xfer_size:?} bytes");
    Ok(max_msg_fds.unwrap_or(DEFAULT_FDS).min(MAX_SENT_FDS as u64) as usize)
}
