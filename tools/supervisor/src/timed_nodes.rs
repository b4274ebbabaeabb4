//! Devices of a machine in modelled time on sockets, for guests that others start.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::Context;
use tofu_abi::topology::NodeId;
use tofu_abi::{Coords, Generation};
use tofu_control::rundir::node_file;
use tofu_sandbox::Role;
use tofu_spec::plan::{Network, TimePlan};
use tofu_vfio_user::{Backing, BoundSocket, bind_socket};

use crate::confine::Confinement;
use crate::machine::AnyMachine;
use crate::served::Served;
use crate::timed::TimedMachine;

/// Devices of a machine in modelled time, on their sockets, for guests that others start. Dropping
/// it closes and removes them.
pub struct TimedNodes {
    machine: Arc<TimedMachine>,
    nodes: Vec<Sockets>,
    // Dropped after the machine has stopped.
    _served: Vec<Served>,
    doors: Vec<(BoundSocket, JoinHandle<()>)>,
}

/// The sockets of a node: of its device, and of its pace.
pub type Sockets = (Coords, PathBuf, PathBuf);

impl TimedNodes {
    /// Makes the devices of a machine with links that are down, and serves them at sockets in
    /// `folder`.
    ///
    /// # Errors
    ///
    /// If the host has no memory, threads or descriptors left, or a socket is in use.
    pub fn serve(
        (generation, network): (Generation, &Network),
        folder: &Path,
        backing: Backing,
        time: TimePlan,
        confinement: &Confinement,
    ) -> anyhow::Result<Self> {
        let shape = network.shape;
        let guests: Vec<_> = (0..shape.nodes()).map(NodeId).collect();
        let machine = TimedMachine::new((generation, shape), &guests, backing, time)?;
        machine.take_down(&network.links_down)?;
        let mut served = Self {
            machine: Arc::clone(&machine),
            nodes: Vec::new(),
            _served: Vec::new(),
            doors: Vec::new(),
        };
        let any = AnyMachine::Timed(machine);
        for at in shape.iter() {
            let device = folder.join(node_file("node", at, "sock"));
            served._served.push(Served::at_path(&any, at, &device, backing, confinement)?);
            let path = folder.join(node_file("node", at, "pace"));
            let socket = bind_socket(&path)?;
            let door = served.door(at, socket.listener()?, confinement)?;
            served.doors.push((socket, door));
            served.nodes.push((at, device, path));
        }
        Ok(served)
    }

    /// Starts a thread that takes the connections of a node's plugins, one after the other.
    fn door(
        &self,
        at: Coords,
        listener: UnixListener,
        confinement: &Confinement,
    ) -> anyhow::Result<JoinHandle<()>> {
        let (machine, first) = (Arc::clone(&self.machine), confinement.hook(Role::VfioUser));
        let run = move || {
            first();
            while let Ok((plugin, _)) = listener.accept()
                && let Ok(true) = machine.keep_here(at, plugin)
            {}
        };
        thread::Builder::new().name(format!("pace{at}")).spawn(run).context("no threads left")
    }

    /// The sockets of all nodes.
    pub fn sockets(&self) -> &[Sockets] {
        &self.nodes
    }
}

