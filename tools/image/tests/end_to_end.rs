//! Builds images from Debian's packages into a cache that is empty at first, and boots them.
//!
//! Needs apt-get, dpkg-deb and a Debian mirror; some 200 MB are fetched. Tests that the host cannot
//! run are skipped with name and reason.

use std::cell::RefCell;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use tofu_image::{
    BOOT_ARGUMENTS, Cache, Error, Image, Kernel, KernelKind, Phase, Program, Progress, Silent,
    Spec, TCG_ARGUMENTS, TCG_CPU, inspect_kernel,
};

/// One cache for all tests, because each package should be fetched only once. The folder goes with
/// the process's last test; see [`Guard`].
fn cache() -> Cache {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().unwrap());
    Cache::at(folder.path().join("cache"))
}

/// Statics are not dropped: the last guard to go removes the folder.
struct Guard;

static GUARDS: Mutex<u32> = Mutex::new(0);

impl Guard {
    fn new() -> Self {
        *GUARDS.lock().unwrap() += 1;
        Guard
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut guards = GUARDS.lock().unwrap();
        *guards -= 1;
        if *guards == 0 {
            let _ = fs::remove_dir_all(cache().folder());
        }
    }
}

/// Returns true if `error` means that this host or its network cannot run the test.
fn skipped(name: &str, error: &Error) -> bool {
    let host = matches!(
        error,
        Error::NoTool { .. } | Error::NoMirror | Error::NoKeyring | Error::Mirror { .. }
    );
    if host {
        eprintln!("SKIP {name}: {error}");
    }
    host
}

/// Builds, or returns `None` after saying why the test is skipped.
fn built(name: &str, spec: &Spec) -> Option<Image> {
    match cache().build(spec, &Silent) {
        Ok(image) => Some(image),
        Err(error) if skipped(name, &error) => None,
        Err(error) => panic!("{error}"),
    }
}

#[derive(Default)]
struct Phases(RefCell<Vec<Phase>>);

impl Progress for Phases {
    fn update(&self, phase: Phase, done: u64, total: u64) {
        assert!(total == 0 || done <= total, "{phase}: {done} of {total}");
        if self.0.borrow().last() != Some(&phase) {
            self.0.borrow_mut().push(phase);
        }
    }
}

/// A guest under QEMU with its console.
struct Guest {
    child: Child,
    console: Receiver<Vec<u8>>,
    seen: String,
}

