//! Child processes enter a sandbox and try things; their parents check how they end.
//!
//! A child is this test program again, running the ignored test `child` alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use tofu_sandbox::{
    Access, EXIT_VIOLATION, Error, Policy, Role, Sandbox, Support, User, answer_connect,
    confine_program, hold_connects,
};
use vmm_sys_util::epoll::Epoll;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};
use vmm_sys_util::timerfd::TimerFd;

const HINT: &str = "Run with --no-sandbox to go without.";
/// The line that a child prints when it reaches its end.
const SURVIVED: &str = "the child has survived";

/// Runs `child` with this task and folder.
fn run(task: &str, folder: &Path) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--ignored", "--nocapture"])
        .env("TOFU_SANDBOX_TASK", task)
        .env("TOFU_SANDBOX_FOLDER", folder)
        .env("RUST_BACKTRACE", "1")
        .output()
        .unwrap()
}

#[track_caller]
fn survives(task: &str, folder: &Path) {
    let output = run(task, folder);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains(SURVIVED), "{task}: {text}{errors}");
}

#[track_caller]
fn dies(role: Role, what: &str, call: &str, number: libc::c_long) {
    let output = run(&format!("{} {what}", role.name()), Path::new("/"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(EXIT_VIOLATION), "{what}: {errors}");
    assert_eq!(output.status.signal(), None);
    let line = format!(
        "tofu: sandbox: a thread of role {} made system call {number} ({call}), which that role \
         may not; the process ends. {HINT}\n",
        role.name()
    );
    assert!(errors.ends_with(&line), "{what}: {errors}");
}

/// Returns true if this host can run test `name`.
fn filters(name: &str) -> bool {
    let support = Support::probe().seccomp;
    if let Err(reason) = &support {
        eprintln!("SKIP {name}: {reason}");
    }
    support.is_ok()
}

fn call(number: libc::c_long, args: [usize; 3]) -> io::Result<libc::c_long> {
    // SAFETY: the callers below pass descriptors that are not open, null pointers, or requests
    // for new mappings, which do nothing to this program's memory.
    let result = unsafe { libc::syscall(number, args[0], args[1], args[2], 0, 0, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The body of a child process.
#[test]
#[ignore = "runs in child processes of the other tests"]
fn child() {
    let Ok(task) = std::env::var("TOFU_SANDBOX_TASK") else {
        return;
    };
    let folder = PathBuf::from(std::env::var("TOFU_SANDBOX_FOLDER").unwrap());
    let (role, what) = task.split_once(' ').unwrap();
    if role == "files" {
        files(what, &folder);
    } else if role == "program" {
        program(what, &folder);
    } else {
        let role = Role::ALL.into_iter().find(|known| known.name() == role).unwrap();
        let sandbox = Arc::new(Sandbox::new(Policy::new().with_hint(HINT)).unwrap());
        confined(&sandbox, role, what);
    }
    println!("{SURVIVED}");
}

/// Tries `what` on a thread that has entered `role`.
fn confined(sandbox: &Arc<Sandbox>, role: Role, what: &str) {
    let (pair, fd) = (UnixStream::pair().unwrap(), EventFd::new(0).unwrap());
    let file = tempfile::tempfile().unwrap();
    let start = sandbox.thread_start(role);
    let body = what.to_owned();
    let thread = thread::spawn(move || {
        start();
        attempt(&body, pair, &fd, file);
    });
    let panicked = thread.join().is_err();
    assert_eq!(panicked, what == "panic");
}

fn attempt(what: &str, mut pair: (UnixStream, UnixStream), fd: &EventFd, mut file: File) {
    let refused = |result: io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied, "{what}");
    };
    // The call reached the kernel, but there is no such descriptor.
    let no_fd = |result: io::Result<libc::c_long>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EBADF), "{what}");
    };
    let kvm = |number: usize| call(libc::SYS_ioctl, [999, 0xae00 | number, 0]);
    match what {
        "ordinary" => ordinary(fd),
        "panic" => panic!("on purpose"),
        "read a file" => refused(fs::read("/etc/passwd").map(drop)),
        "stat a file" => refused(fs::metadata("/etc/passwd").map(drop)),
        "open for writing" => drop(OpenOptions::new().append(true).open("/dev/null")),
        "events" => events(fd),
        "image" => image(&mut file),
        "stream" => {
            pair.0.write_all(b"x").unwrap();
            pair.1.read_exact(&mut [0]).unwrap();
        }
        "kick" => kick(),
        "Ctrl-C" => ctrl_c(),
        "KVM_RUN" => no_fd(kvm(0x80)),
        "KVM_SIGNAL_MSI" => no_fd(kvm(0xa5)),
        "KVM_SET_USER_MEMORY_REGION" => no_fd(kvm(0x46)),
        "KVM_CREATE_VM" => no_fd(kvm(0x01)),
        "TIOCSTI" => no_fd(call(libc::SYS_ioctl, [999, libc::TIOCSTI as usize, 0])),
        "read a link" => drop(fs::read_link("/proc/self/fd/0").unwrap()),
        "poll" => poll(fd),
        "accept4" => no_fd(call(libc::SYS_accept4, [999, 0, 0])),
        "recvmsg" => no_fd(call(libc::SYS_recvmsg, [999, 0, 0])),
        "execve" => drop(call(libc::SYS_execve, [0, 0, 0])),
        #[cfg(target_arch = "x86_64")]
        "fork" => drop(call(libc::SYS_fork, [0, 0, 0])),
        "a new process" => drop(call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0])),
        "a thread" => thread::spawn(|| ()).join().unwrap(),
        "a program" => drop(Command::new("/bin/true").status()),
        "socket" => drop(std::net::UdpSocket::bind("127.0.0.1:0")),
        "a UNIX socket" => drop(UnixStream::pair().unwrap()),
        "ptrace" => drop(call(libc::SYS_ptrace, [0, 0, 0])),
        "kill" => drop(call(libc::SYS_kill, [1, 0, 0])),
        "tgkill of another process" => drop(call(libc::SYS_tgkill, [1, 1, 0])),
        "io_uring" => drop(call(libc::SYS_io_uring_setup, [1, 0, 0])),
        "mount" => drop(call(libc::SYS_mount, [0, 0, 0])),
        "bpf" => drop(call(libc::SYS_bpf, [0, 0, 0])),
        "handling SIGSYS" => drop(call(libc::SYS_rt_sigaction, [libc::SIGSYS as usize, 0, 0])),
        "memory with code" => {
            let rights = (libc::PROT_READ | libc::PROT_EXEC) as usize;
            drop(call(libc::SYS_mmap, [0, 4096, rights]));
        }
        "making memory code" => {
            drop(call(libc::SYS_mprotect, [0, 0, libc::PROT_EXEC as usize]));
        }
        other => unreachable!("{other}"),
    }
}

