//! The table against a plain model of it, and in the way of accesses.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use proptest::prelude::*;

use super::*;

/// A mapping of the model, in pages: first, last, where to, rights.
type Entry = (u64, u64, u64, Permissions);

#[derive(Default)]
struct Model {
    bypass: bool,
    attached: [Option<u32>; 3],
    domains: BTreeMap<u32, Option<Vec<Entry>>>,
}

#[derive(Clone, Debug)]
enum Step {
    Bypass(bool),
    Attach(u32, u32, bool),
    Detach(u32, u32),
    Map(u32, u64, u64, u64, Permissions),
    Unmap(u32, u64, u64),
    Access(u32, u64, usize, Permissions),
    Reset,
}

fn rights() -> impl Strategy<Value = Permissions> {
    prop::sample::select(vec![
        Permissions::No,
        Permissions::Read,
        Permissions::Write,
        Permissions::ReadWrite,
    ])
}

fn step() -> impl Strategy<Value = Step> {
    // Few of each, so that they meet; one more of each than there are.
    let (endpoint, domain, page) = (0u32..4, 0u32..3, 0u64..12);
    prop_oneof![
        1 => any::<bool>().prop_map(Step::Bypass),
        6 => (endpoint.clone(), domain.clone(), prop::bool::weighted(0.2))
            .prop_map(|(e, d, b)| Step::Attach(e, d, b)),
        2 => (endpoint.clone(), domain.clone()).prop_map(|(e, d)| Step::Detach(e, d)),
        12 => (domain.clone(), page.clone(), 0u64..4, 0u64..1000, rights())
            .prop_map(|(d, p, n, to, r)| Step::Map(d, p, p + n, to, r)),
        6 => (domain, page, 0u64..6).prop_map(|(d, p, n)| Step::Unmap(d, p, p + n)),
        12 => (endpoint, 0u64..16 * PAGE, 0usize..5 * PAGE as usize, rights())
            .prop_map(|(e, at, len, r)| Step::Access(e, at, len, r)),
        1 => Just(Step::Reset),
    ]
}

impl Model {
    fn leave(&mut self, endpoint: u32) {
        let from = self.attached[endpoint as usize].take();
        if let Some(from) = from
            && !self.attached.contains(&Some(from))
        {
            self.domains.remove(&from);
        }
    }

    fn entries(&mut self, domain: u32) -> Result<&mut Vec<Entry>, Failure> {
        self.domains.get_mut(&domain).ok_or(Failure::NoEntry)?.as_mut().ok_or(Failure::Invalid)
    }

    fn request(&mut self, step: &Step) -> Result<(), Failure> {
        match *step {
            Step::Bypass(bypass) => self.bypass = bypass,
            Step::Attach(endpoint, domain, bypass) => {
                let from = *self.attached.get(endpoint as usize).ok_or(Failure::NoEntry)?;
                if self.domains.get(&domain).is_some_and(|entries| entries.is_none() != bypass) {
                    return Err(Failure::Invalid);
                }
                if from != Some(domain) {
                    self.leave(endpoint);
                    self.domains.entry(domain).or_insert((!bypass).then(Vec::new));
                    self.attached[endpoint as usize] = Some(domain);
                }
            }
            Step::Detach(endpoint, domain) => {
                let from = *self.attached.get(endpoint as usize).ok_or(Failure::NoEntry)?;
                if from != Some(domain) {
                    return Err(Failure::Invalid);
                }
                self.leave(endpoint);
            }
            Step::Map(domain, first, last, to, rights) => {
                let entries = self.entries(domain)?;
                if entries.iter().any(|entry| entry.0 <= last && entry.1 >= first) {
                    return Err(Failure::Invalid);
                }
                entries.push((first, last, to, rights));
            }
            Step::Unmap(domain, first, last) => {
                let inside = |entry: &Entry| entry.0 >= first && entry.1 <= last;
                let touched = |entry: &Entry| entry.0 <= last && entry.1 >= first;
                let entries = self.entries(domain)?;
                if entries.iter().any(|entry| touched(entry) && !inside(entry)) {
                    return Err(Failure::Range);
                }
                entries.retain(|entry| !touched(entry));
            }
            Step::Access(..) => {}
            Step::Reset => {
                self.attached = [None; 3];
                self.domains.clear();
            }
        }
        Ok(())
    }

