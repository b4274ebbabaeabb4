//! Hostile peers of the process that runs a machine. Each does without end what it can do: a node's
//! agent, a console, clients of the control socket, unread output, a shard, a QEMU. None
//! of them may take memory without bound or keep answers from others.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tofu_agent::wire::{FromGuest, FromProgram, Output, encode};
use tofu_cables::{Mesh, Receive, ShardEvent, ShardStatus};
use tofu_fabric::ShardId;
use tofu_linux_tests::sdk::has_compiler;
use tofu_linux_tests::{Image, MOMENT, Place, Running, signal, wait_for};
use tofu_spec::MachineSpec;
use tofu_spec::plan::Plan;
use tofu_supervisor::shards;

/// The most memory that the process of a machine of two nodes may ever take, in KiB. About 120 MiB
/// of these are for its start.
const CEILING: u64 = 200 << 10;
/// The time for which each peer continues.
const WHILE: Duration = Duration::from_secs(3);
/// The most threads of the process while no client is hostile.
const THREADS: u64 = 64;

/// Makes this process the agent of its node, in place of the agent, and writes a file to the
/// agent's port without end. Without the file it writes and reads nothing.
const TAKE_OVER: &str = r#"
mv /usr/local/bin/tofu-agent /usr/local/bin/tofu-agent.real
printf '#!/bin/sh\nsleep 1000000\n' > /usr/local/bin/tofu-agent
chmod +x /usr/local/bin/tofu-agent
setsid sh -c '
sleep 1
until (: 3<>/dev/virtio-ports/org.tofu.agent) 2>/dev/null; do
    for process in /proc/[0-9]*; do
        case $(readlink "$process/exe") in
            *tofu-agent*) kill -9 "${process#/proc/}" ;;
        esac
    done
done
exec 3<>/dev/virtio-ports/org.tofu.agent
while [ -s /tmp/flood ] && cat /tmp/flood >&3; do :; done
sleep 1000000
' > /dev/null 2>&1 < /dev/null &
"#;

/// The value of a line of a process's status, in the unit that the kernel uses.
fn status(pid: u64, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
}

/// A process that runs a machine.
struct Machine<'a> {
    place: &'a Place,
    pid: u64,
    control: PathBuf,
}

impl<'a> Machine<'a> {
    fn new(place: &'a Place, name: &str) -> Self {
        let pid = place.ps()[0]["pid"].as_u64().unwrap();
        Self { place, pid, control: place.path().join("tofu").join(name).join("control") }
    }

    /// Checks what its peers have cost so far.
    #[track_caller]
    fn is_small(&self, what: &str) {
        let most = status(self.pid, "VmHWM");
        let (now, threads) = (status(self.pid, "VmRSS"), status(self.pid, "Threads"));
        eprintln!("{what}: {now} KiB, at most {most} KiB, {threads} threads");
        assert!(most < CEILING, "{what}: {most} KiB");
    }

    /// The same, and node 1 works.
    #[track_caller]
    fn is_well(&self, what: &str) {
        let since = Instant::now();
        let ps = self.place.ps();
        assert_eq!(ps[0]["nodes"][1]["state"], "ready", "{what}: {ps}");
        assert!(since.elapsed() < MOMENT, "{what}: ps took {:?}", since.elapsed());
        self.place.exec("1", &["true"]).ok();
        self.is_small(what);
    }

    /// Reboots node 0.
    #[track_caller]
    fn restart(&self) {
        self.place.run(&["restart", "0"]).ok();
        wait_for("node 0 is ready", Duration::from_secs(140), || {
            self.place.exec("0", &["true"]).code == Some(0)
        });
    }

    fn client(&self, request: &str) -> UnixStream {
        let mut stream = UnixStream::connect(&self.control).unwrap();
        stream.set_write_timeout(Some(MOMENT)).unwrap();
        stream.set_read_timeout(Some(MOMENT)).unwrap();
        // It may have been turned away.
        let _ = writeln!(stream, "{request}");
        stream
    }

    /// Only the threads of a machine without clients are left.
    #[track_caller]
    fn is_left_alone(&self) {
        wait_for("the clients' threads have ended", MOMENT, || {
            status(self.pid, "Threads") < THREADS
        });
    }
}

/// Messages of an agent, again and again, with the numbers that programs may have.
fn flood(what: impl Fn(u32) -> FromProgram) -> Vec<u8> {
    let all = (0..200).flat_map(|id| encode(&FromGuest::From { id, what: what(id) }).unwrap());
    all.collect::<Vec<_>>().repeat(16)
}