/// Interrupts its own thread, as a virtual processor is.
fn kick() {
    extern "C" fn ignore(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
    register_signal_handler(SIGRTMIN(), ignore).unwrap();
    // SAFETY: the thread is this one.
    unsafe { libc::pthread_kill(libc::pthread_self(), SIGRTMIN()) };
}

/// Gets signals that end a process without a handler, unless they are blocked.
fn ctrl_c() {
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1] {
        // SAFETY: the thread is this one.
        unsafe { libc::pthread_kill(libc::pthread_self(), number) };
    }
}

/// Asks if an event can be signalled.
fn poll(fd: &EventFd) {
    use std::os::fd::AsRawFd;
    let mut ready = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one descriptor, as said.
    assert_eq!(unsafe { libc::poll(&raw mut ready, 1, 0) }, 1);
}

/// Writes, reads and syncs the file of a disk.
fn image(file: &mut File) {
    use std::io::{Seek, SeekFrom};
    file.write_all(&[1; 4096]).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_exact(&mut [0; 4096]).unwrap();
    file.sync_data().unwrap();
}

/// Waits for an event and for a timer.
fn events(fd: &EventFd) {
    let epoll = Epoll::new().unwrap();
    let event = vmm_sys_util::epoll::EpollEvent::new(vmm_sys_util::epoll::EventSet::IN, 7);
    use std::os::fd::AsRawFd;
    epoll.ctl(vmm_sys_util::epoll::ControlOperation::Add, fd.as_raw_fd(), event).unwrap();
    fd.write(1).unwrap();
    let mut events = [vmm_sys_util::epoll::EpollEvent::default()];
    assert_eq!(epoll.wait(-1, &mut events).unwrap(), 1);
    let mut timer = TimerFd::new().unwrap();
    timer.reset(Duration::from_millis(1), None).unwrap();
    timer.wait().unwrap();
}