    /// The address of a byte, if this access to it is permitted.
    fn byte(&self, endpoint: u32, at: u64, access: Permissions) -> Option<u64> {
        let entries = match self.attached.get(endpoint as usize).copied().flatten() {
            Some(domain) => self.domains[&domain].as_ref(),
            None if self.bypass => None,
            None => return None,
        };
        let Some(entries) = entries else { return Some(at) };
        let page = at / PAGE;
        let entry = entries.iter().find(|entry| entry.0 <= page && entry.1 >= page)?;
        entry.3.allow(access).then(|| at - entry.0 * PAGE + entry.2 * PAGE)
    }
}

fn apply(space: &Space, step: &Step) -> Result<(), Failure> {
    let span = |first: u64, last: u64| (first * PAGE, last * PAGE + PAGE - 1);
    match *step {
        Step::Bypass(bypass) => space.set_bypass(bypass),
        Step::Attach(endpoint, domain, bypass) => space.attach(endpoint, domain, bypass)?,
        Step::Detach(endpoint, domain) => space.detach(endpoint, domain)?,
        Step::Map(domain, first, last, to, rights) => {
            space.map(domain, span(first, last), to * PAGE, rights)?;
        }
        Step::Unmap(domain, first, last) => space.unmap(domain, span(first, last))?,
        Step::Access(..) => {}
        Step::Reset => space.reset(),
    }
    Ok(())
}

fn space() -> Arc<Space> {
    let space = Arc::new(Space::new());
    (0..3).for_each(|number| space.add(number));
    space
}

fn endpoint(space: &Arc<Space>, number: u32) -> Endpoint {
    Endpoint { space: Arc::clone(space), number }
}

proptest! {
    /// Answers and addresses are those of the model.
    #[test]
    fn table_matches_its_model(steps in prop::collection::vec(step(), 1..80)) {
        let space = space();
        let mut model = Model { bypass: true, ..Model::default() };
        for step in steps {
            prop_assert_eq!(apply(&space, &step), model.request(&step), "{:?}", step);
            let mapped = model.domains.values().flatten().map(Vec::len).sum::<usize>();
            prop_assert_eq!(space.mapped(), mapped);
            let Step::Access(number, at, len, access) = step else { continue };
            let mut found = Vec::new();
            let endpoint = endpoint(&space, number);
            let result = endpoint.begin().translate(at, len, access, &mut |at, len| {
                found.extend(at..at + len as u64);
            });
            let bytes = at..at + len as u64;
            let expected: Vec<_> =
                bytes.clone().map_while(|at| model.byte(number, at, access)).collect();
            match result {
                Ok(()) => prop_assert_eq!(found, expected),
                Err(error) => {
                    prop_assert_eq!(error.address, at + expected.len() as u64);
                    prop_assert!(bytes.contains(&error.address));
                }
            }
        }
    }
}

#[test]
fn address_space_ends_are_handled() {
    let space = space();
    space.attach(0, 7, false).unwrap();
    let all = (0, u64::MAX);
    let whole = (MSI_WINDOW.1 + 1, INPUT_LAST);
    assert_eq!(space.map(7, all, 0, Permissions::Read), Err(Failure::Range));
    assert_eq!(space.map(7, (0, INPUT_LAST), 0, Permissions::Read), Err(Failure::Invalid));
    assert_eq!(space.map(7, whole, !(PAGE - 1), Permissions::Read), Err(Failure::Range));
    assert_eq!(space.map(7, (PAGE, 0), 0, Permissions::Read), Err(Failure::Invalid));
    assert_eq!(space.map(7, (0, PAGE), 0, Permissions::Read), Err(Failure::Range));
    assert_eq!(space.map(7, (0, PAGE - 1), 1, Permissions::Read), Err(Failure::Range));
    // The end of guest-physical addresses is no special case.
    let len = whole.1 - whole.0;
    space.map(7, whole, u64::MAX - len, Permissions::Read).unwrap();
    let endpoint = endpoint(&space, 0);
    let mut found = Vec::new();
    let mut add = |at: u64, len: usize| found.push((at, len));
    endpoint.begin().translate(INPUT_LAST, 1, Permissions::Read, &mut add).unwrap();
    assert_eq!(found, [(u64::MAX, 1)]);
    for (at, len) in [(INPUT_LAST, 2), (u64::MAX, 1), (u64::MAX, 2), (u64::MAX, usize::MAX)] {
        let error = endpoint.begin().translate(at, len, Permissions::Read, &mut |_, _| ());
        assert!(error.is_err(), "{at:#x}, {len}");
    }
    // An empty access is always allowed.
    endpoint.begin().translate(u64::MAX, 0, Permissions::Read, &mut |_, _| panic!()).unwrap();
    assert_eq!(space.attach(0, DOMAIN_LAST + 1, false), Err(Failure::Range));
    space.unmap(7, all).unwrap();
    assert_eq!(space.mapped(), 0);
}

