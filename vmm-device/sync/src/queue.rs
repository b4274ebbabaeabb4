//! Queues between threads. Each holds a bounded number of bytes, and is made with a rule for items
//! that it has no room for.
//!
//! All queues that a guest, a client or another shard of a machine can fill are of this kind. An
//! empty queue takes no memory.

use std::collections::VecDeque;
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, TryRecvError, TrySendError};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::{lock, wait, wait_timeout};

/// An item of a queue.
pub trait Item: Sized {
    /// The bytes that it refers to, besides those of the item itself.
    fn bytes(&self) -> usize {
        0
    }

    /// Merges a later item into this one, or returns it if the two cannot be one.
    fn absorb(&mut self, later: Self) -> Option<Self> {
        Some(later)
    }
}

/// An item that several queues share. Each of them counts all of it.
impl<T: Item> Item for Arc<T> {
    fn bytes(&self) -> usize {
        size_of::<T>() + (**self).bytes()
    }
}

/// An item with its sender.
impl<F: Copy, T: Item> Item for (F, T) {
    fn bytes(&self) -> usize {
        self.1.bytes()
    }
}

/// The rule for an item that a queue has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The sender waits for room.
    Wait,
    /// The sender waits for room for this long. Then the item is refused.
    WaitFor(Duration),
    /// The oldest items are dropped, and counted.
    DropOldest,
    /// The queue is closed. The receiver gets what it contains, and then its end.
    Close,
    /// The item is merged with an earlier one. Items that cannot be merged with any are added; the
    /// type of the items must make these few.
    Merge,
}

/// Capacity from which an empty queue gives its memory back, in items.
const KEPT: usize = 64;

/// A multiple of its bytes that a queue holds for [`Sender::force`].
pub const RESERVE: usize = 8;

struct Shared<T> {
    /// The most bytes that it holds. A single larger item is accepted into an empty queue.
    most: usize,
    when_full: WhenFull,
    state: Mutex<State<T>>,
    came: Condvar,
    room: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    bytes: usize,
    dropped: u64,
    senders: usize,
    /// Nothing more is accepted: it was closed, or the receiver is gone.
    closed: bool,
    /// The receiver is gone or about to stop, so no sender waits for it.
    released: bool,
}

/// Creates a queue of at most `most` bytes. Each item counts with the size of its type and
/// [`Item::bytes`].
pub fn queue<T: Item>(most: usize, when_full: WhenFull) -> (Sender<T>, Receiver<T>) {
    let state = State {
        items: VecDeque::new(),
        bytes: 0,
        dropped: 0,
        senders: 1,
        closed: false,
        released: false,
    };
    let (came, room) = (Condvar::new(), Condvar::new());
    let shared = Arc::new(Shared { most, when_full, state: Mutex::new(state), came, room });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

fn cost<T: Item>(item: &T) -> usize {
    size_of::<T>() + item.bytes()
}

impl<T: Item> State<T> {
    fn push(&mut self, item: T) {
        self.bytes += cost(&item);
        self.items.push_back(item);
    }

    fn pop(&mut self) -> Option<T> {
        let item = self.items.pop_front()?;
        self.bytes -= cost(&item);
        if self.items.is_empty() && self.items.capacity() > KEPT {
            self.items = VecDeque::new();
        }
        Some(item)
    }

    /// Returns true if an item of this cost fits. Any fits into an empty queue.
    fn has_room(&self, cost: usize, most: usize) -> bool {
        self.items.is_empty() || self.bytes + cost <= most
    }

    /// Merges an item into one of the last `depth` items, or returns it.
    fn merge(&mut self, item: T, depth: usize) -> Option<T> {
        let mut left = item;
        for earlier in self.items.iter_mut().rev().take(depth) {
            let before = earlier.bytes();
            match earlier.absorb(left) {
                None => {
                    let after = earlier.bytes();
                    self.bytes = (self.bytes + after).saturating_sub(before);
                    return None;
                }
                Some(item) => left = item,
            }
        }
        Some(left)
    }
}

/// The end of a queue that items are put into.
pub struct Sender<T: Item>(Arc<Shared<T>>);

impl<T: Item> Sender<T> {
    /// Adds an item. If there is no room, the queue's rule decides.
    ///
    /// # Errors
    ///
    /// The item, if it was refused or the receiver is gone.
    pub fn send(&self, item: T) -> Result<(), TrySendError<T>> {
        self.add(item, Some(self.0.when_full))
    }

    /// Adds an item. If there is no room, it is refused, even if the queue's rule is another.
    ///
    /// # Errors
    ///
    /// As [`Sender::send`].
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        self.add(item, Some(WhenFull::WaitFor(Duration::ZERO)))
    }

    /// Adds an item that must arrive, even if there is no room. These are few by their nature; they
    /// are refused beyond [`RESERVE`] times the queue's bytes.
    ///
    /// # Errors
    ///
    /// The item, if the receiver is gone or the reserve is used up.
    pub fn force(&self, item: T) -> Result<(), TrySendError<T>> {
        self.add(item, None)
    }

    /// Drops what is in the queue, and adds an item that makes it void.
    ///
    /// # Errors
    ///
    /// As [`Sender::force`].
    pub fn replace(&self, item: T) -> Result<(), TrySendError<T>> {
        {
            let mut state = lock(&self.0.state);
            (state.items, state.bytes) = (VecDeque::new(), 0);
        }
        self.0.room.notify_all();
        self.force(item)
    }

    /// Returns whether nothing is accepted any more, because the receiver is gone or the queue was
    /// full.
    pub fn is_closed(&self) -> bool {
        lock(&self.0.state).closed
    }

    fn add(&self, item: T, rule: Option<WhenFull>) -> Result<(), TrySendError<T>> {
        let Shared { most, state, came, room, .. } = &*self.0;
        let mut state = lock(state);
        if state.closed {
            return Err(TrySendError::Disconnected(item));
        }
        let Some(mut item) = state.merge(item, 1) else { return Ok(()) };
        let mut until = None;
        let most = if rule.is_none() { most.saturating_mul(RESERVE) } else { *most };
        let rule = rule.unwrap_or(WhenFull::WaitFor(Duration::ZERO));
        while !state.has_room(cost(&item), most) {
            match rule {
                WhenFull::Wait if !state.released => state = wait(room, state),
                WhenFull::WaitFor(time) if !state.released && !time.is_zero() => {
                    let now = Instant::now();
                    let left = until.get_or_insert(now + time).saturating_duration_since(now);
                    if left.is_zero() {
                        return Err(TrySendError::Full(item));
                    }
                    state = wait_timeout(room, state, left);
                }
                WhenFull::Wait | WhenFull::WaitFor(_) => return Err(TrySendError::Full(item)),
                WhenFull::DropOldest => state.dropped += u64::from(state.pop().is_some()),
                WhenFull::Close => {
                    state.closed = true;
                    came.notify_all();
                }
                WhenFull::Merge => {
                    let all = state.items.len();
                    let Some(new) = state.merge(item, all) else { return Ok(()) };
                    item = new;
                    break;
                }
            }
            if state.closed {
                return Err(TrySendError::Disconnected(item));
            }
        }
        state.push(item);
        came.notify_one();
        Ok(())
    }
}