/// The work of any thread: memory, locks, time, events, output, log lines.
fn ordinary(fd: &EventFd) {
    let mut large: Vec<Vec<u8>> = (0..64).map(|i| vec![i; 1 << 20]).collect();
    large.iter_mut().for_each(|memory| memory.extend_from_slice(&[1; 4096]));
    large.truncate(1);
    let (sender, receiver) = mpsc::channel();
    sender.send(large.len()).unwrap();
    assert_eq!(receiver.recv().unwrap(), 1);
    let (lock, condition) = (Mutex::new(false), Condvar::new());
    let guard = lock.lock().unwrap();
    drop(condition.wait_timeout(guard, Duration::from_millis(2)).unwrap());
    thread::sleep(Duration::from_millis(1));
    thread::yield_now();
    let another = fd.try_clone().unwrap();
    another.write(3).unwrap();
    assert_eq!(fd.read().unwrap(), 3);
    println!("{:?} {:?}", std::time::Instant::now(), std::time::SystemTime::now());
    eprintln!("{:?}", thread::available_parallelism().is_ok());
    assert!(std::collections::HashMap::<u8, u8>::new().is_empty());
}

#[test]
fn every_role_may_do_what_all_threads_do() {
    if !filters("every_role_may_do_what_all_threads_do") {
        return;
    }
    for role in Role::ALL {
        survives(&format!("{} ordinary", role.name()), Path::new("/"));
        survives(&format!("{} panic", role.name()), Path::new("/"));
    }
}

#[test]
fn each_role_may_do_its_work() {
    if !filters("each_role_may_do_its_work") {
        return;
    }
    for task in [
        "vcpu KVM_RUN",
        "vcpu KVM_SIGNAL_MSI",
        "vcpu KVM_SET_USER_MEMORY_REGION",
        "vcpu kick",
        "engine events",
        "engine KVM_SIGNAL_MSI",
        "engine KVM_SET_USER_MEMORY_REGION",
        "virtio events",
        "virtio image",
        "virtio stream",
        "virtio KVM_SIGNAL_MSI",
        "reader stream",
        "reader open for writing",
        "reader a thread",
        "vfio-user events",
        "vfio-user stream",
        "vfio-user accept4",
        "vfio-user KVM_SIGNAL_MSI",
        "vfio-user read a link",
        "vcpu poll",
        "vfio-user recvmsg",
        "main events",
        "main image",
        "main a thread",
        "main a UNIX socket",
        "main KVM_CREATE_VM",
    ] {
        survives(task, Path::new("/"));
    }
}

/// A handler on such a thread would make calls that its role may not.
#[test]
fn signals_to_the_process_are_left_to_the_main_thread() {
    if !filters("signals_to_the_process_are_left_to_the_main_thread") {
        return;
    }
    for role in Role::ALL.into_iter().filter(|role| *role != Role::Main) {
        survives(&format!("{} Ctrl-C", role.name()), Path::new("/"));
    }
    let output = run("main Ctrl-C", Path::new("/"));
    // Programs that a shell starts in the background ignore the first of the signals.
    let signal = output.status.signal();
    assert!(matches!(signal, Some(libc::SIGINT | libc::SIGTERM)), "{signal:?}");
}

/// The run-time library sometimes reads files, and copes with being refused.
#[test]
fn files_are_refused_without_ado() {
    if !filters("files_are_refused_without_ado") {
        return;
    }
    for role in Role::ALL.into_iter().filter(|role| *role != Role::Main) {
        survives(&format!("{} read a file", role.name()), Path::new("/"));
        survives(&format!("{} stat a file", role.name()), Path::new("/"));
    }
}

