//! Groups of processes, whose gates come from uTofu.

use alloc::vec;
use alloc::vec::Vec;

use thiserror::Error;
use tofu_abi::reduce::{MAX_UTOFU_INTEGERS, Op};
use tofu_abi::{BgId, TniId};
use tofu_utofu::ids::VbgId;
use tofu_utofu::{Code, Context, Error, Provider, VbgSetting};

use crate::plan::{Algorithm, Choice, Costs, GateOf, GroupShape, NoChoice, Plan, choices};

/// The exchange among members while a group is made: by MPI, by files, by Puts.
pub trait Exchange {
    /// The error of an exchange.
    type Error;

    /// Every member contributes the same number of values, and gets those of all members, by rank.
    ///
    /// # Errors
    ///
    /// If it could not be done.
    fn allgather(&mut self, mine: &[u64], all: &mut [u64]) -> Result<(), Self::Error>;
}

/// Which group to make, and what this process is in it.
#[derive(Clone, Copy, Debug)]
pub struct GroupConfig {
    /// This member, below their number.
    pub rank: u32,
    /// The members. If the ranks of a job form a box of X by Y by Z, give its lengths here, so that
    /// the three-dimensional versions of algorithms are considered; otherwise they form a line.
    pub shape: GroupShape,
    /// An algorithm that is wanted; otherwise one is chosen.
    pub algorithm: Option<Algorithm>,
    /// The interface whose gates the first process of a node tries first. Other processes of the
    /// node begin with interfaces after it. If one has not enough, others are tried.
    pub tni: TniId,
}

/// The reason why a group cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GroupError<E> {
    /// The exchange among members failed.
    #[error("exchange among the members: {0}")]
    Exchange(E),
    /// The group makes no sense.
    #[error(transparent)]
    Plan(NoChoice),
    /// The rank is not below the number of members.
    #[error("rank {0} is not below the number of members")]
    Rank(u32),
    /// uTofu refuses.
    #[error(transparent)]
    Utofu(#[from] Error),
    /// Some member has not enough gates for any algorithm.
    #[error(
        "some member has not enough barrier gates left on any TNI: free groups that are not \
         needed, or choose an algorithm with fewer gates"
    )]
    Full,
    /// uTofu has refused another member's links.
    #[error("member {0} could not link its barrier gates; see its error")]
    OtherMember(u32),
}

/// A group of processes that synchronise and reduce by their barrier gates. Dropping it frees the
/// gates.
///
/// All members call the same methods in the same order, with the same operations and numbers of
/// elements. Several groups can be in use at the same time.
pub struct Group<'c, P: Provider + ?Sized> {
    context: &'c Context<P>,
    rank: u32,
    members: u32,
    algorithm: Algorithm,
    nanoseconds: u32,
    /// The start and end gate first.
    gates: Vec<VbgId>,
}

impl<'c, P: Provider + ?Sized> Group<'c, P> {
    /// Makes a group. All members call it at the same time.
    ///
    /// # Errors
    ///
    /// See [`GroupError`]. Nothing is allocated then. All members get the same outcome, except that
    /// the one that uTofu refuses knows why.
    pub fn new<X: Exchange>(
        context: &'c Context<P>,
        config: &GroupConfig,
        exchange: &mut X,
    ) -> Result<Self, GroupError<X::Error>> {
        let members = config.shape.members();
        if config.rank >= members {
            return Err(GroupError::Rank(config.rank));
        }
        let mut gather = |mine: &[u64]| {
            let mut all = vec![0; mine.len() * members as usize];
            exchange.allgather(mine, &mut all).map(|()| all).map_err(GroupError::Exchange)
        };
        let nodes = gather(&[VbgId::new(context.coords(), TniId::ALL[0], BgId::ALL[0]).0])?;
        let node = |member: u32| VbgId(nodes.get(member as usize).copied().unwrap_or(0));
        let far = |a, b| node(a).coords().straight_hops(node(b).coords());
        let wanted = config.algorithm.as_slice();
        let algorithms = if wanted.is_empty() { &Algorithm::ALL[..] } else { wanted };
        let choices = choices(algorithms, config.shape, Costs::TOFUD, far)
            .map_err(|group| GroupError::Plan(group.into()))?;
        for Choice { algorithm, plan, nanoseconds } in choices {
            let most = plan.most_gates();
            let gates = allocate(context, config.tni, plan.gates(config.rank as usize).len())?;
            let mut mine = vec![VbgId::NULL.0; most];
            mine.iter_mut().zip(&gates).for_each(|(mine, gate)| *mine = gate.0);
            let group = Self { context, rank: config.rank, members, algorithm, nanoseconds, gates };
            let all = gather(&mine)?;
            if all.chunks(most).any(|member| member.first() == Some(&VbgId::NULL.0)) {
                // A member has not enough; what this one has is freed with the group.
                continue;
            }
            let linked = group
                .link(&plan, |at| VbgId(all[at.member as usize * most + usize::from(at.gate)]));
            // Signals to gates that are not linked yet would be lost, so all members wait for it.
            let all = gather(&[linked.is_ok().into()])?;
            linked?;
            return match all.iter().position(|ok| *ok == 0) {
                None => Ok(group),
                Some(member) => Err(GroupError::OtherMember(member as u32)),
            };
        }
        Err(GroupError::Full)
    }

