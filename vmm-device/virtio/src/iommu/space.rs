//! The address spaces of endpoints: domains, their mappings, and the endpoints attached to them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use tofu_sync::lock;
use tofu_sync::{Epochs, read, write};
use vm_memory::Permissions;
use vmm_sys_util::eventfd::EventFd;

/// Mappings of all domains together (ours), of about 60 bytes each in this process: 4 GiB in pages
/// that are mapped one by one.
pub const MAX_MAPPINGS: usize = 1 << 20;
/// The granularity of mappings in bytes.
pub const PAGE: u64 = 4096;
/// The last address that a domain can map (ours): 48 bits, as most IOMMUs of PCs have them.
pub const INPUT_LAST: u64 = (1 << 48) - 1;
/// The last number of a domain (ours).
pub const DOMAIN_LAST: u32 = 0xffff;
/// The window of interrupt messages, where an x86 guest's local APICs are. Nothing can be mapped in
/// it.
pub const MSI_WINDOW: (u64, u64) = (0xfee0_0000, 0xfeef_ffff);

/// Mappings that are taken away without letting endpoints look up addresses in between.
const MAPPINGS_PER_LOCK: usize = 256;
/// The most faults that wait for a buffer of the driver; later ones are lost.
const FAULTS_WAITING: usize = 64;
/// Faults reported to a driver in a period; more are lost.
const FAULTS_PER_PERIOD: u32 = 100;
const PERIOD: Duration = Duration::from_secs(1);

/// The reason why a request failed: the status that its driver gets (1.2, 5.13.6). 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Not known, or not agreed upon.
    Unsupported = 2,
    /// The request is impossible.
    Invalid = 4,
    /// An address or a number out of range.
    Range = 5,
    /// No such endpoint or domain.
    NoEntry = 6,
    /// There is no room for more.
    NoMemory = 8,
}

/// An address that an endpoint cannot reach, or not in this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("endpoint {endpoint}: {address:#x} is not mapped for this access")]
pub struct Unmapped {
    /// The endpoint.
    pub endpoint: u32,
    /// The first address that is not mapped, as the endpoint has it.
    pub address: u64,
}

/// The reason why an access was refused, as it is reported to the driver (1.2, 5.13.6.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The endpoint is attached to nothing.
    Domain = 1,
    /// Nothing is mapped there, or not for this.
    Mapping = 2,
}

/// An access that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) reason: Reason,
    pub(super) endpoint: u32,
    pub(super) address: u64,
    pub(super) access: Permissions,
}

/// State that the driver and the endpoints share.
pub(super) struct Space {
    /// Not held while endpoints use what they have looked up, because such an access may lead from
    /// one machine's memory to another's and back.
    state: RwLock<State>,
    uses: Epochs,
    faults: Mutex<Faults>,
    /// Wakes the device's thread.
    wake: OnceLock<EventFd>,
}

struct State {
    /// True if endpoints that are attached to nothing reach all of memory.
    bypass: bool,
    /// The domain of each.
    endpoints: BTreeMap<u32, Option<u32>>,
    domains: BTreeMap<u32, Domain>,
    /// Mappings of all domains.
    mapped: usize,
}

/// A domain lives as long as an endpoint is attached to it.
struct Domain {
    attached: usize,
    /// The mappings by first address; none if addresses are not translated.
    mappings: Option<BTreeMap<u64, Mapping>>,
}

struct Mapping {
    last: u64,
    /// Its start in guest memory.
    to: u64,
    rights: Permissions,
}

struct Faults {
    waiting: VecDeque<Fault>,
    since: Instant,
    /// In this period.
    count: u32,
}