#[test]
fn forbidden_calls_end_the_process() {
    if !filters("forbidden_calls_end_the_process") {
        return;
    }
    for role in Role::ALL {
        for (what, call, number) in [
            ("execve", "execve", libc::SYS_execve),
            #[cfg(target_arch = "x86_64")]
            ("fork", "fork", libc::SYS_fork),
            ("a new process", "clone", libc::SYS_clone),
            ("socket", "socket", libc::SYS_socket),
            ("ptrace", "ptrace", libc::SYS_ptrace),
            ("tgkill of another process", "tgkill", libc::SYS_tgkill),
            ("io_uring", "io_uring_setup", libc::SYS_io_uring_setup),
            ("mount", "mount", libc::SYS_mount),
            ("bpf", "bpf", libc::SYS_bpf),
            ("TIOCSTI", "ioctl", libc::SYS_ioctl),
            ("memory with code", "mmap", libc::SYS_mmap),
            ("making memory code", "mprotect", libc::SYS_mprotect),
        ] {
            dies(role, what, call, number);
        }
    }
}

#[test]
fn threads_may_not_do_what_main_may() {
    if !filters("threads_may_not_do_what_main_may") {
        return;
    }
    for role in Role::ALL.into_iter().filter(|role| *role != Role::Main) {
        for (what, call, number) in [
            ("a UNIX socket", "socketpair", libc::SYS_socketpair),
            ("kill", "kill", libc::SYS_kill),
            ("KVM_CREATE_VM", "ioctl", libc::SYS_ioctl),
            ("handling SIGSYS", "rt_sigaction", libc::SYS_rt_sigaction),
        ] {
            dies(role, what, call, number);
        }
        if role != Role::Reader {
            dies(role, "open for writing", "openat", libc::SYS_openat);
        }
    }
    dies(Role::Reader, "accept4", "accept4", libc::SYS_accept4);
    // The C library creates threads with all signals blocked, SIGSYS too: so there is no line, only
    // the end.
    let output = run("vcpu a thread", Path::new("/"));
    assert_eq!(output.status.signal(), Some(libc::SIGSYS));
    dies(Role::Vcpu, "events", "epoll_create1", libc::SYS_epoll_create1);
    dies(Role::Vcpu, "image", "lseek", libc::SYS_lseek);
    dies(Role::Engine, "KVM_RUN", "ioctl", libc::SYS_ioctl);
    dies(Role::Engine, "accept4", "accept4", libc::SYS_accept4);
    dies(Role::Virtio, "KVM_RUN", "ioctl", libc::SYS_ioctl);
    dies(Role::Virtio, "KVM_SET_USER_MEMORY_REGION", "ioctl", libc::SYS_ioctl);
    dies(Role::Virtio, "recvmsg", "recvmsg", libc::SYS_recvmsg);
    dies(Role::Cable, "KVM_RUN", "ioctl", libc::SYS_ioctl);
    dies(Role::Cable, "recvmsg", "recvmsg", libc::SYS_recvmsg);
    dies(Role::VfioUser, "KVM_SET_USER_MEMORY_REGION", "ioctl", libc::SYS_ioctl);
}

/// A thread that has not entered a role is not affected by those that have.
#[test]
fn other_threads_stay_free() {
    if !filters("other_threads_stay_free") {
        return;
    }
    let sandbox = Arc::new(Sandbox::new(Policy::new()).unwrap());
    let start = sandbox.thread_start(Role::Vcpu);
    thread::spawn(move || start()).join().unwrap();
    fs::read("/etc/passwd").unwrap();
    UnixStream::pair().unwrap();
}

