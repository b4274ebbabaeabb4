//! Leases: which process has which control queues and barrier gates.

use std::collections::BTreeMap;
use std::fmt;

use tofu_abi::Generation;
use tofu_abi::regs::{NUM_CQ, NUM_TNI};
use tofu_abi::{CqId, TniId};
use tofu_queue_owner::{Place, Refused};
use tofu_utofu::{DeviceShare, GatePool, Half};
use tofu_vfio::broker::wire::{Queue, Refusal};

/// Distinguishes a process from all others, past and present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The owner of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Free,
    Client {
        id: ClientId,
        /// Its process id, for people.
        pid: i32,
    },
    /// Two processes share it, each with its process id; none is left when it is being closed.
    Shared([Option<(ClientId, i32)>; 2]),
    /// It belonged to a process that is gone, and the device does not release it.
    Stuck,
}

impl Owner {
    fn is(&self, client: ClientId) -> bool {
        matches!(self, Self::Client { id, .. } if *id == client)
    }

    /// Checks that it is free; it is `what` of a TNI.
    fn check(self, what: impl fmt::Display, tni: TniId) -> Result<(), Refused> {
        let text = match self {
            Self::Free => return Ok(()),
            Self::Client { pid, .. }
            | Self::Shared([Some((_, pid)), _])
            | Self::Shared([None, Some((_, pid))]) => {
                format!("{what} of TNI {tni} is in use by process {pid}")
            }
            Self::Shared([None, None]) => format!("{what} of TNI {tni} is being closed"),
            Self::Stuck => format!("{what} of TNI {tni} does not stop"),
        };
        Err(Refused::new(Refusal::InUse, text))
    }
}

/// The control queues and packet interfaces of a device.
#[derive(Clone, Debug)]
pub struct Leases {
    /// In `queues`, the kernel's control queue represents the packet interface.
    generation: Generation,
    queues: [[Owner; NUM_CQ]; NUM_TNI],
    /// Free barrier gates.
    gates: GatePool,
    /// The gates of each process: a bit for each, by interface.
    gates_of: BTreeMap<ClientId, [u64; NUM_TNI]>,
    /// Gates of a process that is gone do not stop.
    gates_stuck: bool,
}

impl Default for Leases {
    fn default() -> Self {
        Self::new(Generation::default())
    }
}

impl Leases {
    /// A device of this generation without any leases.
    pub fn new(generation: Generation) -> Self {
        Self {
            generation,
            queues: [[Owner::Free; NUM_CQ]; NUM_TNI],
            gates: GatePool::new(generation),
            gates_of: BTreeMap::new(),
            gates_stuck: false,
        }
    }

    /// The network interface with this number.
    ///
    /// # Errors
    ///
    /// [`Refusal::Wrong`] if devices of the generation have none.
    pub fn unit(&self, tni: u8) -> Result<TniId, Refused> {
        let unit = TniId::new(tni).filter(|tni| self.generation.description().has_tni(*tni));
        unit.ok_or_else(|| Refused::new(Refusal::Wrong, format!("there is no TNI {tni}")))
    }

    /// The queue with these numbers.
    ///
    /// # Errors
    ///
    /// [`Refusal::Wrong`] if devices of the generation have no such queue, or if it is the
    /// kernel's.
    pub fn queue(&self, queue: Queue) -> Result<(TniId, CqId), Refused> {
        let description = self.generation.description();
        let for_processes = |(tni, cq): &(TniId, CqId)| {
            description.has_tni(*tni) && cq.get() < description.user_cqs()
        };
        queue.ids().filter(for_processes).ok_or_else(|| {
            let Queue { tni, cq } = queue;
            let text = format!("there is no control queue {cq} of TNI {tni} for processes");
            Refused::new(Refusal::Wrong, text)
        })
    }

    fn owner(&mut self, tni: TniId, cq: CqId) -> &mut Owner {
        &mut self.queues[tni.index()][cq.index()]
    }

    /// Returns true if a queue belongs to a process.
    pub fn has(&self, id: ClientId, (tni, cq): (TniId, CqId)) -> bool {
        self.queues[tni.index()][cq.index()].is(id)
    }

    fn is_free(&self, tni: TniId, cq: CqId) -> bool {
        self.queues[tni.index()][cq.index()] == Owner::Free
    }