impl<T: Item> Clone for Sender<T> {
    fn clone(&self) -> Self {
        lock(&self.0.state).senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T: Item> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.senders -= 1;
        if state.senders == 0 {
            self.0.came.notify_all();
        }
    }
}

/// The end of a queue that items are taken from.
pub struct Receiver<T: Item>(Arc<Shared<T>>);

impl<T: Item> Receiver<T> {
    /// Waits for the next item.
    ///
    /// # Errors
    ///
    /// If the queue is empty and no more can come.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = lock(&self.0.state);
        loop {
            if let Some(item) = self.take(&mut state) {
                return Ok(item);
            }
            if state.has_ended() {
                return Err(RecvError);
            }
            state = wait(&self.0.came, state);
        }
    }

    /// Waits for the next item, at most for the given time.
    ///
    /// # Errors
    ///
    /// If none arrives before the timeout, or no more can arrive.
    pub fn recv_timeout(&self, time: Duration) -> Result<T, RecvTimeoutError> {
        let mut until = None;
        let mut state = lock(&self.0.state);
        loop {
            if let Some(item) = self.take(&mut state) {
                return Ok(item);
            }
            if state.has_ended() {
                return Err(RecvTimeoutError::Disconnected);
            }
            let now = Instant::now();
            // A time without end, in practice.
            let end = *until.get_or_insert(now.checked_add(time));
            let left = end.map_or(time, |end| end.saturating_duration_since(now));
            if left.is_zero() {
                return Err(RecvTimeoutError::Timeout);
            }
            state = wait_timeout(&self.0.came, state, left);
        }
    }

    /// Returns the next item if there is one.
    ///
    /// # Errors
    ///
    /// If there is none now, or no more can come.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = lock(&self.0.state);
        match self.take(&mut state) {
            Some(item) => Ok(item),
            None if state.has_ended() => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    /// Waits for items until no more can come.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }

    /// Returns the items that are there.
    pub fn try_iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.try_recv().ok())
    }

    /// Returns how many items were dropped since the last call.
    pub fn dropped(&self) -> u64 {
        std::mem::take(&mut lock(&self.0.state).dropped)
    }

    /// Stops senders from waiting: from now on, items without room are refused. Must be called
    /// before the receiver waits for a thread that may be sending.
    pub fn release(&self) {
        lock(&self.0.state).released = true;
        self.0.room.notify_all();
    }

    fn take(&self, state: &mut State<T>) -> Option<T> {
        let item = state.pop()?;
        self.0.room.notify_all();
        Some(item)
    }
}