    fn link(&self, plan: &Plan, id: impl Fn(GateOf) -> VbgId) -> Result<(), Error> {
        let own = |gate: u8| self.gates[usize::from(gate)];
        let links = plan.gates(self.rank as usize);
        let settings: Vec<_> = links
            .iter()
            .zip(&self.gates)
            .map(|(links, gate)| VbgSetting {
                src_local: links.src_local.map(own),
                src_remote: links.src_remote.map(&id),
                dst_local: links.dst_local.map(own),
                dst_remote: links.dst_remote.map(&id),
                ..VbgSetting::new(*gate)
            })
            .collect();
        self.context.set_vbg(&settings)
    }

    /// This member.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of members.
    pub fn members(&self) -> u32 {
        self.members
    }

    /// The links of the gates.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The time of a barrier on TofuD in nanoseconds, by the figures that were used to choose the
    /// algorithm.
    pub fn nanoseconds(&self) -> u32 {
        self.nanoseconds
    }

    /// The gates of this member, its start and end gate first: for uTofu's own functions, which do
    /// not wait.
    pub fn gates(&self) -> &[VbgId] {
        &self.gates
    }

    fn over<T>(&self, mut poll: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        loop {
            match poll() {
                Err(error) if error.code() == Code::NotCompleted => {}
                result => return result,
            }
        }
    }

    /// Waits until all members are here.
    ///
    /// # Errors
    ///
    /// As [`Context::barrier`] and [`Context::poll_barrier`].
    pub fn barrier(&self) -> Result<(), Error> {
        let gate = self.gates[0];
        self.context.barrier(gate, 0)?;
        self.over(|| self.context.poll_barrier(gate, 0))
    }

    /// Replaces the integers by the result over all members: any number of them, six in a round
    /// (one on Tofu and Tofu2, where there is no [`Op::MaxLoc`] for that).
    ///
    /// # Errors
    ///
    /// As [`Context::reduce_uint64`] and [`Context::poll_reduce_uint64`].
    pub fn allreduce(&self, op: Op, data: &mut [u64]) -> Result<(), Error> {
        let gate = self.gates[0];
        for part in data.chunks_mut(self.context.integers_at_once()) {
            self.context.reduce_uint64(gate, op.code().into(), part, 0)?;
            let result = self.over(|| self.context.poll_reduce_uint64(gate, 0))?;
            part.copy_from_slice(&result);
        }
        Ok(())
    }

    /// Replaces the numbers by their sums over all members: any number of them, three in a round.
    /// All members always get the same result, to the last bit.
    ///
    /// # Errors
    ///
    /// As [`Context::reduce_double`] and [`Context::poll_reduce_double`].
    pub fn allreduce_sum(&self, data: &mut [f64]) -> Result<(), Error> {
        let gate = self.gates[0];
        for part in data.chunks_mut(self.context.doubles_at_once()) {
            self.context.reduce_double(gate, Op::FpSum.code().into(), part, 0)?;
            let result = self.over(|| self.context.poll_reduce_double(gate, 0))?;
            part.copy_from_slice(&result);
        }
        Ok(())
    }

    /// The same as [`Group::allreduce`] for member `root` alone; others keep their values.
    ///
    /// # Errors
    ///
    /// As [`Group::allreduce`]; [`Code::InvalidNumber`] if there is no such member.
    pub fn reduce(&self, root: u32, op: Op, data: &mut [u64]) -> Result<(), Error> {
        self.check(root)?;
        if root == self.rank {
            return self.allreduce(op, data);
        }
        for part in data.chunks(MAX_UTOFU_INTEGERS) {
            let mut copy = [0; MAX_UTOFU_INTEGERS];
            copy[..part.len()].copy_from_slice(part);
            self.allreduce(op, &mut copy[..part.len()])?;
        }
        Ok(())
    }

    /// Gives all members the values of member `root`. It is also a barrier.
    ///
    /// # Errors
    ///
    /// As [`Group::reduce`].
    pub fn broadcast(&self, root: u32, data: &mut [u64]) -> Result<(), Error> {
        self.check(root)?;
        if root != self.rank {
            data.fill(0);
        }
        if data.is_empty() {
            return self.barrier();
        }
        self.allreduce(Op::Or, data)
    }

    fn check(&self, root: u32) -> Result<(), Error> {
        if root < self.members {
            return Ok(());
        }
        let hint = "not below the number of members";
        Err(Error::with_value(Code::InvalidNumber, "root", root.into(), hint))
    }
}

impl<P: Provider + ?Sized> Drop for Group<'_, P> {
    fn drop(&mut self) {
        if !self.gates.is_empty() {
            // The error has nowhere to go; gates that stay in use are not given to others.
            let _ = self.context.free_vbg(&self.gates);
        }
    }
}

/// Gates of the first interface that has so many; none if there is no such.
///
/// Processes of a node begin with different interfaces, `first` and those after it: channels of the
/// same interface are served one after another (TofuD paper, V.E).
fn allocate<P: Provider + ?Sized>(
    context: &Context<P>,
    first: TniId,
    number: usize,
) -> Result<Vec<VbgId>, Error> {
    let tnis = || context.barrier_tnis();
    let place = tnis().position(|tni| tni >= first).unwrap_or(0);
    let begin = (place + usize::from(context.share().turn())) % tnis().count().max(1);
    for tni in tnis().skip(begin).chain(tnis().take(begin)) {
        match context.alloc_vbg(tni.get().into(), number, 0) {
            Err(error) if error.code() == Code::Full => {}
            result => return result,
        }
    }
    Ok(Vec::new())
}