    /// Gives a process its queues: those of its place (its number, and the number of processes on
    /// the node), or one queue of each interface, whose number is returned.
    ///
    /// # Errors
    ///
    /// [`Refusal::InUse`] or [`Refusal::NoneLeft`] if they are not free, [`Refusal::Wrong`] for a
    /// place that does not exist. Then nothing is given.
    pub fn join(
        &mut self,
        id: ClientId,
        pid: i32,
        place: Option<(u16, u16)>,
    ) -> Result<Option<u8>, Refused> {
        let (queues, own): (Vec<_>, _) = match place {
            Some((index, processes)) => {
                let place = self.share(index, processes)?;
                let queues = place.tnis().flat_map(|tni| place.cqs().map(move |cq| (tni, cq)));
                (queues.collect(), None)
            }
            None => {
                let tnis = self.generation.description().tni_ids();
                let free = |cq| tnis.clone().all(|tni| self.is_free(tni, cq));
                let own = DeviceShare::choose_queue(self.generation, free).ok_or_else(|| {
                    let text = "no control queue is free on all TNIs: other processes have them";
                    Refused::new(Refusal::NoneLeft, text)
                })?;
                (tnis.map(|tni| (tni, own)).collect(), Some(own))
            }
        };
        for &(tni, cq) in &queues {
            self.check(tni, cq)?;
        }
        for (tni, cq) in queues {
            *self.owner(tni, cq) = Owner::Client { id, pid };
        }
        Ok(own.map(CqId::get))
    }

    fn share(&self, index: u16, processes: u16) -> Result<DeviceShare, Refused> {
        let share = DeviceShare::joint(self.generation, index, processes);
        share.map_err(|error| Refused::new(Refusal::Wrong, error.to_string()))
    }

    /// Returns whether so many processes of a node are more than have their own queues.
    pub(crate) fn are_many(&self, processes: u16) -> bool {
        processes > self.generation.description().processes.into()
    }

    /// Returns the half of a queue that is for a process of this place, if it shares its queue.
    ///
    /// # Errors
    ///
    /// [`Refusal::Wrong`] for a place that does not exist.
    pub fn half(&self, place: Option<(u16, u16)>) -> Result<Option<(Place, Half)>, Refused> {
        let Some((index, processes)) = place else { return Ok(None) };
        Ok(self.share(index, processes)?.shared_queue())
    }

    /// Gives a process its half of a queue.
    ///
    /// # Errors
    ///
    /// [`Refusal::InUse`] if it is not free.
    pub(crate) fn join_half(
        &mut self,
        id: ClientId,
        pid: i32,
        ((tni, cq), half): (Place, Half),
    ) -> Result<(), Refused> {
        let owner = self.owner(tni, cq);
        let mut halves = if let Owner::Shared(halves) = owner { *halves } else { [None; 2] };
        match &mut halves[half as usize] {
            _ if !matches!(owner, Owner::Free | Owner::Shared(_)) => self.check(tni, cq)?,
            Some((_, pid)) => {
                let text =
                    format!("half of control queue {cq} of TNI {tni} is in use by process {pid}");
                return Err(Refused::new(Refusal::InUse, text));
            }
            none => *none = Some((id, pid)),
        }
        *self.owner(tni, cq) = Owner::Shared(halves);
        Ok(())
    }

    /// Takes halves of queues back from a process. The queues are free when they are
    /// [closed](Self::close_shared).
    pub(crate) fn end_half(&mut self, id: ClientId) {
        for owner in self.queues.iter_mut().flatten() {
            if let Owner::Shared(halves) = owner {
                for half in halves {
                    half.take_if(|(of, _)| *of == id);
                }
            }
        }
    }

    /// Frees the shared queues that no process has and that are not open. Those that are `stuck`
    /// are given to no process until the device is released.
    pub fn close_shared(&mut self, is_open: impl Fn(Place) -> bool, stuck: &[Place]) {
        for tni in TniId::ALL {
            for cq in CqId::ALL {
                let owner = self.owner(tni, cq);
                if *owner == Owner::Shared([None; 2]) && !is_open((tni, cq)) {
                    let is_stuck = stuck.contains(&(tni, cq));
                    *owner = if is_stuck { Owner::Stuck } else { Owner::Free };
                }
            }
        }
    }

    /// Checks that a queue is free.
    fn check(&mut self, tni: TniId, cq: CqId) -> Result<(), Refused> {
        self.owner(tni, cq).check(format_args!("control queue {cq}"), tni)
    }

    /// The kernel's queue of each interface.
    pub fn kernel_cq(&self) -> CqId {
        self.generation.description().kernel_cq()
    }