/// The body of a child that restricts its files.
fn files(what: &str, folder: &Path) {
    let denied = |result: io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied, "{what}");
    };
    let (secret, listed) = (folder.join("secret"), folder.join("listed"));
    let run = folder.join("run");
    let mut open = File::open(&secret).unwrap();
    let policy = Policy::new()
        .allow(&listed, Access::Read)
        .allow(folder.join("changed"), Access::Write)
        .allow(&run, Access::Folder)
        .allow("/dev/null", Access::Device)
        .allow_if_present(folder.join("none"), Access::Read)
        .allow_runtime();
    let sandbox = Sandbox::new(policy).unwrap();
    // The test harness has threads, which existed before.
    let others = AtomicBool::new(false);
    let (sender, receiver) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let others = &others;
        let secret = &secret;
        scope.spawn(move || {
            let _ = receiver.recv();
            others.store(File::open(secret).is_ok(), SeqCst);
        });
        let entered = sandbox.enter_process().unwrap();
        assert!(entered.files);
        drop(sender);
        let told = entered.missing.iter().any(|line| line.contains("threads that were there"));
        assert_eq!(told, Support::probe().landlock.unwrap() < 8, "{entered:?}");
    });
    assert_eq!(others.load(SeqCst), Support::probe().landlock.unwrap() < 8);

    let check = || {
        denied(File::open(&secret).map(drop));
        denied(fs::read_dir(folder).map(drop));
        denied(File::open("/etc/passwd").map(drop));
        denied(OpenOptions::new().write(true).open(&listed).map(drop));
        denied(fs::write(folder.join("new"), "x"));
        denied(fs::remove_file(&listed));
        denied(Command::new("/bin/true").status().map(drop));
    };
    check();
    thread::scope(|scope| scope.spawn(check).join()).unwrap();
    assert_eq!(fs::read(&listed).unwrap(), b"for all to see");
    OpenOptions::new().append(true).open(folder.join("changed")).unwrap();
    fs::create_dir(run.join("a")).unwrap();
    fs::write(run.join("a/file"), "x").unwrap();
    fs::rename(run.join("a/file"), run.join("file")).unwrap();
    let _listener = UnixListener::bind(run.join("socket")).unwrap();
    UnixStream::connect(run.join("socket")).unwrap();
    fs::remove_file(run.join("file")).unwrap();
    fs::write("/dev/null", "x").unwrap();
    fs::read_to_string("/proc/self/smaps").unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "secret", "what was open stays open");
    if Support::probe().landlock.unwrap() >= 4 {
        denied(TcpListener::bind("127.0.0.1:0").map(drop));
    }
}

/// The body of a child that becomes as confined as a program that serves a guest. `user` is the one
/// that it becomes, if it may.
fn program(user: &str, folder: &Path) {
    let user = user.parse().ok().map(|id| User { id, group: None });
    let socket = folder.join("socket");
    // A file of everybody's, which another user may read as well.
    let policy = Policy::new()
        .allow(folder.join("listed"), Access::Read)
        .allow("/usr/lib", Access::Execute)
        .allow_runtime();
    // This thread is not confined, and answers.
    let (sender, receiver) = mpsc::channel::<std::os::fd::OwnedFd>();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let answering = thread::spawn(move || {
        use std::os::fd::AsFd;
        let listener = receiver.recv().unwrap();
        answer_connect(listener.as_fd(), || Ok(theirs.into())).unwrap();
    });
    sender.send(hold_connects().unwrap()).unwrap();
    confine_program(&policy, user).unwrap();

    // It gets what is meant for it, once, regardless of what it asks for.
    let mut connected = UnixStream::connect(&socket).unwrap();
    connected.write_all(b"x").unwrap();
    (&ours).read_exact(&mut [0]).unwrap();
    answering.join().unwrap();
    refused("another connection", UnixStream::connect(&socket).map(drop));
    is_kept_from_others(folder);
    has_what_it_needs(folder, user);
}

#[track_caller]
fn refused(what: &str, result: io::Result<()>) {
    let code = result.expect_err(what).raw_os_error();
    assert!(matches!(code, Some(libc::EPERM | libc::EACCES | libc::ENOSYS)), "{what} {code:?}");
}

