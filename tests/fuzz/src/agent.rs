//! Messages between a node's agent and the host: any bytes in either direction.
//!
//! A message that is read can be sent. Messages that wait for a slow client are merged without
//! loss.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tofu_agent::wire::{FrameReader, FromGuest, FromProgram, Output, ToGuest, WireError, encode};
use tofu_sync::queue::{WhenFull, queue};

/// Bytes of the queue that messages of programs wait in.
const QUEUE: usize = 1 << 10;

/// Runs one input. Its first byte selects the sender of the rest.
pub fn run(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    match first % 2 {
        0 => wait_for_a_client(read(data)),
        _ => drop(read::<ToGuest>(data)),
    }
}

/// The messages in a stream. Each can be sent unchanged.
fn read<T: Serialize + DeserializeOwned + PartialEq>(data: &[u8]) -> Vec<T> {
    let mut reader = FrameReader::new(data);
    let mut messages = Vec::new();
    loop {
        match reader.receive::<T>() {
            Ok(Some(message)) => {
                if let Ok(frame) = encode(&message) {
                    let again = FrameReader::new(&frame[..]).receive::<T>();
                    assert!(matches!(again, Ok(Some(again)) if again == message));
                }
                messages.push(message);
            }
            Ok(None) => return messages,
            Err(WireError::TooLong | WireError::Malformed(_)) => {}
            Err(WireError::Io(error)) => panic!("bytes in memory: {error}"),
        }
    }
}

/// The messages that a client would get from those that wait for it: merged, but complete.
fn wait_for_a_client(messages: Vec<FromGuest>) {
    let (sender, receiver) = queue(QUEUE, WhenFull::Merge);
    let mut sent = Sum::default();
    for message in messages {
        let FromGuest::From { what, .. } = message else { continue };
        sent.add(&what);
        assert!(sender.send(what).is_ok());
    }
    drop(sender);
    let mut got = Sum::default();
    receiver.iter().for_each(|what| got.add(&what));
    assert_eq!(sent, got);
}

/// The content of messages in all.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    out: [Vec<u8>; 2],
    credit: u32,
    ends: usize,
}

impl Sum {
    fn add(&mut self, what: &FromProgram) {
        match what {
            FromProgram::Output(Output::Out, bytes) => self.out[0].extend(bytes),
            FromProgram::Output(Output::Err, bytes) => self.out[1].extend(bytes),
            FromProgram::Credit(bytes) => self.credit = self.credit.saturating_add(*bytes),
            FromProgram::Ended(_) => self.ends += 1,
        }
    }
}