impl Space {
    pub(super) fn new() -> Self {
        Self {
            state: RwLock::new(State {
                bypass: true,
                endpoints: BTreeMap::new(),
                domains: BTreeMap::new(),
                mapped: 0,
            }),
            uses: Epochs::new(),
            faults: Mutex::new(Faults {
                waiting: VecDeque::new(),
                since: Instant::now(),
                count: 0,
            }),
            wake: OnceLock::new(),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        read(&self.state)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        write(&self.state)
    }

    pub(super) fn wake_by(&self, wake: EventFd) {
        // Called once, by the transport.
        let _ = self.wake.set(wake);
    }

    pub(super) fn add(&self, endpoint: u32) {
        self.write().endpoints.entry(endpoint).or_default();
    }

    pub(super) fn has(&self, endpoint: u32) -> bool {
        self.read().endpoints.contains_key(&endpoint)
    }

    pub(super) fn bypass(&self) -> bool {
        self.read().bypass
    }

    /// When this returns, no access is in progress that only the former setting allowed.
    pub(super) fn set_bypass(&self, bypass: bool) {
        self.write().bypass = bypass;
        self.uses.drain();
    }

    /// Attaches an endpoint, and detaches it from its current domain, if any.
    pub(super) fn attach(&self, endpoint: u32, to: u32, bypass: bool) -> Result<(), Failure> {
        if to > DOMAIN_LAST {
            return Err(Failure::Range);
        }
        let mut state = self.write();
        let from = *state.endpoints.get(&endpoint).ok_or(Failure::NoEntry)?;
        if let Some(domain) = state.domains.get(&to)
            && domain.mappings.is_none() != bypass
        {
            return Err(Failure::Invalid);
        }
        if from == Some(to) {
            return Ok(());
        }
        let abandoned = from.and_then(|from| state.leave(from));
        let mappings = || (!bypass).then(BTreeMap::new);
        let domain =
            state.domains.entry(to).or_insert_with(|| Domain { attached: 0, mappings: mappings() });
        domain.attached += 1;
        state.endpoints.insert(endpoint, Some(to));
        drop(state);
        self.uses.drain();
        drop(abandoned);
        Ok(())
    }

    /// When this returns, the endpoint accesses nothing any more that the domain allowed.
    pub(super) fn detach(&self, endpoint: u32, from: u32) -> Result<(), Failure> {
        let mut state = self.write();
        let attached = state.endpoints.get_mut(&endpoint).ok_or(Failure::NoEntry)?;
        if *attached != Some(from) {
            return Err(Failure::Invalid);
        }
        *attached = None;
        let abandoned = state.leave(from);
        drop(state);
        self.uses.drain();
        drop(abandoned);
        Ok(())
    }

    /// Maps `first` to `last` to guest memory from `to` on.
    pub(super) fn map(
        &self,
        domain: u32,
        (first, last): (u64, u64),
        to: u64,
        rights: Permissions,
    ) -> Result<(), Failure> {
        let mut state = self.write();
        let room = state.mapped < MAX_MAPPINGS;
        let mappings = state.mappings(domain)?;
        let len = last.checked_sub(first).ok_or(Failure::Invalid)?;
        let inside = last <= INPUT_LAST && to.checked_add(len).is_some();
        // The first term is below 2^48 where the second one counts.
        if !inside || [first, last + 1, to].iter().any(|at| !at.is_multiple_of(PAGE)) {
            return Err(Failure::Range);
        }
        let before = mappings.range(..=last).next_back();
        let taken = before.is_some_and(|(_, mapping)| mapping.last >= first);
        if taken || (first <= MSI_WINDOW.1 && last >= MSI_WINDOW.0) {
            return Err(Failure::Invalid);
        }
        if !room {
            return Err(Failure::NoMemory);
        }
        mappings.insert(first, Mapping { last, to, rights });
        state.mapped += 1;
        Ok(())
    }

    /// Removes the mappings from `first` to `last`; nothing, if that would cut a mapping in two.
    /// When this returns, no access to the removed mappings is in progress.
    pub(super) fn unmap(&self, domain: u32, (first, last): (u64, u64)) -> Result<(), Failure> {
        let mut state = self.write();
        let mappings = state.mappings(domain)?;
        if first > last {
            return Err(Failure::Invalid);
        }
        let reaches_in = mappings.range(..first).next_back().is_some_and(|(_, m)| m.last >= first);
        let reaches_out = mappings.range(..=last).next_back().is_some_and(|(_, m)| m.last > last);
        if reaches_in || reaches_out {
            return Err(Failure::Range);
        }
        drop(state);
        // Mappings do not change in between, because requests are served one after the other.
        while self.take(domain, (first, last)) {}
        self.uses.drain();
        Ok(())
    }

    /// Takes some mappings away; returns whether there may be more.
    fn take(&self, domain: u32, (first, last): (u64, u64)) -> bool {
        let mut state = self.write();
        let Ok(mappings) = state.mappings(domain) else { return false };
        let mut taken = 0;
        while taken < MAPPINGS_PER_LOCK
            && let Some((&at, _)) = mappings.range(first..=last).next()
        {
            mappings.remove(&at);
            taken += 1;
        }
        state.mapped -= taken;
        taken == MAPPINGS_PER_LOCK
    }

    /// Detaches all endpoints and forgets all domains. Whether endpoints without a domain bypass
    /// translation stays as it is (1.2, 5.13.4).
    pub(super) fn reset(&self) {
        let mut state = self.write();
        state.endpoints.values_mut().for_each(|domain| *domain = None);
        let abandoned = std::mem::take(&mut state.domains);
        state.mapped = 0;
        drop(state);
        self.uses.drain();
        lock(&self.faults).waiting.clear();
        drop(abandoned);
    }

    /// Records a refused access, to report it to the driver.
    fn report(&self, fault: Fault) {
        let mut faults = lock(&self.faults);
        if faults.since.elapsed() >= PERIOD {
            faults.since = Instant::now();
            faults.count = 0;
        }
        if faults.count >= FAULTS_PER_PERIOD || faults.waiting.len() >= FAULTS_WAITING {
            return;
        }
        faults.count += 1;
        faults.waiting.push_back(fault);
        drop(faults);
        if let Some(wake) = self.wake.get() {
            // Fails only when the counter is full, and then the thread wakes up anyway.
            let _ = wake.write(1);
        }
    }

    pub(super) fn next_fault(&self) -> Option<Fault> {
        lock(&self.faults).waiting.pop_front()
    }

    pub(super) fn fault_waits(&self) -> bool {
        !lock(&self.faults).waiting.is_empty()
    }

    /// Mappings of all domains.
    pub(super) fn mapped(&self) -> usize {
        self.read().mapped
    }
}

impl State {
    /// The mappings of a domain that translates addresses.
    fn mappings(&mut self, domain: u32) -> Result<&mut BTreeMap<u64, Mapping>, Failure> {
        let domain = self.domains.get_mut(&domain).ok_or(Failure::NoEntry)?;
        domain.mappings.as_mut().ok_or(Failure::Invalid)
    }