fn agents(machine: &Machine<'_>) {
    let out = |bytes: usize| move |_| FromProgram::Output(Output::Out, vec![b'x'; bytes]);
    let mut state = 1u32;
    let random = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let garbage = std::iter::repeat_with(random).take(1 << 16).collect();
    let floods: [(&str, Vec<u8>); 8] = [
        ("no credit", flood(|_| FromProgram::Credit(0))),
        ("credit", flood(|_| FromProgram::Credit(u32::MAX))),
        ("empty output", flood(out(0))),
        ("output", flood(out(1))),
        ("awake", encode(&FromGuest::Awake).unwrap().repeat(1 << 14)),
        ("garbage", garbage),
        ("no end of a message", vec![b'x'; 1 << 16]),
        ("nothing", Vec::new()),
    ];
    let file = machine.place.file("flood");
    for (what, bytes) in floods {
        std::fs::write(&file, bytes).unwrap();
        machine.place.run(&["cp", &file, "0:/tmp/flood"]).ok();
        machine.place.shell(0, TAKE_OVER);
        thread::sleep(Duration::from_secs(2));
        let exec = machine.place.start(&["exec", "0", "--silence", "3s", "--", "true"]);
        let cp = machine.place.start(&["cp", "--silence", "3s", &machine.place.file("big"), "0:/"]);
        thread::sleep(WHILE);
        machine.is_well(what);
        for command in [exec, cp] {
            let said = command.end(MOMENT);
            assert_ne!(said.code, Some(0), "{what}: {said:?}");
        }
        machine.restart();
    }
}