#[test]
fn mappings_are_bounded() {
    let space = space();
    space.attach(0, 0, false).unwrap();
    let page = |n: u64| ((1 << 32) + n * PAGE, (1 << 32) + n * PAGE + PAGE - 1);
    for n in 0..MAX_MAPPINGS as u64 {
        space.map(0, page(n), 0, Permissions::Read).unwrap();
    }
    let one_more = page(MAX_MAPPINGS as u64);
    assert_eq!(space.map(0, one_more, 0, Permissions::Read), Err(Failure::NoMemory));
    space.unmap(0, page(5)).unwrap();
    space.map(0, one_more, 0, Permissions::Read).unwrap();
    assert_eq!(space.mapped(), MAX_MAPPINGS);
    // More than are taken away at a time.
    space.unmap(0, (0, u64::MAX)).unwrap();
    assert_eq!(space.mapped(), 0);
    space.detach(0, 0).unwrap();
    assert_eq!(space.map(0, one_more, 0, Permissions::Read), Err(Failure::NoEntry));
}

/// A call that takes access away returns when there are no users left.
#[test]
fn taking_away_waits_for_accesses() {
    let changes: [fn(&Space); 5] = [
        |space| space.unmap(1, (0, PAGE - 1)).unwrap(),
        |space| space.detach(0, 1).unwrap(),
        |space| space.attach(0, 2, false).unwrap(),
        |space| space.reset(),
        |space| space.set_bypass(false),
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let space = space();
        // All but the last one are about an attached endpoint.
        if i < 4 {
            space.set_bypass(false);
            space.attach(0, 1, false).unwrap();
            space.map(1, (0, PAGE - 1), 0, Permissions::Read).unwrap();
        }
        let endpoint = endpoint(&space, 0);
        let reach = |access: &Access<'_>| access.translate(0, 8, Permissions::Read, &mut |_, _| ());
        let access = endpoint.begin();
        assert!(reach(&access).is_ok());
        let changed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                change(&space);
                changed.store(true, SeqCst);
            });
            // New accesses are refused from some moment on, and the old one holds it up.
            while reach(&endpoint.begin()).is_ok() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(5));
            assert!(!changed.load(SeqCst), "change {i} did not wait");
            drop(access);
        });
        assert!(changed.load(SeqCst) && reach(&endpoint.begin()).is_err(), "change {i}");
    }
}

#[test]
fn faults_are_bounded() {
    let space = space();
    space.set_bypass(false);
    let endpoint = endpoint(&space, 2);
    let refuse = |at: u64| {
        let result = endpoint.begin().translate(at, 4, Permissions::Write, &mut |_, _| ());
        assert_eq!(result, Err(Unmapped { endpoint: 2, address: at }));
    };
    (0..1000).for_each(refuse);
    let told = std::iter::from_fn(|| space.next_fault()).collect::<Vec<_>>();
    assert_eq!(told.len(), FAULTS_WAITING);
    let first =
        Fault { reason: Reason::Domain, endpoint: 2, address: 0, access: Permissions::Write };
    assert_eq!(told[0], first);
    // However fast the driver fetches them.
    let more = (0..1000).inspect(|&at| refuse(at)).filter_map(|_| space.next_fault()).count();
    let most = (FAULTS_PER_PERIOD as usize) - FAULTS_WAITING;
    // A new period may have begun on a slow host.
    assert!((most..=most + 2 * FAULTS_PER_PERIOD as usize).contains(&more), "{more}");
    space.attach(2, 0, false).unwrap();
    refuse(0);
    space.reset();
    assert!(!space.fault_waits());
}