fn is_kept_from_others(folder: &Path) {
    refused("reading", File::open(folder.join("secret")).map(drop));
    refused("a listing", fs::read_dir(folder).map(drop));
    refused("writing", fs::write(folder.join("new"), "x"));
    refused("changing", OpenOptions::new().append(true).open(folder.join("listed")).map(drop));
    refused("a device", OpenOptions::new().write(true).open("/dev/full").map(drop));
    refused("memory of others", File::open(format!("/proc/{}/maps", parent())).map(drop));
    refused("a program", Command::new("/bin/true").status().map(drop));
    refused("datagrams", std::os::unix::net::UnixDatagram::unbound().map(drop));
    refused("pairs of them", std::os::unix::net::UnixDatagram::pair().map(drop));
    refused("UDP", std::net::UdpSocket::bind("127.0.0.1:0").map(drop));
    refused("TCP", std::net::TcpStream::connect("127.0.0.1:9").map(drop));
    refused("listening", UnixListener::bind(folder.join("door")).map(drop));
    let tries: [(&str, libc::c_long, [usize; 3]); 9] = [
        ("a process", libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0]),
        ("a signal", libc::SYS_kill, [parent(), 0, 0]),
        ("tracing", libc::SYS_ptrace, [libc::PTRACE_ATTACH as usize, parent(), 0]),
        ("a user", libc::SYS_setuid, [0, 0, 0]),
        ("a namespace", libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0]),
        ("a mount", libc::SYS_mount, [0, 0, 0]),
        ("io_uring", libc::SYS_io_uring_setup, [1, 0, 0]),
        ("a keyring", libc::SYS_keyctl, [0, 0, 0]),
        ("a process's descriptor", libc::SYS_pidfd_open, [parent(), 0, 0]),
    ];
    for (what, number, args) in tries {
        refused(what, call(number, args).map(drop));
    }
}

fn has_what_it_needs(folder: &Path, user: Option<User>) {
    assert_eq!(fs::read(folder.join("listed")).unwrap(), b"for all to see");
    thread::spawn(|| ()).join().unwrap();
    UnixStream::pair().unwrap();
    call(libc::SYS_memfd_create, [c"x".as_ptr() as usize, 0, 0]).unwrap();
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    for none in ["CapPrm", "CapEff", "CapAmb"] {
        assert!(line(none).ends_with("\t0000000000000000"), "{status}");
    }
    assert!(line("NoNewPrivs").ends_with('1') && line("Seccomp:").ends_with('2'), "{status}");
    if let Some(User { id, .. }) = user {
        assert_eq!(line("Uid"), format!("Uid:\t{id}\t{id}\t{id}\t{id}"));
        assert!(line("CapBnd").ends_with("\t0000000000000000"), "{status}");
    }
}

fn parent() -> usize {
    std::os::unix::process::parent_id() as usize
}

#[test]
fn serving_program_reaches_nothing_else() {
    let name = "serving_program_reaches_nothing_else";
    if let Err(reason) = Support::probe().landlock {
        eprintln!("SKIP {name}: {reason}");
        return;
    }
    if !filters(name) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("secret"), "secret").unwrap();
    fs::write(folder.path().join("listed"), "for all to see").unwrap();
    let _listener = UnixListener::bind(folder.path().join("socket")).unwrap();
    survives("program same", folder.path());
    // SAFETY: has no arguments.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIP {name}: as another user: only root can become one");
        return;
    }
    // Another user can enter the folder.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    survives("program 54321", folder.path());
}

#[test]
fn files_stay_closed() {
    if let Err(reason) = Support::probe().landlock {
        eprintln!("SKIP files_stay_closed: {reason}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("secret"), "secret").unwrap();
    fs::write(folder.path().join("listed"), "for all to see").unwrap();
    fs::write(folder.path().join("changed"), "").unwrap();
    fs::create_dir(folder.path().join("run")).unwrap();
    survives("files all", folder.path());
}

#[test]
fn missing_path_is_an_error() {
    let policy = Policy::new().allow("/no/such/path", Access::Read);
    let error = Sandbox::new(policy).err().expect("refused");
    assert!(matches!(&error, Error::Path { path, .. } if path == Path::new("/no/such/path")));
    let text = error.to_string();
    assert_eq!(text, "sandbox: /no/such/path: No such file or directory (os error 2)");
}
