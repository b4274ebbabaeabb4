//! Frames and archives from a malicious sender.

use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use tofu_agent::files;
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

    /// Whatever came before, the message after the next zero is received.
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

    /// Archives of any bytes unpack or are refused.
    #[test]
    fn damaged_archives_harm_nobody(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = Vec::new();
        files::pack_bytes("name", 0o644, b"some contents", &mut archive).unwrap();
        archive[at.index(1024)] = byte;
        let target = folder.path().join("to");
        let _ = files::unpack(&archive[..], &target);
        for entry in fs::read_dir(folder.path()).unwrap() {
            let name = entry.unwrap().file_name();
            prop_assert_eq!(name, "to");
        }
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

/// A folder with all kinds of entries.
fn sample() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("dir");
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/file"), "text").unwrap();
    fs::set_permissions(dir.join("sub/file"), fs::Permissions::from_mode(0o4751)).unwrap();
    symlink("sub/file", dir.join("link")).unwrap();
    fs::set_permissions(dir.join("sub"), fs::Permissions::from_mode(0o555)).unwrap();
    folder
}

#[test]
fn folders_are_copied_with_modes_and_links() {
    let folder = sample();
    let mut archive = Vec::new();
    assert_eq!(files::pack(&folder.path().join("dir"), &mut archive).unwrap(), 0);
    // To a new name, and into an existing folder.
    let there = folder.path().join("there");
    fs::create_dir(&there).unwrap();
    for (to, at) in [("new", "new"), ("there", "there/dir"), ("there/", "there/dir")] {
        files::unpack(&archive[..], &folder.path().join(to)).unwrap();
        let at = folder.path().join(at);
        assert_eq!(fs::read(at.join("sub/file")).unwrap(), b"text");
        let mode = |path: &str| fs::metadata(at.join(path)).unwrap().permissions().mode() & 0o7777;
        // Without the set-user bit.
        assert_eq!((mode("sub/file"), mode("sub")), (0o751, 0o555));
        assert_eq!(fs::read_link(at.join("link")).unwrap().to_str(), Some("sub/file"));
    }
    let error = files::unpack(&archive[..], &folder.path().join("no/where")).unwrap_err();
    assert!(error.to_string().starts_with("there is no folder "), "{error}");
    let error = files::pack(std::path::Path::new("/"), Vec::new()).unwrap_err();
    assert!(error.to_string().contains("has no name of its own"), "{error}");
}

#[test]
fn archives_stay_in_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let inside = folder.path().join("inside");
    fs::create_dir(&inside).unwrap();
    let header = |kind: tar::EntryType, size: u64| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o644);
        header
    };
    // A link out of the folder, and a file behind it.
    let mut archive = tar::Builder::new(Vec::new());
    let mut link = header(tar::EntryType::Symlink, 0);
    archive.append_link(&mut link, "dir/link", &outside).unwrap();
    let mut file = header(tar::EntryType::Regular, 4);
    archive.append_data(&mut file, "dir/link/evil", &b"evil"[..]).unwrap();
    let through_link = archive.into_inner().unwrap();
    // A path out of the folder.
    let mut archive = tar::Builder::new(Vec::new());
    let mut file = header(tar::EntryType::Regular, 4);
    file.as_old_mut().name[..14].copy_from_slice(b"../outside/bad");
    file.set_cksum();
    archive.append(&file, &b"evil"[..]).unwrap();
    let upwards = archive.into_inner().unwrap();
    // A device.
    let mut archive = tar::Builder::new(Vec::new());
    let mut device = header(tar::EntryType::Char, 0);
    archive.append_data(&mut device, "dir", &b""[..]).unwrap();
    let device = archive.into_inner().unwrap();
    for archive in [through_link, upwards, device, Vec::new()] {
        files::unpack(&archive[..], &inside).unwrap_err();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 0);
    }
}