/// A guest that is stopped, and one whose console is written to without end.
fn guests(machine: &Machine<'_>) {
    let place = machine.place;
    place.run(&["pause", "0"]).ok();
    let exec = place.start(&["exec", "0", "--silence", "3s", "--", "true"]);
    let mut typed = machine.client(r#"{"request":"console","node":0}"#);
    let typing = thread::spawn(move || {
        // Ends with an error once the guest has not read for some time.
        let text = [b'x'; 4096];
        while typed.write_all(&text).is_ok() {}
    });
    machine.is_well("a node that is stopped");
    let said = exec.end(MOMENT);
    assert_eq!(said.code, Some(126), "{said:?}");
    assert!(said.err.contains("has not answered for 3 s; it is paused"), "{said:?}");
    // A signal ends a command on a node that does not answer.
    let exec = place.start(&["exec", "0", "--grace", "1s", "--", "true"]);
    thread::sleep(Duration::from_secs(1));
    signal(exec.id(), Signal::TERM);
    assert_eq!(exec.end(MOMENT).code, Some(143));
    typing.join().unwrap();
    place.run(&["resume", "0"]).ok();

    let noise = "setsid sh -c 'while :; do cat /proc/kallsyms; done > /dev/console' \
                 > /dev/null 2>&1 < /dev/null &";
    place.shell(0, noise);
    let console = r#"{"request":"console","node":0}"#;
    let viewers: Vec<_> = (0..50).map(|_| machine.client(console)).collect();
    thread::sleep(WHILE);
    machine.is_well("unread consoles");
    drop(viewers);
    machine.restart();
}

fn clients(machine: &Machine<'_>) {
    machine.is_left_alone();
    let before = status(machine.pid, "VmRSS");
    let events: Vec<_> = (0..226).map(|_| machine.client(r#"{"request":"events"}"#)).collect();
    wait_for("all follow", MOMENT, || status(machine.pid, "Threads") > 226);
    machine.is_well("226 followers of events");
    let cost = status(machine.pid, "VmRSS").saturating_sub(before);
    assert!(cost < 226 * 100, "{cost} KiB for 226 followers");
    drop(events);
    machine.is_left_alone();

    // A line without end, and a program whose windows are ignored.
    let exec = r#"{"request":"exec","node":1,"args":["sleep","1000"],"stdin":true}"#;
    let input = format!(r#"{{"request":"to","what":{{"input":"{}"}}}}"#, "A".repeat(20_000));
    for (request, more) in [
        ("", vec![b' '; 1 << 16]),
        (exec, format!("{input}\n").into_bytes()),
        (exec, br#"{"request":"to","what":{"credit":["out",4294967295]}}"#.to_vec()),
        (exec, b"{\"request\":\"to\",\"what\":{\"signal\":0}}\n".repeat(1000)),
    ] {
        let mut client = machine.client(request);
        let until = Instant::now() + WHILE;
        while Instant::now() < until && client.write_all(&more).is_ok() {}
    }
    machine.is_well("clients that send more than they may");

    // More clients than there can be, each with some of a request.
    let many: Vec<_> = (0..900).map(|_| machine.client(r#"{"request":"#)).collect();
    machine.is_small("900 clients");
    let mut last = String::new();
    let mut refused = many.last().unwrap();
    let _ = refused.read_to_string(&mut last);
    assert!(last.contains("too many commands"), "{last}");
    drop(many);
    machine.is_left_alone();
    machine.is_well("after them");
}

#[test]
fn hostile_peers_cost_bounded_memory() {
    let Some(place) = Place::new(Image::Default) else { return };
    place.up(&["--name", "held"]);
    std::fs::write(place.file("big"), vec![7; 8 << 20]).unwrap();
    let machine = Machine::new(&place, "held");
    machine.is_well("no peer");
    clients(&machine);
    guests(&machine);
    agents(&machine);
    place.run(&["down", "held"]).ok();
    place.is_clean();
}

/// The program `flood`.
fn program(place: &Place) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/flood.c");
    let program = place.path().join("flood.elf");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-static", "-o"]).arg(&program).arg(source);
    assert!(gcc.status().unwrap().success());
    program
}

/// Starts a machine whose output is not read.
fn up_unread(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn unread_output_holds_up_its_guest() {
    let Some(place) = Place::new(Image::Default) else { return };
    if !has_compiler() {
        return;
    }
    let program = program(&place);
    let args = ["up", "--linux", "--name", "unread", "--timeout", "600s", "--guest"];
    let mut up = up_unread(place.command(&[&args[..], &[program.to_str().unwrap()]].concat()));
    wait_for("both nodes are ready", Duration::from_secs(140), || {
        let ps = place.run(&["ps", "--json"]).out;
        ps.matches(r#""state":"ready""#).count() == 2
    });
    let machine = Machine::new(&place, "unread");
    thread::sleep(WHILE);
    machine.is_well("unread output");
    signal(machine.pid, Signal::TERM);
    wait_for("it ends", MOMENT, || up.try_wait().unwrap().is_some());
    assert_eq!(up.wait().unwrap().code(), Some(143));
    place.is_clean();
}

#[test]
fn endless_qemu_output_costs_nothing() {
    let Some(place) = Place::new(Image::Default) else { return };
    if !has_compiler() {
        return;
    }
    let args = ["up", "--linux", "--name", "floods", "--boot-timeout", "6s", "--nodes", "1"];
    let mut command = place.command(&args);
    command.env("TOFU_QEMU", program(&place)).env("REAL_QEMU", tofu_linux_tests::tofu());
    let up = Running::start(command, b"");
    wait_for("the node boots", MOMENT, || place.run(&["ps", "--json"]).out.contains("booting"));
    let machine = Machine::new(&place, "floods");
    thread::sleep(WHILE);
    machine.is_small("a QEMU that writes without end");
    let error = up.end(MOMENT).error();
    assert!(error.contains("did not come up within 6 s"), "{error}");
    assert!(error.len() < 4096, "{error}");
    place.is_clean();
}

/// A receiver that ignores everything.
struct Deaf;

impl Receive for Deaf {
    fn message(&self, _: ShardId, _: &[u8]) {}
    fn room(&self) {}
    fn event(&self, _: ShardEvent) {}
}

#[test]
fn thousand_streams_of_a_shard_cost_little() {
    let Some(place) = Place::new(Image::Default) else { return };
    let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = free.map(|free| free.local_addr().unwrap().to_string());
    let hosts = place.file("hosts");
    place.run(&["hosts", "init", "--dir", &hosts, &addresses[0], &addresses[1]]).ok();
    let options = ["--linux", "--shape", "2x1x1x1x1x1"];
    let shard = [&["up", "--shard", "0/2", "--join", &hosts, "--name", "parted"], &options[..]];
    let _up = place.start(&shard.concat());
    let (shape, linux) = ("2x1x1x1x1x1".parse().ok(), Some(true));
    let spec = MachineSpec { shape, linux, ..MachineSpec::default() };
    let same = shards::in_common(&Plan::new(&spec).unwrap());
    let own = "1/2".parse().unwrap();
    let joining = shards::join(Path::new(&hosts), "parted", same, own).unwrap();
    let mesh: Arc<Mesh> = Arc::new(joining.meet(&mut |_, _| {}).unwrap());
    let to: Arc<dyn Receive> = Arc::new(Deaf);
    let first: Arc<dyn Fn() + Send + Sync> = Arc::new(|| ());
    mesh.start(&to, &first).unwrap();
    mesh.tell(ShardStatus::Here);
    wait_for("node 0 is ready", Duration::from_secs(140), || {
        place.run(&["ps", "--json"]).out.contains(r#""state":"ready""#)
    });
    let machine = Machine::new(&place, "parted-part0");
    let request = |number: usize| match number % 4 {
        0 => "{\"request\":\"events\"}\n",
        1 => "{\"request\":\"console\",\"node\":0}\n",
        2 => "{\"request\":",
        _ => "",
    };
    let open = |number| {
        let mut stream = mesh.open(ShardId(0)).unwrap();
        let _ = stream.write_all(request(number).as_bytes());
        stream
    };
    let streams: Vec<_> = (0..1024).map(open).collect();
    thread::sleep(WHILE);
    let threads = status(machine.pid, "Threads");
    machine.is_small("1,024 streams of a shard");
    assert!(threads < 900, "{threads} threads");
    let since = Instant::now();
    place.exec("0", &["true"]).ok();
    assert!(since.elapsed() < MOMENT);
    drop(streams);
    machine.is_left_alone();
    mesh.leave();
    place.run(&["down", "parted-part0"]).ok();
}
