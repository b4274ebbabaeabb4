//! Templates of nodes: made from a node that boots without a device and without a name.
//!
//! The node boots with the word `tofu.template`, on which init leaves out what needs a device or a
//! name. A clone loads QEMU's state of its devices over a copy of the memory, plugs the device into
//! a root port, and gives the agent its name. Two other ways do not work: with a private mapping of
//! the template's memory (`share=off`) QEMU passes the template's own descriptor to the device,
//! whose writes then change the template; and QEMU does not save the state of a device that is
//! present when a node is saved.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use rustix::rand::{GetRandomFlags, getrandom};
use tofu_agent::wire::{Exec, Identity};
use tofu_image::{Cache, Phase, Progress, Qemu, Template, TemplateKey};
use tofu_sandbox::Role;
use tofu_supervisor::agent::Agent;
use tofu_supervisor::console::Console;
use tofu_supervisor::programs::must_run;
use tofu_sync::lock;

use crate::monitor::{End, Killer, Monitor, MonitorKind, NotReady, Running};
use crate::qemu::{self, Boot};
use crate::setup::VmSetup;

/// The word that tells our init that its node will be cloned.
pub(crate) const WORD: &str = "tofu.template";
/// Frees memory that the kernel can read again, and fills what is free with zeros, which a template
/// does not keep. The most recently used of it is taken first, so that not all has to be.
const PREPARE: &str = "sync; echo 3 >/proc/sys/vm/drop_caches; \
                       dd if=/dev/zero of=/dev/shm/zeros bs=1M count=256 2>/dev/null; \
                       rm -f /dev/shm/zeros";

/// The interval at which a booting template is checked.
const OFTEN: Duration = Duration::from_millis(20);

/// Files that a template has, so that they need not be copied to its clones.
#[derive(Debug)]
pub struct Preload {
    /// The folder of the files, which does not exist yet. Its name identifies them.
    pub folder: String,
    /// The files, as the agent's `unpack-alone` reads them.
    pub archive: Vec<u8>,
}

impl Preload {
    /// Unpacks the files on a node.
    fn put(&self, node: &Arc<Agent>) -> anyhow::Result<()> {
        let parent = Path::new(&self.folder).parent().unwrap_or(Path::new("/"));
        must_run(node, Exec::named(["mkdir", "-p", &parent.to_string_lossy()]), &[])?;
        must_run(node, Exec::unpack_alone(&self.folder), &self.archive)
    }
}

/// The templates of a machine's nodes, made when the first node needs them.
pub(crate) struct Templates {
    cache: Cache,
    preload: Option<Arc<Preload>>,
    /// Those that are known; `None` for one that cannot be made.
    known: Mutex<BTreeMap<String, Option<Template>>>,
}

/// The node that makes a template.
pub(crate) struct Maker<'a> {
    /// The monitor of its virtual machines.
    pub(crate) kind: &'a MonitorKind,
    /// The virtual machine of the template.
    pub(crate) setup: VmSetup,
    /// The log of the template's console.
    pub(crate) log: PathBuf,
    /// The time limit.
    pub(crate) limit: Duration,
    /// True if the node must stop.
    pub(crate) is_stopped: &'a dyn Fn() -> bool,
    /// Notes what ends the virtual machine that runs for it.
    pub(crate) started: &'a dyn Fn(Option<Killer>),
}

impl Templates {
    pub(crate) fn new(cache: Cache, preload: Option<Arc<Preload>>) -> Self {
        Self { cache, preload, known: Mutex::default() }
    }

    /// Returns the template for clones like this node, and makes it if there is none; `None` if
    /// that is not possible, which is logged once.
    ///
    /// # Errors
    ///
    /// [`NotReady`] if the guest does not boot: the node would not, either.
    pub(crate) fn get(&self, qemu: &Qemu, maker: &Maker<'_>) -> Result<Option<Template>, NotReady> {
        // Other nodes wait for this lock.
        let mut known = lock(&self.known);
        let files = self.preload.as_ref().map(|preload| &*preload.folder);
        let key = match qemu::template_key(qemu, &maker.setup, files) {
            Ok(key) => key,
            Err(error) => {
                log::warn!("no clones, nodes boot: {error:#}");
                return Ok(None);
            }
        };
        if let Some(template) = known.get(key.as_str()) {
            return Ok(template.clone());
        }
        let template = match self.find_or_make(&key, maker) {
            Ok(template) => Some(template),
            Err(_) if (maker.is_stopped)() => return Ok(None),
            Err(error) => {
                let error = error.downcast::<NotReady>().map_or_else(Ok, Err)?;
                log::warn!("no clones, nodes boot: {error:#}");
                None
            }
        };
        known.insert(key.as_str().to_owned(), template.clone());
        Ok(template)
    }