impl Guest {
    fn boot(image: &Image, arguments: &str) -> Option<Self> {
        let qemu = match cache().qemu(None, &Silent) {
            Ok(qemu) => qemu,
            Err(error) if skipped("boot", &error) => return None,
            Err(error) => panic!("{error}"),
        };
        let mut command = qemu.command();
        command
            .args(["-M", "q35", "-cpu", TCG_CPU, "-m", "512", "-nodefaults"])
            .args(["-display", "none", "-no-reboot", "-serial", "stdio"])
            .args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"])
            .args(["-chardev", "null,id=a", "-device"])
            .arg("virtserialport,chardev=a,name=org.tofu.agent")
            .arg("-kernel")
            .arg(&image.kernel_elf)
            .arg("-initrd")
            .arg(&image.initrd)
            .arg("-append")
            .arg(format!("console=ttyS0 {BOOT_ARGUMENTS} {TCG_ARGUMENTS} {arguments}"));
        if let Some(root) = &image.root {
            let mut drive = std::ffi::OsString::from("if=none,id=r,format=raw,readonly=on,file=");
            drive.push(root);
            command.arg("-drive").arg(drive).args(["-device", "virtio-blk-pci,drive=r"]);
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("QEMU starts");
        let mut stdout = child.stdout.take().unwrap();
        let (sender, console) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Some(Self { child, console, seen: String::new() })
    }

    /// Reads until `text` arrives, and returns the output before it.
    fn until(&mut self, text: &str) -> String {
        // Generous: tests run beside builds, on hosts that emulate.
        let limit = Instant::now() + Duration::from_secs(180);
        loop {
            if let Some(at) = self.seen.find(text) {
                let before = self.seen[..at].to_owned();
                self.seen.drain(..at + text.len());
                return before;
            }
            let left = limit.saturating_duration_since(Instant::now());
            match self.console.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout) => panic!("no {text:?} in time: {}", self.seen),
                Err(RecvTimeoutError::Disconnected) => panic!("no {text:?}: {}", self.seen),
            }
        }
    }

    /// Runs a command in the guest's shell and returns its output and exit code.
    fn run(&mut self, command: &str) -> (String, i32) {
        // The marks are put together by the shell, so its echo of the line has none.
        let line = format!("echo be'gin'; {command}; echo e'nd'=$?=\n");
        self.child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        self.until("begin");
        let said = self.until("end=");
        let code = self.until("=").trim().parse().unwrap();
        (said.replace('\r', "").trim().to_owned(), code)
    }

    fn power_off(mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"poweroff\n").unwrap();
        let limit = Instant::now() + Duration::from_secs(60);
        while Instant::now() < limit {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "QEMU ended with {status}");
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("the guest does not power off: {}", self.seen);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn image_is_built_found_and_boots() {
    let _guard = Guard::new();
    let script = b"#!/bin/sh\necho hello from $(hostname)\n".to_vec();
    let spec = || {
        let program = Program::new("greet", script.clone()).unwrap();
        Spec::new("default").unwrap().programs([program])
    };
    let Some(image) = built("image_is_built_found_and_boots", &spec()) else {
        return;
    };
    let kind = |path: &Path| inspect_kernel(path, &fs::read(path).unwrap()).unwrap();
    assert_eq!(kind(&image.kernel_elf), KernelKind::Pvh);
    assert_eq!(kind(image.kernel_bz.as_ref().unwrap()), KernelKind::BzImage);
    assert!(fs::read(&image.initrd).unwrap().starts_with(b"070701"));
    assert_eq!(image.root, None);
    assert!(image.manifest.kernel.starts_with("6."), "{}", image.manifest.kernel);
    assert!(image.manifest.packages.contains_key("busybox-static"));
    assert_eq!(cache().find("default").unwrap().as_ref(), Some(&image));

    // Once more: nothing is done, which is quick.
    let phases = Phases::default();
    let began = Instant::now();
    assert_eq!(cache().build(&spec(), &phases).unwrap(), image);
    assert_eq!(*phases.0.borrow(), []);
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());

    // Another program: only the archive is made again.
    let phases = Phases::default();
    let old = image.manifest.spec().unwrap();
    let more = old
        .programs([Program::new("greet", script.clone()).unwrap()])
        .programs([Program::new("more", vec![0; 10]).unwrap()]);
    let changed = cache().build(&more, &phases).unwrap();
    assert_eq!(*phases.0.borrow(), [Phase::Initramfs]);
    assert_ne!(changed.manifest.fingerprint, image.manifest.fingerprint);

    let Some(mut guest) = Guest::boot(&changed, "tofu.name=0-1-2-0-0-0") else { return };
    guest.until("# ");
    assert_eq!(guest.run("greet"), ("hello from 0-1-2-0-0-0".into(), 0));
    assert_eq!(guest.run("tty"), ("/dev/ttyS0".into(), 0));
    let (modules, _) = guest.run("cut -d' ' -f1 /proc/modules");
    for module in ["vfio_pci", "vfio_iommu_type1", "virtio_rng"] {
        assert!(modules.lines().any(|line| line == module), "{module} is not in {modules}");
    }
    assert_eq!(guest.run("test -c /dev/virtio-ports/org.tofu.agent -a -d /dev/vfio").1, 0);
    assert_eq!(guest.run("exit 3 | false").1, 1);
    // A shell that ends comes again.
    guest.child.stdin.as_mut().unwrap().write_all(b"exit\n").unwrap();
    guest.until("built-in shell");
    guest.until("# ");
    assert_eq!(guest.run("echo again"), ("again".into(), 0));
    guest.power_off();
}

#[test]
fn debian_root_has_its_packages_set_up() {
    let _guard = Guard::new();
    let spec = Spec::new("tools").unwrap().with(["iperf3", "mawk"]).unwrap();
    let Some(image) = built("debian_root_has_its_packages_set_up", &spec) else { return };
    assert_eq!(image.manifest.with, ["iperf3", "mawk"]);
    assert!(image.manifest.packages.contains_key("libiperf0"), "what it depends on is there, too");
    if !image.manifest.notes.is_empty() {
        eprintln!("SKIP debian_root_has_its_packages_set_up: {:?}", image.manifest.notes);
        return;
    }
    let Some(mut guest) = Guest::boot(&image, "tofu.name=1-1-1-0-0-0") else { return };
    guest.until("# ");
    // Bash's terminal codes would be in the way.
    guest.run("bind 'set enable-bracketed-paste off'; PS1='# '");
    let (version, code) = guest.run("iperf3 --version | head -n 1");
    assert!(version.starts_with("iperf 3") && code == 0, "{version}");
    assert_eq!(guest.run("awk 'BEGIN { print 6 * 7 }'"), ("42".into(), 0), "an alternative");
    assert_eq!(guest.run("id -un; hostname"), ("root\n1-1-1-0-0-0".into(), 0));
    assert_eq!(guest.run("dpkg --audit"), (String::new(), 0));
    assert_eq!(guest.run("modprobe vfio-pci").1, 0);
    assert_eq!(guest.run("test -c /dev/virtio-ports/org.tofu.agent").1, 0);
    // The guest may write anywhere, but not to the disk.
    assert_eq!(guest.run("echo x >/usr/bin/x && cat /usr/bin/x"), ("x".into(), 0));
    let (owners, _) = guest.run("find / -xdev -nouser | head");
    assert_eq!(owners, "", "no file belongs to a user of the host");
    guest.power_off();
}

