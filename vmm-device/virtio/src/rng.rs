//! The entropy source (1.2, 5.4): fills the driver's buffers with the host's random bytes.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::device::{Device, Identity, Io, Work};
use crate::regs::kind;
use crate::ring::Broken;

const QUEUE: usize = 0;
const QUEUE_SIZE: u16 = 64;
/// The most bytes that a request gets (ours). The driver learns the number from the used ring.
const REQUEST: usize = 4096;
/// Requests in a turn.
const TURN: usize = 16;

/// An entropy source. A request gets at most 4096 bytes.
#[derive(Debug, Default)]
pub struct Rng(());

impl Rng {
    /// The host's random bytes, from getrandom(2).
    pub fn new() -> Self {
        Self::default()
    }
}

impl Device for Rng {
    fn identity(&self) -> Identity {
        Identity {
            kind: kind::RNG,
            // No class says what this is.
            class: 0xff_00_00,
            features: 0,
            queues: vec![QUEUE_SIZE],
            config: Vec::new(),
        }
    }

    fn work(&mut self, io: &mut Io<'_>) -> Result<Work, Broken> {
        for _ in 0..TURN {
            let Some(chain) = io.pop(QUEUE)? else { return Ok(Work::Done) };
            if chain.writable() == 0 {
                return Err(Broken("a request for random bytes with no room for any"));
            }
            let mut bytes = [0; REQUEST];
            let bytes = &mut bytes[..chain.writable().min(REQUEST as u64) as usize];
            // Signals cut longer reads than 256 bytes short.
            let len = match getrandom(&mut *bytes, GetRandomFlags::empty()) {
                Ok(len) => len,
                Err(error) => {
                    io.complain(&format_args!("random bytes of the host: {error}"));
                    0
                }
            };
            chain.write(io.memory(), 0, &bytes[..len])?;
            io.complete(QUEUE, chain, len as u32)?;
        }
        Ok(Work::More)
    }

    fn reset(&mut self) {}
}
