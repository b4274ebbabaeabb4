//! The guest's side, addressed as by a host: the built program, over a socket.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tofu_agent::unpack::unpack;
use tofu_agent::wire::{
    Exec, FrameReader, FromGuest, FromProgram, MAX_DATA, MAX_PROGRAMS, Output, Program, Status,
    ToGuest, ToProgram, VERSION, WINDOW, encode,
};

/// Ends the agent with the test.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Host {
    _agent: Agent,
    out: UnixStream,
    input: FrameReader<UnixStream>,
}

impl Host {
    /// An agent, connected and greeted.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("port");
        let listener = UnixListener::bind(&path).unwrap();
        let agent = Command::new(env!("CARGO_BIN_EXE_tofu-agent"))
            .arg(&path)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let out = listener.accept().unwrap().0;
        out.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let input = FrameReader::new(out.try_clone().unwrap());
        let mut host = Self { _agent: Agent(agent), out, input };
        assert_eq!(host.hear(), FromGuest::Awake);
        host.greet(7);
        host
    }

    fn say(&mut self, message: &ToGuest) {
        self.out.write_all(&encode(message).unwrap()).unwrap();
    }

    fn to(&mut self, id: u32, what: ToProgram) {
        self.say(&ToGuest::To { id, what });
    }

    fn hear(&mut self) -> FromGuest {
        self.input.receive().unwrap().expect("the agent ends")
    }

    fn greet(&mut self, session: u64) {
        self.say(&ToGuest::Hello { version: VERSION, session });
        let welcome = FromGuest::Welcome { version: VERSION, session };
        while self.hear() != welcome {}
    }

    fn exec(&mut self, id: u32, args: &[&str], stdin: bool) {
        self.start(id, Program::Named, args, stdin);
    }

    fn start(&mut self, id: u32, program: Program, args: &[&str], stdin: bool) {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let env = vec![("TOFU_TEST".to_owned(), "a value".to_owned())];
        self.say(&ToGuest::Exec { id, exec: Exec { program, args, env, stdin } });
    }

    /// The first line of a program, without its end.
    fn first_output(&mut self) -> String {
        loop {
            if let FromGuest::From { what: FromProgram::Output(_, bytes), .. } = self.hear() {
                break String::from_utf8(bytes).unwrap().trim().to_owned();
            }
        }
    }

    /// Takes the messages of the programs `ids` until all have ended, granting credit.
    fn finish(&mut self, ids: &[u32]) -> HashMap<u32, (Vec<u8>, Vec<u8>, Status)> {
        let mut streams: HashMap<u32, [Vec<u8>; 2]> = HashMap::new();
        let mut ended = HashMap::new();
        while ended.len() < ids.len() {
            let FromGuest::From { id, what } = self.hear() else { panic!("not about a program") };
            assert!(ids.contains(&id), "program {id}");
            match what {
                FromProgram::Output(output, bytes) => {
                    assert!(bytes.len() <= MAX_DATA);
                    self.to(id, ToProgram::Credit(output, bytes.len() as u32));
                    streams.entry(id).or_default()[output as usize].extend(bytes);
                }
                FromProgram::Credit(_) => {}
                FromProgram::Ended(status) => {
                    let [out, err] = streams.remove(&id).unwrap_or_default();
                    ended.insert(id, (out, err, status));
                }
            }
        }
        ended
    }

    fn run(&mut self, args: &[&str]) -> (String, String, Status) {
        self.exec(1, args, false);
        let (out, err, status) = self.finish(&[1]).remove(&1).unwrap();
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), status)
    }
}

#[test]
fn streams_and_codes_come_back() {
    let mut host = Host::new();
    let (out, err, status) = host.run(&["sh", "-c", "echo $TOFU_TEST; echo oops >&2; exit 3"]);
    assert_eq!((out.as_str(), err.as_str(), status), ("a value\n", "oops\n", Status::Code(3)));
    let (_, _, status) = host.run(&["sh", "-c", "kill -9 $$"]);
    assert_eq!(status, Status::Signal(9));
    assert_eq!(status.exit_code(), 137);
    let (_, _, status) = host.run(&["/no/such/program"]);
    assert!(matches!(&status, Status::NotRun { missing: true, why } if why.contains("/no/such")));
    assert_eq!(status.exit_code(), 127);
    let (_, _, status) = host.run(&["/etc/passwd"]);
    assert_eq!(status.exit_code(), 126, "{status:?}");
    let (_, _, status) = host.run(&[]);
    assert_eq!(status.exit_code(), 127, "{status:?}");
}

#[test]
fn input_is_read_to_its_end() {
    let mut host = Host::new();
    host.exec(1, &["cat"], true);
    host.to(1, ToProgram::Input(b"one ".to_vec()));
    host.to(1, ToProgram::Input(b"two".to_vec()));
    host.to(1, ToProgram::InputEnd);
    let (out, _, status) = host.finish(&[1]).remove(&1).unwrap();
    assert_eq!((out.as_slice(), status), (b"one two".as_slice(), Status::Code(0)));
    // Without input it is empty rather than open.
    assert_eq!(host.run(&["cat"]).2, Status::Code(0));
}