impl Drop for TimedNodes {
    fn drop(&mut self) {
        self.machine.stop();
        for (socket, door) in self.doors.drain(..) {
            // Wakes a thread that waits for a plugin.
            let _ = UnixStream::connect(socket.path());
            // A panic in the thread has already been printed.
            let _ = door.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read;
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;
    use crate::changes::Changed;
    use crate::timed::outside::InputFile;
    use tofu_abi::pci::REGISTER_BAR;
    use tofu_abi::topology::Port;
    use tofu_control::protocol::{EventKind, Request};
    use tofu_machine::AnyNetwork;
    use tofu_pace::VERSION;
    use tofu_pace::message::{ACCESS, ASLEEP, AT, BEGIN, Go, Message, PASSED};
    use tofu_pace::pages::{Next, Page};
    use tofu_spec::plan::InputLog;

    /// A plugin's side of a pace.
    struct Plugin(UnixStream, Option<Page>);

    impl Plugin {
        fn connect(sockets: &Sockets) -> Self {
            Self(UnixStream::connect(&sockets.2).unwrap(), None)
        }

        fn say(&mut self, kind: u32, version: u32, ns: u64) {
            self.tell([kind, version], [ns, 0]);
        }

        fn tell(&mut self, [kind, version]: [u32; 2], [at_ns, until_ns]: [u64; 2]) {
            Message { kind, version, at_ns, until_ns }.send(&self.0).unwrap();
        }

        /// The time until which the guest may run; `None` if the machine has hung up.
        fn hear(&mut self) -> Option<u64> {
            let (go, files) = Go::receive(&self.0).ok()?;
            assert!(go.vectors.is_empty(), "interrupts");
            if !files.is_empty() {
                self.1 = Some(Page::map(go.guest as usize, files).unwrap());
            }
            Some(go.until_ns)
        }

        fn begin(&mut self) -> Option<u64> {
            self.say(BEGIN, VERSION, 0);
            self.hear()
        }

        fn at(&mut self, ns: u64) -> Option<u64> {
            self.say(AT, 0, ns);
            self.hear()
        }

        /// Says to the other guests where this one is.
        fn reach(&mut self, ns: u64) {
            if self.1.as_mut().unwrap().reach(ns) {
                self.say(PASSED, 0, ns);
            }
        }

        /// Makes a step through the pages, or asks the machine. Returns the end of the step.
        fn step(&mut self, ns: u64) -> u64 {
            self.reach(ns);
            match self.1.as_ref().unwrap().next(ns, ns, || Ok(())).unwrap() {
                Next::Run(until) => until,
                Next::Ask => self.at(ns).unwrap(),
            }
        }

        /// True if no answer has come after a while.
        fn waits(&mut self) -> bool {
            self.0.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let waits = self.0.read(&mut [0]).is_err();
            self.0.set_read_timeout(None).unwrap();
            waits
        }
    }

    /// One with instructions of a nanosecond, so that guests' times are the machine's.
    fn plan() -> TimePlan {
        TimePlan { instruction: "1".parse().unwrap(), ..TimePlan::default() }
    }

    fn serve(folder: &Path, time: TimePlan) -> TimedNodes {
        serve_all("1x1x1x2x1x1", folder, time)
    }

    fn serve_all(shape: &str, folder: &Path, time: TimePlan) -> TimedNodes {
        let network =
            Network { shape: shape.parse().unwrap(), links_down: BTreeSet::new(), shard: None };
        let (kind, confinement) = ((Generation::Fugaku, &network), Confinement::default());
        TimedNodes::serve(kind, folder, Backing::Sealed, time, &confinement).unwrap()
    }

    #[test]
    fn guests_take_turns_in_order_of_time() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = serve(folder.path(), plan());
        let [first, second] = nodes.sockets() else { panic!("two nodes") };
        let (mut a, mut b) = (Plugin::connect(first), Plugin::connect(second));
        // None of them uses its device, so neither has to wait for what the other could do. But
        // time does not pass before both are there.
        assert_eq!(a.begin(), Some(100_000));
        a.say(AT, 0, 500);
        assert!(a.waits());
        assert_eq!(b.begin(), Some(100_000));
        assert_eq!(b.at(400), Some(100_400));
        assert!(a.waits());
        b.say(AT, 0, 2000);
        assert_eq!(a.hear(), Some(100_500));
        // An access is by one guest at a time, in order of nodes if at the same time.
        a.say(ACCESS, 0, 2000);
        assert_eq!(a.hear(), Some(2000));
        assert!(b.waits());
        assert_eq!(a.at(2000), Some(102_000));
        assert_eq!(b.hear(), Some(102_000));
        // Guests that sleep go from one time to the next at once.
        b.tell([ASLEEP, 0], [2500, 9_000_000]);
        assert!(b.waits());
        a.tell([ASLEEP, 0], [3001, 7_000_000]);
        assert_eq!(a.hear(), Some(7_000_000));
        a.say(AT, 0, 9_000_500);
        assert_eq!(b.hear(), Some(9_000_000));
        drop(b);
        // A guest that has gone holds up the other one no longer.
        assert_eq!(a.hear(), Some(9_100_500));
        assert_eq!(nodes.machine.network().passed().unwrap().ns, 9_000_500);
        drop(nodes);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn instructions_take_as_long_as_they_are_said_to() {
        let folder = tempfile::tempdir().unwrap();
        let instruction = "0.25".parse().unwrap();
        let nodes = serve(folder.path(), TimePlan { instruction, ..plan() });
        let [first, second] = nodes.sockets() else { panic!("two nodes") };
        let (mut a, mut b) = (Plugin::connect(first), Plugin::connect(second));
        assert_eq!((a.begin(), b.begin()), (Some(100_000), Some(100_000)));
        a.say(AT, 0, 4000);
        b.say(AT, 0, 4400);
        assert_eq!(a.hear(), Some(104_000));
        assert_eq!(nodes.machine.network().passed().unwrap().ns, 1000);
    }

    /// Guests that keep each other's pace through their pages access the machine in order of time,
    /// and sleeping ones are woken at their times.
    #[test]
    fn guests_keep_each_others_pace() {
        const ACCESSES: u64 = 200;
        let folder = tempfile::tempdir().unwrap();
        let nodes = serve_all("1x1x1x2x2x1", folder.path(), plan());
        let log = Mutex::new(Vec::new());
        thread::scope(|s| {
            for (number, sockets) in (0u64..).zip(nodes.sockets()) {
                let (mut plugin, log) = (Plugin::connect(sockets), &log);
                s.spawn(move || {
                    let mut random = number;
                    let (mut ns, mut until) = (0, plugin.begin().unwrap());
                    let mut done = 0;
                    while done < ACCESSES {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let step = (random >> 33) % 70_000;
                        if step < until - ns {
                            ns += step;
                            plugin.reach(ns);
                            plugin.say(ACCESS, 0, ns);
                            plugin.hear().unwrap();
                            log.lock().unwrap().push((ns, number));
                            done += 1;
                            until = plugin.at(ns).unwrap();
                        } else if random >> 62 == 0 {
                            ns = until;
                            plugin.reach(ns);
                            let wake = ns + (random >> 40) % 300_000;
                            plugin.tell([ASLEEP, 0], [ns, wake]);
                            // It asks at the time when it wakes.
                            ns = plugin.hear().unwrap();
                            until = plugin.at(ns).unwrap();
                        } else {
                            ns = until;
                            until = plugin.step(ns);
                        }
                    }
                });
            }
        });
        let log = log.into_inner().unwrap();
        assert_eq!(log.len() as u64, 4 * ACCESSES);
        assert!(log.is_sorted(), "{:?}", log.windows(2).find(|pair| pair[0] > pair[1]));
        let passed = nodes.machine.network().passed().unwrap();
        assert_eq!(passed.late, 0);
        assert!(passed.guests.iter().all(|guest| guest.accesses == ACCESSES), "{passed:?}");
    }

    #[test]
    fn time_stands_still_until_it_is_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let until = Some("2000.5ns".parse().unwrap());
        let nodes = serve(folder.path(), TimePlan { until, ..plan() });
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&heard);
        nodes.machine.on_stand(move |stands| hears.lock().unwrap().push(stands.text));
        let [first, second] = nodes.sockets() else { panic!("two nodes") };
        let (mut a, mut b) = (Plugin::connect(first), Plugin::connect(second));
        assert_eq!((a.begin(), b.begin()), (Some(2000), Some(2000)));
        b.tell([ASLEEP, 0], [1500, 9000]);
        // The last access is at the last instruction.
        a.reach(2000);
        a.say(ACCESS, 0, 2000);
        assert_eq!(a.hear(), Some(2000));
        assert!(!nodes.machine.stands());
        // Both stop where they are, and a debugger that has one continue changes nothing.
        assert_eq!((a.at(2000), b.hear()), (Some(2000), Some(1500)));
        assert_eq!(a.at(2000), Some(2000));
        let network = nodes.machine.network();
        assert_eq!(network.passed().unwrap().stands.unwrap().at, 2_000_500);
        assert_eq!(*heard.lock().unwrap(), ["modelled time stands still at 0.0020005 ms"]);
        assert_eq!(network.go_on(Some(2_000_500)).unwrap_err(), "its time is 0.0020005 ms already");
        // It continues as if nothing had been.
        network.go_on(Some(9_000_000)).unwrap();
        assert_eq!(network.go_on(None).unwrap_err(), "its time does not stand still");
        a.say(AT, 0, 2000);
        b.tell([ASLEEP, 0], [1500, 9000]);
        assert_eq!(a.hear(), Some(2001));
        assert_eq!(a.step(2001), 9000);
        a.say(AT, 0, 9000);
        // The other one may wake before it stops.
        assert_eq!(b.hear(), Some(9000));
        assert_eq!((b.at(9000), a.hear()), (Some(9000), Some(9000)));
        assert_eq!(heard.lock().unwrap().len(), 2);
        network.go_on(None).unwrap();
        a.say(AT, 0, 9000);
        b.say(AT, 0, 9000);
        assert_eq!((a.hear(), b.hear()), (Some(9001), Some(9001)));
        assert!(network.passed().unwrap().late == 0);
    }

