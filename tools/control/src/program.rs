//! A program on a Linux node, as seen from a command.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail};
use tofu_agent::credit::Credit;
use tofu_agent::wire::{Exec, FromProgram, MAX_DATA, Output, Status, ToProgram, WINDOW};
use tofu_sync::lock;

use crate::connection::Connection;
use crate::lines::encode;
use crate::protocol::{ExecRequest, Reply, Request};

/// A program on a node, as seen from a command.
#[derive(Clone)]
pub struct RemoteProgram {
    out: Arc<Mutex<UnixStream>>,
    input: Arc<Mutex<Option<Connection>>>,
    credit: Arc<Credit>,
}

impl RemoteProgram {
    /// Starts the program.
    pub fn start(control: &Path, node: u32, exec: Exec) -> anyhow::Result<Self> {
        Self::ask(control, ExecRequest { node, exec, silence_ms: None })
    }

    /// Starts the program. It is given up once its node has answered nothing for `silence`.
    pub fn start_within(
        control: &Path,
        node: u32,
        exec: Exec,
        silence: Duration,
    ) -> anyhow::Result<Self> {
        let silence_ms = u64::try_from(silence.as_millis()).ok();
        Self::ask(control, ExecRequest { node, exec, silence_ms })
    }

    fn ask(control: &Path, request: ExecRequest) -> anyhow::Result<Self> {
        let connection = Connection::open(control, &Request::Exec(request))?;
        let out = Arc::new(Mutex::new(connection.stream()?));
        let input = Arc::new(Mutex::new(Some(connection)));
        Ok(Self { out, input, credit: Arc::new(Credit::new(WINDOW)) })
    }

    /// Sends it a message.
    pub fn say(&self, what: ToProgram) -> anyhow::Result<()> {
        let line = encode(&Request::To { what })?;
        let mut out = lock(&self.out);
        out.write_all(&line).context("the machine has ended")
    }

    /// Sends it everything that can be read from `input`.
    pub fn feed(&self, mut input: impl Read) {
        let mut buffer = vec![0; MAX_DATA];
        loop {
            let most = self.credit.take(MAX_DATA);
            match input.read(&mut buffer[..most]) {
                Ok(0) => break,
                Ok(n) => {
                    self.credit.grant((most - n) as u32);
                    if self.say(ToProgram::Input(buffer[..n].to_vec())).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.credit.grant(most as u32);
                }
                // Ends the input as a closed terminal would.
                Err(_) => break,
            }
        }
        // If this fails, the program has ended.
        let _ = self.say(ToProgram::InputEnd);
    }

    /// Lets a [`RemoteProgram::feed`] that waits for credit notice that the program has ended, and
    /// return.
    pub fn give_up(&self) {
        self.credit.grant(u32::MAX);
    }

    /// Passes its output to `output` until it ends.
    ///
    /// # Errors
    ///
    /// If the node or machine is gone, or if `output` fails, in which case the program is killed.
    pub fn follow(
        &self,
        mut output: impl FnMut(Output, &[u8]) -> io::Result<()>,
    ) -> anyhow::Result<Status> {
        let connection = lock(&self.input).take();
        let Some(mut connection) = connection else { bail!("the program is followed already") };
        loop {
            match connection.answer()? {
                Reply::Program { what: FromProgram::Output(stream, bytes) } => {
                    output(stream, &bytes)?;
                    // If the program has ended, it has reported that in the next message.
                    let _ = self.say(ToProgram::Credit(stream, bytes.len() as u32));
                }
                Reply::Program { what: FromProgram::Credit(bytes) } => self.credit.grant(bytes),
                Reply::Program { what: FromProgram::Ended(status) } => return Ok(status),
                _ => bail!("not an answer"),
            }
        }
    }
}
