//! Lines of a machine's control socket: requests of a client, and replies of a shard.
//!
//! A message that is read can be sent, as one line.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tofu_control::lines::{LineError, LineReader, encode};
use tofu_control::protocol::{Reply, Request};

/// The most bytes of a line.
const MOST: usize = 1 << 10;

/// Runs one input. Its first byte selects the sender of the rest.
pub fn run(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    match first % 2 {
        0 => read::<Request>(data),
        _ => read::<Reply>(data),
    }
}

/// Reads all messages. Each of them can be sent again.
fn read<T: Serialize + DeserializeOwned>(data: &[u8]) {
    let mut reader = LineReader::new(data, MOST);
    loop {
        match reader.receive::<T>() {
            Ok(Some(message)) => {
                let line = encode(&message).expect("what was read can be written");
                assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
                let again = LineReader::new(&line[..], line.len() + 1).receive::<T>();
                assert!(matches!(again, Ok(Some(_))));
            }
            Ok(None) | Err(LineError::TooLong(_)) => return,
            Err(LineError::Malformed(_)) => {}
            Err(LineError::Io(error)) => panic!("bytes in memory: {error}"),
        }
    }
}