    /// Runs a guest that sleeps, with such input, for two boundaries, before each of which a change
    /// is asked for. Returns what changed, and what was seen before and after each boundary.
    fn changes<T>(
        log: InputLog,
        look: impl Fn(&dyn AnyNetwork) -> T,
        change: impl Fn(&TimedMachine, u64) + Sync,
    ) -> (Vec<Changed>, [[T; 2]; 2]) {
        let folder = tempfile::tempdir().unwrap();
        let nodes = serve(folder.path(), plan());
        let machine = &nodes.machine;
        machine.let_in(Some(&InputFile::open(&log).unwrap())).unwrap();
        let changes = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&changes);
        machine.on_change(move |changed| hears.lock().unwrap().push(changed));
        let [first, second] = nodes.sockets() else { panic!("two nodes") };
        let (mut a, mut b) = (Plugin::connect(first), Plugin::connect(second));
        assert_eq!((a.begin(), b.begin()), (Some(100_000), Some(100_000)));
        let network = machine.network();
        // One that has gone holds up the other one no longer.
        drop(b);
        let mut at = 100_000;
        let states = [1_000_000, 2_000_000].map(|boundary| {
            thread::scope(|s| {
                let asks = s.spawn(|| change(machine, boundary));
                while !asks.is_finished() && machine.waiting_changes() == 0 {
                    thread::yield_now();
                }
                let before = look(&*network);
                // It may be woken at the boundary.
                while at < boundary + 100_000 {
                    a.tell([ASLEEP, 0], [at, boundary + 100_000]);
                    at = a.hear().unwrap();
                }
                [before, look(&*network)]
            })
        });
        let changes = changes.lock().unwrap().clone();
        (changes, states)
    }

    #[test]
    fn links_change_at_boundaries_and_again_in_a_replay() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        let set = |port: &str, up| Request::SetLink { node: 0, port: port.into(), up };
        let up = |network: &dyn AnyNetwork| network.fabric().link_up(Coords::default(), Port::A);
        let first = changes(InputLog::Record(path.clone()), up, |machine, boundary| {
            if boundary == 1_000_000 {
                // It waits for a boundary, and changes nothing.
                let error = machine.change(set("X+", false)).unwrap_err().to_string();
                assert_eq!(error, "node (0,0,0,0,0,0) has no link at port X+");
            } else {
                machine.change(set("A", false)).unwrap();
            }
        });
        let down = EventKind::Link { port: "A".into(), up: false };
        let states = [[Some(true), Some(true)], [Some(true), Some(false)]];
        assert_eq!(first, (vec![(Some(NodeId(0)), down)], states));
        let again = changes(InputLog::Replay(path), up, |machine, _| {
            let error = machine.change(set("A", true)).unwrap_err().to_string();
            assert!(error.ends_with("its record"), "{error}");
        });
        assert_eq!(again, first);
    }

    #[test]
    fn faults_change_at_boundaries_and_again_in_a_replay() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        let look = |network: &dyn AnyNetwork| {
            let mut word = [0; 8];
            network.node(NodeId(1)).unwrap().read(REGISTER_BAR, 0, &mut word);
            (network.faults().map(|(plan, _)| plan.seed), word == [0xff; 8])
        };
        let faults = || Some("loss=1%,seed=9".to_owned());
        let first = changes(InputLog::Record(path.clone()), look, |machine, boundary| {
            let change = match boundary {
                1_000_000 => Request::SetFaults { faults: faults() },
                _ => Request::SetDeviceFaults { node: 1, faults: Some("gone".into()) },
            };
            machine.change(change).unwrap();
        });
        let (none, set, gone) = ((None, false), (Some(9), false), (Some(9), true));
        let told = (None, EventKind::Faults { faults: faults() });
        assert_eq!(first, (vec![told], [[none, set], [set, gone]]));
        assert_eq!(changes(InputLog::Replay(path), look, |_, _| {}), first);
    }

    #[test]
    fn node_whose_plugin_takes_no_answer_may_begin_again() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = serve(folder.path(), plan());
        let [first, second] = nodes.sockets() else { panic!("two nodes") };
        let (mut a, mut b) = (Plugin::connect(first), Plugin::connect(second));
        assert_eq!((a.begin(), b.begin()), (Some(100_000), Some(100_000)));
        b.say(AT, 0, 2000);
        assert!(b.waits());
        b.0.shutdown(std::net::Shutdown::Read).unwrap();
        assert_eq!(a.at(3000), Some(103_000));
        let mut b = Plugin::connect(second);
        b.0.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(b.begin(), Some(100_000));
    }

    #[test]
    fn seeds_are_interleavings() {
        let first_is_second = |seed| {
            let folder = tempfile::tempdir().unwrap();
            let nodes = serve(folder.path(), TimePlan { seed: Some(seed), ..plan() });
            let [first, second] = nodes.sockets() else { panic!("two nodes") };
            let (mut a, mut b) = (Plugin::connect(first), Plugin::connect(second));
            // The guest that begins later finds that the other one's lead is smaller.
            for until in [a.begin(), b.begin()] {
                assert!((99_000..=100_000).contains(&until.unwrap()), "{until:?}");
            }
            a.say(AT, 0, 10);
            b.say(AT, 0, 10);
            let waits = a.waits();
            assert!(!waits || b.hear().is_some());
            waits
        };
        let seen: Vec<_> = (0..6).map(first_is_second).collect();
        assert!(seen.contains(&true) && seen.contains(&false), "{seen:?}");
        assert_eq!((0..6).map(first_is_second).collect::<Vec<_>>(), seen);
    }

    #[test]
    fn plugin_that_breaks_the_protocol_is_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = serve(folder.path(), plan());
        let [first, second] = nodes.sockets() else { panic!("two nodes") };
        let mut old = Plugin::connect(first);
        old.say(BEGIN, VERSION + 1, 0);
        assert_eq!(old.hear(), None);
        let (mut a, mut b) = (Plugin::connect(first), Plugin::connect(second));
        assert_eq!((a.begin(), b.begin()), (Some(100_000), Some(100_000)));
        a.say(AT, 0, 950);
        // Time does not go back.
        assert_eq!(b.at(900), Some(100_900));
        assert_eq!(b.at(899), None);
        assert_eq!(a.hear(), Some(100_950));
        assert_eq!(a.at(5000), Some(105_000));
        // Another guest of the node begins now, by its own clock.
        let mut b = Plugin::connect(second);
        assert_eq!(b.begin(), Some(100_000));
        a.say(AT, 0, 6000);
        assert!(a.waits());
        b.say(AT, 0, 2000);
        assert_eq!(a.hear(), Some(106_000));
        assert!(b.waits());
        a.say(AT, 0, 7500);
        assert_eq!(b.hear(), Some(102_000));
        drop(nodes);
        assert_eq!(a.hear(), None);
    }
}