#[test]
fn slow_reader_stalls_no_other() {
    let mut host = Host::new();
    host.exec(1, &["sh", "-c", "head -c 2000000 /dev/zero"], false);
    // Without a grant, no more than its window arrives.
    let mut taken = 0;
    while taken < WINDOW as usize {
        match host.hear() {
            FromGuest::From { id: 1, what: FromProgram::Output(Output::Out, bytes) } => {
                taken += bytes.len();
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(taken, WINDOW as usize);
    host.exec(2, &["echo", "here"], false);
    assert_eq!(host.finish(&[2]).remove(&2).unwrap().0, b"here\n");
    host.to(1, ToProgram::Credit(Output::Out, WINDOW));
    let (rest, _, status) = host.finish(&[1]).remove(&1).unwrap();
    assert_eq!((taken + rest.len(), status), (2_000_000, Status::Code(0)));
}

#[test]
fn programs_run_at_once_up_to_a_limit() {
    let mut host = Host::new();
    let count = MAX_PROGRAMS as u32;
    for id in 0..count {
        host.exec(id, &["cat"], true);
    }
    host.exec(count, &["true"], false);
    let refused = host.finish(&[count]).remove(&count).unwrap().2;
    assert!(matches!(&refused, Status::NotRun { missing: false, why } if why.contains("64")));
    for id in 0..count {
        host.to(id, ToProgram::Input(id.to_le_bytes().to_vec()));
        host.to(id, ToProgram::InputEnd);
    }
    let ids: Vec<u32> = (0..count).collect();
    for (id, (out, _, status)) in host.finish(&ids) {
        assert_eq!((out, status), (id.to_le_bytes().to_vec(), Status::Code(0)));
    }
}

#[test]
fn signals_reach_a_program_and_its_children() {
    let mut host = Host::new();
    let script = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done";
    // A shell cannot catch signals that were ignored when it started, as SIGINT is in programs that
    // scripts start in the background: these tests, for instance.
    host.exec(1, &["env", "--default-signal=INT", "sh", "-c", script], false);
    while !matches!(host.hear(), FromGuest::From { what: FromProgram::Output(..), .. }) {}
    host.to(1, ToProgram::Signal(2));
    let (out, _, status) = host.finish(&[1]).remove(&1).unwrap();
    assert_eq!((out.as_slice(), status), (b"caught\n".as_slice(), Status::Code(5)));

    host.exec(1, &["sh", "-c", "sleep 1000 & echo $!; wait"], false);
    let pid = host.first_output();
    host.to(1, ToProgram::Kill);
    assert_eq!(host.finish(&[1]).remove(&1).unwrap().2, Status::Signal(9));
    wait_for(|| !runs(&pid));
}

fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn wait_for(condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "timed out");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn child_with_the_output_delays_no_end() {
    let mut host = Host::new();
    let start = Instant::now();
    let (out, _, status) = host.run(&["sh", "-c", "echo word; sleep 30 &"]);
    assert_eq!((out.as_str(), status), ("word\n", Status::Code(0)));
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn new_session_ends_the_old_ones_programs() {
    let mut host = Host::new();
    host.exec(1, &["sh", "-c", "echo $$; exec sleep 1000"], false);
    let pid = host.first_output();
    // A host that died in the middle of a frame, and the next one.
    host.out.write_all(&[5, 1, 2, 3]).unwrap();
    host.out.write_all(&[0]).unwrap();
    host.greet(8);
    wait_for(|| !runs(&pid));
    assert_eq!(host.run(&["true"]).2, Status::Code(0));
}

#[test]
fn excess_input_costs_only_its_program() {
    let mut host = Host::new();
    host.exec(1, &["sleep", "1000"], true);
    for _ in 0..WINDOW as usize / MAX_DATA * 4 {
        host.to(1, ToProgram::Input(vec![0; MAX_DATA]));
    }
    assert_eq!(host.finish(&[1]).remove(&1).unwrap().2, Status::Signal(9));
    assert_eq!(host.run(&["true"]).2, Status::Code(0));
}

#[test]
fn files_move_as_archives() {
    let mut host = Host::new();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("copy");
    let mut archive = Vec::new();
    tofu_agent::files::pack_bytes("file", 0o751, b"contents", &mut archive).unwrap();
    host.start(1, Program::Agent, &["unpack", target.to_str().unwrap(), "x"], true);
    host.to(1, ToProgram::Input(archive));
    host.to(1, ToProgram::InputEnd);
    assert_eq!(host.finish(&[1]).remove(&1).unwrap().2, Status::Code(0));
    assert_eq!(std::fs::read(&target).unwrap(), b"contents");

    host.start(1, Program::Agent, &["pack", target.to_str().unwrap()], false);
    let (archive, _, status) = host.finish(&[1]).remove(&1).unwrap();
    assert_eq!(status, Status::Code(0));
    let back = folder.path().join("back");
    unpack(&archive[..], &back, "back".as_ref()).unwrap();
    assert_eq!(std::fs::read(back).unwrap(), b"contents");

    host.start(1, Program::Agent, &["pack", "/no/such/file"], false);
    let (_, err, status) = host.finish(&[1]).remove(&1).unwrap();
    assert_eq!(status, Status::Code(1));
    assert!(String::from_utf8(err).unwrap().starts_with("cannot read /no/such/file: "));
}

#[test]
fn file_with_holes_arrives_whole() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("holes"), folder.path().join("copy"));
    let file = std::fs::File::create(&from).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(b"middle", 1 << 19).unwrap();
    let mut archive = Vec::new();
    tofu_agent::files::pack(&from, &mut archive).unwrap();
    unpack(&archive[..], &to, "copy".as_ref()).unwrap();
    assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap());
}

#[test]
fn agent_ends_with_its_socket_and_programs() {
    let mut host = Host::new();
    host.exec(1, &["sh", "-c", "echo $$; exec sleep 1000"], false);
    let pid = host.first_output();
    host.out.shutdown(std::net::Shutdown::Both).unwrap();
    wait_for(|| !runs(&pid));
    let mut rest = Vec::new();
    let _ = host.out.read_to_end(&mut rest);
    assert!(Path::new("/proc/self").exists());
}
