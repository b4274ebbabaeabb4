//! Frames from a malicious sender.

use proptest::prelude::*;
use tofu_agent::wire::{
    Exec, FrameReader, FromGuest, FromProgram, MAX_DATA, MAX_FRAME, Output, Program, Status,
    ToGuest, ToProgram, WindowSize, WireError, encode,
};

fn to_guest() -> impl Strategy<Value = ToGuest> {
    let words = || proptest::collection::vec("\\PC{0,10}", 0..4);
    let exec = (any::<bool>(), words(), any::<bool>()).prop_map(|(agent, args, stdin)| Exec {
        program: if agent { Program::Agent } else { Program::Named },
        env: args.iter().map(|word| (word.clone(), word.clone())).collect(),
        args,
        stdin,
    });
    let what = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..300).prop_map(ToProgram::Input),
        Just(ToProgram::InputEnd),
        any::<u32>().prop_map(|n| ToProgram::Credit(Output::Err, n)),
        any::<i32>().prop_map(ToProgram::Signal),
        Just(ToProgram::Kill),
        any::<(u16, u16)>()
            .prop_map(|(rows, columns)| ToProgram::Resize(WindowSize { rows, columns })),
    ];
    prop_oneof![
        (any::<u16>(), any::<u64>())
            .prop_map(|(version, session)| ToGuest::Hello { version, session }),
        (any::<u32>(), exec).prop_map(|(id, exec)| ToGuest::Exec { id, exec }),
        (any::<u32>(), what).prop_map(|(id, what)| ToGuest::To { id, what }),
    ]
}

/// All messages of a stream, and the number of invalid frames.
fn read_all(stream: &[u8]) -> (Vec<ToGuest>, usize) {
    let mut reader = FrameReader::new(stream);
    let (mut messages, mut bad) = (Vec::new(), 0);
    loop {
        match reader.receive() {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => return (messages, bad),
            Err(WireError::Io(error)) => panic!("{error}"),
            Err(_) => bad += 1,
        }
    }
}

proptest! {
    #[test]
    fn messages_arrive_as_they_were(messages in proptest::collection::vec(to_guest(), 0..8)) {
        let stream: Vec<u8> = messages.iter().flat_map(|m| encode(m).unwrap()).collect();
        prop_assert_eq!(read_all(&stream), (messages, 0));
    }

    /// The message after the next zero is received, regardless of what came before.
    #[test]
    fn garbage_ends_at_a_zero(
        garbage in proptest::collection::vec(any::<u8>(), 0..2000),
        message in to_guest(),
    ) {
        let mut stream = garbage;
        stream.push(0);
        stream.extend(encode(&message).unwrap());
        let received = read_all(&stream).0.pop();
        prop_assert_eq!(received, Some(message));
    }

    /// A message with flipped bits is another message or none, and does no harm.
    #[test]
    fn damaged_messages_harm_nobody(
        message in to_guest(),
        at in any::<prop::sample::Index>(),
        bit in 0u32..8,
    ) {
        let mut stream = encode(&message).unwrap();
        let at = at.index(stream.len());
        stream[at] ^= 1u8 << bit;
        stream.push(0);
        let _ = read_all(&stream);
        let mut reader = FrameReader::new(&stream[..]);
        while !matches!(reader.receive::<FromGuest>(), Ok(None)) {}
    }
}

/// Runs without a zero, of all lengths around those at which COBS cuts, before zeros, at the end,
/// or both.
#[test]
fn runs_of_any_length_arrive() {
    for run in (0..6).chain(250..260).chain(505..512).chain([MAX_DATA - 8]) {
        for zeros in [0, 1, 2, 300] {
            let bytes = [vec![7; run], vec![0; zeros], vec![9; run.min(600)]].concat();
            let cut = bytes.len().min(MAX_DATA);
            let what = ToProgram::Input(bytes[..cut].to_vec());
            let message = ToGuest::To { id: 0, what };
            let stream = encode(&message).unwrap();
            assert_eq!(stream.iter().position(|byte| *byte == 0), Some(stream.len() - 1));
            assert_eq!(read_all(&stream), (vec![message], 0), "{run} and {zeros} zeros");
        }
    }
}

#[test]
fn frames_are_bounded() {
    let most = FromGuest::From {
        id: u32::MAX,
        what: FromProgram::Output(Output::Out, vec![0xff; MAX_DATA]),
    };
    assert!(encode(&most).is_ok());
    let long = ToGuest::To { id: 0, what: ToProgram::Input(vec![1; MAX_FRAME]) };
    assert!(matches!(encode(&long), Err(WireError::TooLong)));
    let end = ToGuest::To { id: 1, what: ToProgram::InputEnd };
    let mut stream = vec![1; 10 * MAX_FRAME];
    stream.push(0);
    stream.extend(encode(&end).unwrap());
    assert_eq!(read_all(&stream), (vec![end.clone()], 1));
    // An incomplete message at the end is no message.
    let whole = encode(&end).unwrap();
    assert_eq!(read_all(&whole[..whole.len() - 1]), (vec![], 0));
}

#[test]
fn exit_codes_are_those_of_shells() {
    let not_run = |missing| Status::NotRun { missing, why: String::new() };
    let codes =
        [Status::Code(0), Status::Code(255), Status::Signal(2), not_run(true), not_run(false)]
            .map(|status| status.exit_code());
    assert_eq!(codes, [0, 255, 130, 127, 126]);
}