    /// Gives a process the packet interface of a TNI.
    ///
    /// # Errors
    ///
    /// [`Refusal::InUse`] if it is not free.
    pub(crate) fn take_packets(
        &mut self,
        id: ClientId,
        pid: i32,
        tni: TniId,
    ) -> Result<(), Refused> {
        let owner = self.owner(tni, self.kernel_cq());
        owner.check("the packet interface", tni)?;
        *owner = Owner::Client { id, pid };
        Ok(())
    }

    /// The TNIs whose packet interface belongs to a process.
    pub(crate) fn packets_of(&self, id: ClientId) -> Vec<TniId> {
        let all = TniId::ALL.into_iter();
        let kernel = self.kernel_cq().index();
        all.filter(|tni| self.queues[tni.index()][kernel].is(id)).collect()
    }

    /// Returns true if there is a queue or a gate that does not stop.
    pub(crate) fn any_stuck(&self) -> bool {
        self.gates_stuck || self.queues.iter().flatten().any(|owner| *owner == Owner::Stuck)
    }

    /// Gives a process a further queue.
    ///
    /// # Errors
    ///
    /// [`Refusal::InUse`] if it is not free.
    pub fn take(&mut self, id: ClientId, pid: i32, tni: TniId, cq: CqId) -> Result<(), Refused> {
        self.check(tni, cq)?;
        *self.owner(tni, cq) = Owner::Client { id, pid };
        Ok(())
    }

    /// Takes back a queue that a process has closed.
    ///
    /// # Errors
    ///
    /// [`Refusal::Wrong`] if the process does not have it.
    pub fn give(&mut self, id: ClientId, tni: TniId, cq: CqId) -> Result<(), Refused> {
        let owner = self.owner(tni, cq);
        if !owner.is(id) {
            let text = format!("control queue {cq} of TNI {tni} is not this process's");
            return Err(Refused::new(Refusal::Wrong, text));
        }
        *owner = Owner::Free;
        Ok(())
    }

    /// Gives a process a start and end gate, and relay gates: one bit each.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoneLeft`] if there are not enough left.
    pub fn take_gates(&mut self, id: ClientId, tni: TniId, relays: u8) -> Result<u64, Refused> {
        let gates = self.gates.take(tni, relays.into()).ok_or_else(|| {
            let text = format!("TNI {tni} does not have enough free barrier gates");
            Refused::new(Refusal::NoneLeft, text)
        })?;
        self.gates_of.entry(id).or_default()[tni.index()] |= gates;
        Ok(gates)
    }

    /// Takes back gates that a process no longer uses.
    ///
    /// # Errors
    ///
    /// [`Refusal::Wrong`] if the process does not have all of them.
    pub fn give_gates(&mut self, id: ClientId, tni: TniId, gates: u64) -> Result<(), Refused> {
        match self.gates_of.get_mut(&id).map(|its| &mut its[tni.index()]) {
            Some(its) if gates & !*its == 0 => {
                *its &= !gates;
                self.gates.give(tni, gates);
                Ok(())
            }
            _ => {
                let text = format!("barrier gates of TNI {tni} are not this process's");
                Err(Refused::new(Refusal::Wrong, text))
            }
        }
    }

    /// The gates of a process, by interface.
    pub(crate) fn gates_of(&self, id: ClientId) -> [u64; NUM_TNI] {
        self.gates_of.get(&id).copied().unwrap_or_default()
    }

    /// Ends the leases of a process's gates. Gates that do not stop are given to no process until
    /// the device is released.
    pub(crate) fn end_gates(&mut self, id: ClientId, stopped: bool) {
        let gates = self.gates_of.remove(&id).unwrap_or_default();
        if !stopped {
            self.gates_stuck = true;
            return;
        }
        for (tni, gates) in TniId::ALL.into_iter().zip(gates) {
            self.gates.give(tni, gates);
        }
    }

    /// The queues of a process.
    pub fn of(&self, id: ClientId) -> Vec<(TniId, CqId)> {
        let cqs = &CqId::ALL[..self.kernel_cq().index()];
        let all = TniId::ALL.into_iter().flat_map(|tni| cqs.iter().map(move |cq| (tni, *cq)));
        all.filter(|(tni, cq)| self.queues[tni.index()][cq.index()].is(id)).collect()
    }