#[test]
fn interrupted_download_is_resumed() {
    struct StopAt(RefCell<u64>, u64);
    impl Progress for StopAt {
        fn update(&self, phase: Phase, done: u64, _: u64) {
            if phase == Phase::Download {
                *self.0.borrow_mut() = done;
            }
        }
        fn cancelled(&self) -> bool {
            *self.0.borrow() > self.1
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("cache"));
    let packages = ["linux-image-cloud-amd64", "busybox-static", "perl-modules-5.40"];
    let stop = StopAt(RefCell::new(0), 1);
    match cache.packages(&packages, false, &stop) {
        Err(Error::Interrupted) => {}
        Err(error) if skipped("interrupted_download_is_resumed", &error) => return,
        Err(error) => panic!("{error}"),
        // A fast mirror may be done before we check.
        Ok(_) => {
            eprintln!("SKIP interrupted_download_is_resumed: it was done at once");
            return;
        }
    }
    assert_eq!(fs::read_dir(cache.folder().join("parts")).unwrap().count(), 0, "no half parts");
    let root = cache.packages(&packages, false, &Silent).unwrap();
    assert!(root.join("usr/bin/busybox").exists());
    let began = Instant::now();
    assert_eq!(cache.packages(&packages, false, &Silent).unwrap(), root);
    assert!(began.elapsed() < Duration::from_millis(500));
}

/// Builds an image in a process with a changed view of the files, and returns its output. It runs
/// after `set_up`, a shell command that finds an empty folder in `$FOLDER`, in a mount namespace of
/// its own. `None` if the host does not permit that.
fn in_namespace(name: &str, set_up: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("{set_up} && exec \"$0\" --exact inner_build --nocapture --ignored");
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", &script])
        .arg(std::env::current_exe().unwrap())
        .env("FOLDER", folder.path())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        other => {
            let reason = other.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
            eprintln!("SKIP {name}: no namespace on this host ({reason:?})");
            None
        }
    }
}

#[test]
#[ignore = "run by others, in a namespace"]
fn inner_build() {
    let folder = std::env::var_os("FOLDER").expect("in_namespace sets it");
    let cache = Cache::at(PathBuf::from(folder).join("cache"));
    match cache.build(&Spec::new("default").unwrap(), &Silent) {
        Ok(_) => println!("SAID built"),
        Err(error) => println!("SAID {error}"),
    }
    let left = |sub: &str| -> Vec<PathBuf> {
        let folder = fs::read_dir(cache.folder().join(sub));
        folder.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    println!("LEFT {:?}", [left("images"), left("parts")].concat());
}

#[test]
fn host_without_apt_names_what_to_install() {
    let name = "host_without_apt_names_what_to_install";
    if Command::new("apt-get").arg("--version").output().is_err() {
        eprintln!("SKIP {name}: it has none to hide");
        return;
    }
    let set_up = "mount --bind /dev/null \"$(command -v apt-get)\"";
    let Some(said) = in_namespace(name, set_up) else { return };
    assert!(said.contains("SAID apt-get is not installed"), "{said}");
}

#[test]
fn full_disk_leaves_nothing_half_done() {
    let name = "full_disk_leaves_nothing_half_done";
    // Room for the lists of packages and the download, not for the kernel.
    let Some(said) = in_namespace(name, "mount -t tmpfs -o size=120m none \"$FOLDER\"") else {
        return;
    };
    if said.contains("Debian mirror") || said.contains("is not installed") {
        eprintln!("SKIP {name}: {said}");
        return;
    }
    assert!(said.contains("SAID disk full while writing "), "{said}");
    assert!(said.contains("LEFT []"), "{said}");
}

#[test]
fn silent_mirror_is_named() {
    let folder = tempfile::tempdir().unwrap();
    // Port 9 of this host (discard), which is not served.
    let cache = Cache::at(folder.path()).mirror(Some("http://127.0.0.1:9/debian".into()));
    let error = cache.build(&Spec::new("default").unwrap(), &Silent).unwrap_err();
    if matches!(error, Error::NoTool { .. } | Error::NoKeyring) {
        eprintln!("SKIP silent_mirror_is_named: {error}");
        return;
    }
    let text = error.to_string();
    assert!(text.contains("http://127.0.0.1:9/debian") && text.contains("--mirror"), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn unknown_packages_and_modules_are_named() {
    let _guard = Guard::new();
    let spec = Spec::new("bad").unwrap().with(["no-such-package"]).unwrap();
    let error = cache().build(&spec, &Silent).unwrap_err();
    if skipped("unknown_packages_and_modules_are_named", &error) {
        return;
    }
    assert_eq!(error.to_string(), "Debian trixie has no package \"no-such-package\"");
    let spec = Spec::new("bad").unwrap().kernel(Kernel::Cloud).modules(["rdma_rxe"]).unwrap();
    let error = cache().build(&spec, &Silent).unwrap_err().to_string();
    assert!(error.contains("no module \"rdma_rxe\""), "{error}");
    assert!(cache().find("bad").unwrap().is_none());
}