impl<T: Item> State<T> {
    fn has_ended(&self) -> bool {
        self.closed || self.senders == 0
    }
}

impl<T: Item> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.closed = true;
        let left = std::mem::take(&mut state.items);
        state.bytes = 0;
        drop(state);
        self.0.room.notify_all();
        // Without the lock: items may hold senders of other queues.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    enum Word {
        Text(String),
        Count(u64),
    }

    impl Item for Word {
        fn bytes(&self) -> usize {
            match self {
                Self::Text(text) => text.len(),
                Self::Count(_) => 0,
            }
        }

        fn absorb(&mut self, later: Self) -> Option<Self> {
            match (self, later) {
                (Self::Count(sum), Self::Count(more)) => {
                    *sum += more;
                    None
                }
                (_, later) => Some(later),
            }
        }
    }

    fn text(length: usize) -> Word {
        Word::Text("x".repeat(length))
    }

    /// The bytes of this many items of this length.
    fn of(items: usize, length: usize) -> usize {
        items * (size_of::<Word>() + length)
    }

    #[test]
    fn full_queue_never_grows() {
        let soon = Duration::from_millis(1);
        let rules = [WhenFull::WaitFor(soon), WhenFull::DropOldest, WhenFull::Close];
        for rule in rules {
            let (sender, receiver) = queue(of(10, 100), rule);
            let sent = (0..20).filter(|_| sender.send(text(100)).is_ok()).count();
            assert_eq!(lock(&receiver.0.state).bytes, of(10, 100), "{rule:?}");
            let dropped = if rule == WhenFull::DropOldest { 10 } else { 0 };
            assert_eq!((sent as u64, receiver.dropped()), (10 + dropped, dropped), "{rule:?}");
            assert_eq!(receiver.try_iter().count(), 10);
            assert_eq!(lock(&receiver.0.state).bytes, 0);
            // A closed one stays closed.
            assert_eq!(sender.send(text(1)).is_err(), rule == WhenFull::Close);
        }
    }

    #[test]
    fn full_queue_merges_items_of_a_kind() {
        let (sender, receiver) = queue(of(4, 1), WhenFull::Merge);
        for _ in 0..1000 {
            let _ = sender.send(Word::Count(1));
        }
        for _ in 0..3 {
            sender.send(text(1)).unwrap();
        }
        // There is no room, and the last item is of another kind.
        sender.send(Word::Count(1)).unwrap();
        sender.send(Word::Count(1)).unwrap();
        assert_eq!(receiver.recv(), Ok(Word::Count(1002)));
        assert_eq!(receiver.try_iter().count(), 3);
    }

    #[test]
    fn sender_waits_until_the_receiver_ends() {
        let (sender, receiver) = queue(of(2, 1), WhenFull::Wait);
        thread::scope(|scope| {
            let sending = scope.spawn(|| (0..10).filter(|_| sender.send(text(1)).is_ok()).count());
            for _ in 0..5 {
                receiver.recv().unwrap();
            }
            receiver.release();
            assert!((5..=7).contains(&sending.join().unwrap()));
            assert!(sender.try_send(text(1)).is_err() || receiver.try_recv().is_ok());
            // A forced item arrives.
            sender.force(text(5)).unwrap();
            assert_eq!(receiver.try_iter().last(), Some(text(5)));
        });
    }

    #[test]
    fn superseding_item_replaces_the_rest() {
        let (sender, receiver) = queue(of(2, 1), WhenFull::WaitFor(Duration::ZERO));
        while sender.send(text(1)).is_ok() {}
        sender.replace(text(9)).unwrap();
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [text(9)]);
    }

    #[test]
    fn either_end_ends_it() {
        let (sender, receiver) = queue(of(2, 1), WhenFull::Wait);
        let other = sender.clone();
        other.send(text(1)).unwrap();
        drop(sender);
        assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Ok(text(1)));
        let late = receiver.recv_timeout(Duration::from_millis(1));
        assert_eq!(late, Err(RecvTimeoutError::Timeout));
        drop(other);
        assert_eq!(receiver.recv(), Err(RecvError));
        let (sender, receiver) = queue(of(1, 1), WhenFull::Wait);
        sender.send(text(1)).unwrap();
        thread::scope(|scope| {
            let sending = scope.spawn(|| sender.send(text(1)));
            drop(receiver);
            assert!(matches!(sending.join().unwrap(), Err(TrySendError::Disconnected(_))));
        });
    }

    #[test]
    fn empty_queue_takes_no_memory() {
        let (sender, receiver) = queue(of(1000, 1), WhenFull::Wait);
        assert_eq!(lock(&receiver.0.state).items.capacity(), 0);
        (0..1000).for_each(|_| sender.send(text(1)).unwrap());
        assert_eq!(receiver.try_iter().count(), 1000);
        assert!(lock(&receiver.0.state).items.capacity() <= KEPT);
    }
}