    /// One endpoint less is attached. Returns the domain if it was the last one, to be dropped
    /// outside of the lock.
    fn leave(&mut self, number: u32) -> Option<Domain> {
        let domain = self.domains.get_mut(&number)?;
        domain.attached -= 1;
        if domain.attached > 0 {
            return None;
        }
        self.mapped -= domain.mappings.as_ref().map_or(0, BTreeMap::len);
        self.domains.remove(&number)
    }

    fn translate(
        &self,
        endpoint: u32,
        address: u64,
        last: u64,
        access: Permissions,
        f: &mut dyn FnMut(u64, u64),
    ) -> Result<(), (Reason, u64)> {
        let attached = self.endpoints.get(&endpoint).copied().flatten();
        let mappings = match attached.and_then(|domain| self.domains.get(&domain)) {
            None if !self.bypass => return Err((Reason::Domain, address)),
            None | Some(Domain { mappings: None, .. }) => {
                f(address, last - address + 1);
                return Ok(());
            }
            Some(Domain { mappings: Some(mappings), .. }) => mappings,
        };
        let mut at = address;
        let found = mappings.range(..=at).next_back();
        let from = found.map_or(Unbounded, |(&first, _)| Excluded(first));
        let following = mappings.range((from, Unbounded));
        for (&first, mapping) in found.into_iter().chain(following) {
            if !(first..=mapping.last).contains(&at) || !mapping.rights.allow(access) {
                break;
            }
            let end = mapping.last.min(last);
            // Neither overflows: what is mapped was checked, and is never all there is.
            f(mapping.to + (at - first), end - at + 1);
            if end == last {
                return Ok(());
            }
            at = end + 1;
        }
        Err((Reason::Mapping, at))
    }
}

/// A device's view of memory: its addresses are those that the guest has mapped for it.
///
/// Clones are the same endpoint.
#[derive(Clone)]
pub struct Endpoint {
    pub(super) space: Arc<Space>,
    pub(super) number: u32,
}

impl Endpoint {
    /// Its number, by which drivers name it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Begins an access. While the result lives, a request of the driver to remove a mapping that
    /// was found through it does not complete. So it must be dropped soon, and its holder must not
    /// wait for the guest.
    pub fn begin(&self) -> Access<'_> {
        Access { endpoint: self, generation: self.space.uses.enter() }
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("number", &self.number).finish_non_exhaustive()
    }
}

/// An access in progress. See [`Endpoint::begin`].
#[derive(Debug)]
pub struct Access<'a> {
    endpoint: &'a Endpoint,
    generation: u64,
}

impl Access<'_> {
    /// Calls `f` with the guest-physical address and the length of each range of `len` bytes from
    /// `address` on, in order. It is not checked whether there is memory at these addresses.
    ///
    /// # Errors
    /// If any byte is not mapped for this access. `f` may have got the ranges before it, which are
    /// not to be used then. It is reported to the driver.
    pub fn translate(
        &self,
        address: u64,
        len: usize,
        access: Permissions,
        f: &mut dyn FnMut(u64, usize),
    ) -> Result<(), Unmapped> {
        let Endpoint { space, number } = self.endpoint;
        let Some(rest) = (len as u64).checked_sub(1) else { return Ok(()) };
        // Ranges are not longer than the whole.
        let f = &mut |at: u64, len: u64| f(at, len as usize);
        let result = match address.checked_add(rest) {
            Some(last) => space.read().translate(*number, address, last, access, f),
            None => Err((Reason::Mapping, address)),
        };
        result.map_err(|(reason, address)| {
            space.report(Fault { reason, endpoint: *number, address, access });
            Unmapped { endpoint: *number, address }
        })
    }
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        self.endpoint.space.uses.leave(self.generation);
    }
}

#[cfg(test)]
mod tests;