    /// Ends the leases of a process. Its queues that are `stuck` are given to no process until the
    /// device is released.
    pub fn end(&mut self, id: ClientId, stuck: &[(TniId, CqId)]) {
        let kernel = self.kernel_cq();
        let packets = self.packets_of(id).into_iter().map(|tni| (tni, kernel));
        for (tni, cq) in self.of(id).into_iter().chain(packets) {
            let end = if stuck.contains(&(tni, cq)) { Owner::Stuck } else { Owner::Free };
            *self.owner(tni, cq) = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The queues of a process, as numbers.
    fn of(leases: &Leases, n: u64) -> Vec<(u8, u8)> {
        leases.of(id(n)).into_iter().map(|(tni, cq)| (tni.get(), cq.get())).collect()
    }

    fn tni(n: usize) -> TniId {
        TniId::ALL[n]
    }

    fn cq(n: usize) -> CqId {
        CqId::ALL[n]
    }

    fn id(n: u64) -> ClientId {
        ClientId(n)
    }

    fn join(leases: &mut Leases, n: u64, place: Option<(u16, u16)>) -> Result<Option<u8>, Refusal> {
        leases.join(id(n), n as i32, place).map_err(|refused| refused.why)
    }

    #[test]
    fn uncounted_processes_have_queues_per_tni() {
        let mut leases = Leases::default();
        let mut seen = Vec::new();
        for n in 0..11 {
            let cq = join(&mut leases, n, None).unwrap().unwrap();
            let queues: Vec<_> = (0..6).map(|tni| (tni, cq)).collect();
            assert_eq!(of(&leases, n), queues);
            seen.push(cq);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..11).collect::<Vec<_>>());
        assert_eq!(join(&mut leases, 11, None), Err(Refusal::NoneLeft));
        let before = of(&leases, 4);
        leases.end(id(4), &[]);
        assert_eq!(join(&mut leases, 12, None), Ok(Some(before[0].1)));
        assert_eq!(of(&leases, 12), before);
    }

    #[test]
    fn processes_of_a_job_have_their_places() {
        let mut leases = Leases::default();
        for n in 0..8 {
            assert_eq!(join(&mut leases, n, Some((n as u16, 8))), Ok(None));
        }
        assert_eq!(of(&leases, 1), [(3, 0), (3, 1), (4, 0), (4, 1), (5, 0), (5, 1)]);
        assert_eq!(join(&mut leases, 8, Some((3, 8))), Err(Refusal::InUse));
        assert!(leases.of(id(8)).is_empty(), "nothing is given");
        assert_eq!(join(&mut leases, 8, None), Err(Refusal::NoneLeft));
        for place in [(0, 0), (8, 8), (0, 49)] {
            assert_eq!(join(&mut leases, 8, Some(place)), Err(Refusal::Wrong), "{place:?}");
        }
        leases.end(id(3), &[]);
        assert_eq!(join(&mut leases, 8, Some((3, 8))), Ok(None));
    }

    #[test]
    fn two_processes_share_a_queue() {
        let mut leases = Leases::new(Generation::Fx10);
        let half = |leases: &Leases, index| leases.half(Some((index, 9))).unwrap();
        let (lower, upper) = (half(&leases, 0).unwrap(), half(&leases, 8).unwrap());
        assert_eq!(lower.0, upper.0);
        assert!(half(&leases, 1).is_none() && leases.half(None).unwrap().is_none());
        assert_eq!(leases.half(Some((0, 17))).unwrap_err().why, Refusal::Wrong);
        assert!(leases.are_many(9) && !leases.are_many(8));
        let queue = (lower.0.0, lower.0.1);
        leases.join_half(id(8), 8, upper).unwrap();
        leases.join_half(id(0), 7, lower).unwrap();
        let refused = leases.join_half(id(9), 9, lower).unwrap_err();
        assert_eq!(refused.text, "half of control queue 0 of TNI 0 is in use by process 7");
        assert!(!leases.has(id(0), queue) && leases.of(id(0)).is_empty(), "it is not its own");
        assert_eq!(leases.take(id(9), 9, queue.0, queue.1).unwrap_err().why, Refusal::InUse);
        leases.end_half(id(0));
        leases.close_shared(|_| false, &[]);
        leases.join_half(id(1), 1, lower).unwrap();
        for client in [1, 8] {
            leases.end_half(id(client));
        }
        leases.close_shared(|_| true, &[]);
        let refused = leases.take(id(9), 9, queue.0, queue.1).unwrap_err();
        assert_eq!(refused.text, "control queue 0 of TNI 0 is being closed");
        leases.close_shared(|_| false, &[]);
        leases.take(id(9), 9, queue.0, queue.1).unwrap();
        assert_eq!(leases.join_half(id(1), 1, lower).unwrap_err().why, Refusal::InUse);
        leases.give(id(9), queue.0, queue.1).unwrap();
        leases.join_half(id(1), 1, lower).unwrap();
        leases.end_half(id(1));
        leases.close_shared(|_| false, &[lower.0]);
        assert!(leases.any_stuck());
        assert_eq!(leases.join_half(id(1), 1, lower).unwrap_err().why, Refusal::InUse);
    }

    #[test]
    fn further_queues_come_and_go() {
        let mut leases = Leases::default();
        let (one, other) = (id(1), id(2));
        join(&mut leases, 1, None).unwrap();
        join(&mut leases, 2, None).unwrap();
        leases.take(one, 1, tni(5), cq(10)).unwrap();
        let refused = leases.take(other, 2, tni(5), cq(10)).unwrap_err();
        assert_eq!(refused.why, Refusal::InUse);
        assert_eq!(refused.text, "control queue 10 of TNI 5 is in use by process 1");
        assert_eq!(leases.give(other, tni(5), cq(10)).unwrap_err().why, Refusal::Wrong);
        leases.give(one, tni(5), cq(10)).unwrap();
        leases.take(other, 2, tni(5), cq(10)).unwrap();
        assert_eq!(leases.of(other).len(), 7);
    }

    #[test]
    fn kernels_queues_are_no_processs() {
        for generation in Generation::ALL {
            let leases = Leases::new(generation);
            let description = generation.description();
            let (last, kernel) = (description.tnis - 1, description.kernel_cq().get());
            let unit = TniId::ALL[usize::from(last)];
            let user = CqId::ALL[usize::from(kernel - 1)];
            assert_eq!(leases.queue((unit, user).into()), Ok((unit, user)));
            for (tni, cq) in [(0, kernel), (0, kernel + 1), (last + 1, 0), (255, 255)] {
                let refused = leases.queue(Queue { tni, cq }).unwrap_err();
                assert_eq!(refused.why, Refusal::Wrong, "{generation}: {tni} {cq}");
            }
            assert_eq!(leases.unit(last), Ok(unit));
            let refused = leases.unit(last + 1).unwrap_err();
            assert_eq!(refused.why, Refusal::Wrong);
            assert_eq!(refused.text, format!("there is no TNI {}", last + 1));
        }
    }

    #[test]
    fn gates_come_and_go_and_run_out() {
        let mut leases = Leases::default();
        let (one, other) = (id(1), id(2));
        assert_eq!(leases.take_gates(one, tni(3), 2), Ok(1 | 3 << 16));
        assert_eq!(leases.take_gates(other, tni(3), 31).unwrap_err().why, Refusal::NoneLeft);
        assert_eq!(leases.take_gates(other, tni(3), 30), Ok(2 | 0x3fff_ffff << 18));
        for (n, gates) in [(3, 1), (3, 1 << 63), (2, 1)] {
            assert_eq!(leases.give_gates(other, tni(n), gates).unwrap_err().why, Refusal::Wrong);
        }
        leases.give_gates(one, tni(3), 1 << 17).unwrap();
        assert_eq!(leases.gates_of(one), [0, 0, 0, 1 | 1 << 16, 0, 0]);
        leases.end_gates(one, true);
        assert_eq!(leases.take_gates(other, tni(3), 2), Ok(1 | 3 << 16));
        assert!(!leases.any_stuck());
        leases.end_gates(other, false);
        assert!(leases.any_stuck());
        assert_eq!(leases.take_gates(one, tni(3), 1).unwrap_err().why, Refusal::NoneLeft);
        assert_eq!(leases.take_gates(one, tni(3), 0), Ok(4));
    }

    #[test]
    fn unstoppable_queues_are_not_given_again() {
        let mut leases = Leases::default();
        assert_eq!(join(&mut leases, 1, None), Ok(Some(0)));
        leases.end(id(1), &[(TniId::ALL[2], CqId::ALL[0])]);
        assert_eq!(leases.take(id(2), 2, tni(2), cq(0)).unwrap_err().why, Refusal::InUse);
        assert_eq!(join(&mut leases, 2, None), Ok(Some(6)));
        leases.take(id(2), 2, tni(1), cq(0)).unwrap();
    }
}