    fn find_or_make(&self, key: &TemplateKey, maker: &Maker<'_>) -> anyhow::Result<Template> {
        let find = || -> anyhow::Result<_> {
            Ok(self
                .cache
                .template(key)
                .map_err(whole)?
                .filter(|template| has_clock(template.clock)))
        };
        if let Some(template) = find()? {
            return Ok(template);
        }
        let _lock = self.cache.lock_templates(&Waiting(maker.is_stopped)).map_err(whole)?;
        if let Some(template) = find()? {
            return Ok(template);
        }
        log::info!("making a template of node {}", maker.setup.name);
        let begin = Instant::now();
        let template = maker.make(&self.cache, key, self.preload.as_deref())?;
        log::info!("made a template in {:.1} s", begin.elapsed().as_secs_f64());
        Ok(template)
    }
}

/// An error of the cache, whose text already includes its cause.
fn whole(error: tofu_image::Error) -> anyhow::Error {
    anyhow::Error::msg(error.to_string())
}

/// Returns true if the host's time stamp counter has this frequency in kHz, within the error of
/// measurement.
fn has_clock(khz: u32) -> bool {
    tofu_vmm::host_tsc_khz().unwrap_or(0).abs_diff(khz) <= khz / 1000
}

impl Maker<'_> {
    fn make(
        &self,
        cache: &Cache,
        key: &TemplateKey,
        preload: Option<&Preload>,
    ) -> anyhow::Result<Template> {
        let Running { monitor, ends, memory } = self.kind.start(&self.setup, Boot::Template)?;
        let [console, agent] = ends;
        let memory = memory.context("its monitor does not share memory")?;
        (self.started)(Some(monitor.killer()));
        let saved = thread::scope(|scope| {
            let Self { setup, .. } = self;
            let first = setup.confinement.hook(Role::Reader);
            let of_agent = Arc::clone(&first);
            let (shown, programs) = (Arc::new(Console::new(self.log.clone())), Arc::default());
            let (follower, followed) = (Arc::clone(&shown), Arc::<Agent>::clone(&programs));
            scope.spawn(move || {
                first();
                follower.follow(console);
            });
            // For a single message.
            let (sender, ready) = mpsc::sync_channel(1);
            scope.spawn(move || {
                of_agent();
                followed.follow(agent, &setup.name, None, || {
                    let _ = sender.try_send(());
                });
            });
            let end = self.wait(&monitor, &ready);
            let saved = match end {
                Ok(None) => preload
                    .map_or(Ok(()), |preload| preload.put(&programs))
                    .and_then(|()| must_run(&programs, Exec::named(["sh", "-c", PREPARE]), &[]))
                    .context("preparing a template")
                    .and_then(|()| qemu::save(&self.setup)),
                _ => Err(anyhow::anyhow!("no template")),
            };
            (self.started)(None);
            let words = monitor.finish();
            let saved = match end? {
                None => saved,
                Some(end) => Err(NotReady::new(&end, &words, self.limit, &shown).into()),
            };
            // It may not exist yet.
            let _ = fs::remove_file(&self.setup.qmp);
            saved
        });
        let khz = tofu_vmm::host_tsc_khz().unwrap_or(0);
        cache.save_template(key, (&memory, &saved?), khz).map_err(whole)
    }

    /// Waits until the guest is ready, or has ended, or its time is over.
    fn wait(&self, monitor: &Monitor, ready: &mpsc::Receiver<()>) -> anyhow::Result<Option<End>> {
        let deadline = Instant::now() + self.limit;
        while ready.try_recv().is_err() {
            if monitor.wait(OFTEN)? {
                return Ok(Some(End::Exit));
            }
            if Instant::now() > deadline {
                return Ok(Some(End::Timeout));
            }
        }
        Ok(None)
    }
}

/// Waits for another process that makes a template, until the node must stop.
struct Waiting<'a>(&'a dyn Fn() -> bool);

impl Progress for Waiting<'_> {
    fn update(&self, _: Phase, _: u64, _: u64) {}

    fn note(&self, text: &str) {
        log::info!("{text}");
    }

    fn cancelled(&self) -> bool {
        (self.0)()
    }
}

/// The identity of a clone that will be this node.
pub(crate) fn identity(setup: &VmSetup) -> Identity {
    let mut seed = [0; 32];
    // In modelled time, a guest's clock and numbers do not depend on the host.
    let time_ns = if setup.time.is_some() {
        seed.iter_mut().zip(setup.name.bytes()).for_each(|(seed, byte)| *seed = byte);
        None
    } else {
        // It only adds to what the guest has from its virtio device.
        let _ = getrandom(&mut seed, GetRandomFlags::empty());
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    };
    Identity {
        host: setup.name.clone(),
        command_line: qemu::with_clock(setup.command_line.clone(), qemu::clock(setup)),
        time_ns,
        seed,
    }
}
