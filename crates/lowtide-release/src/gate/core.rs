//! What passes and closers share: the word, and a lock with two conditions for threads that wait.
//!
//! A thread takes the lock only if it found the gate closing, or closes it itself. The word alone
//! decides for everybody else.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lowtide_types::{ThreadMark, ThreadMarks};

use super::holders::GateHolders;
use super::report::{GateState, Mode, Step};
use super::word::{Seen, Word};
use crate::fork::ForkGuard;
use crate::sync::{Condvar, IS_MODEL, Mutex, MutexGuard, unpoisoned};

/// The identity of a gate, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GateId(u64);

impl Default for GateId {
    fn default() -> GateId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        GateId(NEXT.fetch_add(1, Relaxed))
    }
}

/// Says that a thread runs a part of the release or pause that closed a gate.
pub(crate) type Inside = ThreadMark<GateId>;

// A thread that waits for a gate which only it can free would wait for ever. These lists tell. They are
// per thread, so that a pass costs no lock.
thread_local! {
    /// The gates of borrowed passes. One that became owned may be anywhere, and is not here.
    static PASSES: ThreadMarks<GateId> = const { ThreadMarks::new() };
    static INSIDE: ThreadMarks<GateId> = const { ThreadMarks::new() };
    /// The gates whose memory this thread wakes.
    static WAKING: ThreadMarks<GateId> = const { ThreadMarks::new() };
}

#[derive(Debug, Default)]
pub(super) struct Core {
    pub(super) word: Word,
    pub(super) id: GateId,
    pub(super) holders: GateHolders,
    /// The process that the gate belongs to. No lock is touched in another.
    made_in: ForkGuard,
    queue: Mutex<Queue>,
    /// The gate opened: for waiting work, parked work and the next closer.
    opened: Condvar,
    /// The last active pass left or parked: for the closer.
    stopped: Condvar,
    /// Held by the work that wakes memory. A wake that panics leaves memory marked as asleep.
    waking: Mutex<()>,
}

/// How work entered.
pub(super) enum Entered {
    /// Its pass is counted. The word is from then.
    Counted(Seen),
    /// The gate is closing, and this thread has a pass already: this one is counted beside it.
    Nested,
    /// This thread is inside the closed gate, where it would wait for itself, or it inherited the gate.
    /// Its pass counts for nothing.
    Inside,
}

/// What is known under the lock.
#[derive(Debug, Default)]
struct Queue {
    /// How the gate is being closed, or is closed; `None` while it is open.
    closing: Option<Mode>,
    parked: usize,
    waiting: usize,
    /// How often the gate was opened. Held work waits for the next time.
    opened: u64,
}

impl Core {
    /// Adds a pass, after the gate has opened. Does not wait for what waits for this thread.
    pub(super) fn enter(&self) -> Entered {
        if self.is_inherited() {
            return Entered::Inside;
        }
        self.word.enter().map_or_else(|| self.enter_closing(), Entered::Counted)
    }

    #[cold]
    fn enter_closing(&self) -> Entered {
        if self.is_inside() {
            Entered::Inside
        } else if self.is_held_here() {
            self.word.enter_within();
            Entered::Nested
        } else {
            Entered::Counted(self.enter_when_open())
        }
    }

    /// Whether a forked child inherited the gate.
    pub(super) fn is_inherited(&self) -> bool {
        self.made_in.is_inherited()
    }

    /// Records a borrowed pass of this thread. Nothing is recorded while the thread ends: it begins no
    /// release then.
    pub(super) fn hold(&self) {
        if !IS_MODEL {
            ThreadMarks::add(&PASSES, self.id);
        }
    }

    /// Forgets a borrowed pass of this thread.
    pub(super) fn let_go(&self) {
        ThreadMarks::remove(&PASSES, &self.id);
    }

    /// Marks that this thread runs a part of the release or pause that closed the gate.
    pub(super) fn inside(&self) -> Inside {
        ThreadMarks::set(&INSIDE, self.id)
    }

    /// Whether this thread holds a pass of this gate: it could never close it.
    pub(super) fn is_held_here(&self) -> bool {
        ThreadMarks::has(&PASSES, &self.id)
    }

    /// Whether this thread runs a part of the release that has this gate closed.
    pub(super) fn is_inside(&self) -> bool {
        ThreadMarks::has(&INSIDE, &self.id)
    }

    fn enter_when_open(&self) -> Seen {
        let mut queue = self.queue();
        // It may have opened since.
        if let Some(seen) = self.word.enter() {
            return seen;
        }
        queue.waiting += 1;
        // The opener counts this pass.
        self.wait_for_open(queue);
        self.word.read()
    }

    /// Removes a pass. One that a forked child inherited counts in the parent alone.
    pub(super) fn leave(&self) {
        if !self.is_inherited() && self.word.leave() {
            self.tell_closer(self.queue());
        }
    }

    /// Tells work what to do at a checkpoint; parks it if the gate was closed in place and the pass
    /// may park.
    pub(super) fn checkpoint(&self, may_park: bool) -> Step {
        if self.is_inherited() {
            return Step::Abort;
        }
        if !self.word.is_closing() {
            return Step::Go;
        }
        let mut queue = self.queue();
        match queue.closing {
            Some(Mode::Abort) => Step::Abort,
            Some(Mode::Retract) => Step::Retract,
            Some(Mode::InPlace) if may_park => {
                queue.parked += 1;
                if self.word.leave() {
                    self.stopped.notify_one();
                }
                // The opener counts this pass again.
                self.wait_for_open(queue);
                Step::Go
            }
            None | Some(Mode::InPlace | Mode::Drain) => Step::Go,
        }
    }

    /// Begins to close the gate: waits until no other closer has it, then keeps new work out.
    pub(super) fn begin_closing(&self, mode: Mode) {
        let mut queue = self.queue();
        while queue.closing.is_some() {
            queue = wait(&self.opened, queue);
        }
        queue.closing = Some(mode);
        self.word.close();
    }

    /// The same without waiting. Returns whether this caller is the closer now.
    pub(super) fn try_begin_closing(&self, mode: Mode) -> bool {
        let mut queue = self.queue();
        if queue.closing.is_some() {
            return false;
        }
        queue.closing = Some(mode);
        self.word.close();
        true
    }

    /// Waits until no pass is active. Only for the closer.
    pub(super) fn wait_until_quiet(&self) {
        let mut queue = self.queue();
        while self.word.read().active() > 0 {
            queue = wait(&self.stopped, queue);
        }
    }

    /// Closes the gate if no pass is active and no other closer has it; otherwise returns the number
    /// of active passes and whether another closer has it.
    pub(super) fn close_if_quiet(&self, mode: Mode) -> Result<(), (usize, bool)> {
        let mut queue = self.queue();
        if queue.closing.is_some() {
            return Err((self.word.read().active(), true));
        }
        self.word.close_if_quiet().map_err(|seen| (seen.active(), false))?;
        queue.closing = Some(mode);
        Ok(())
    }

    /// Opens the gate. Only for the closer. Does nothing in a forked child: the parent has it closed.
    pub(super) fn open(&self) {
        if self.is_inherited() {
            return;
        }
        // Before: the next closer may be kept by others.
        self.holders.opened();
        let mut queue = self.queue();
        queue.closing = None;
        queue.opened += 1;
        self.word.open(queue.parked + queue.waiting);
        (queue.parked, queue.waiting) = (0, 0);
        drop(queue);
        self.opened.notify_all();
    }

    /// Wakes memory, if no other work has done so meanwhile. The caller has a pass. Does nothing if the
    /// wake of this gate runs on this thread: it would wait for itself.
    pub(super) fn wake<E>(&self, wake: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if ThreadMarks::has(&WAKING, &self.id) {
            return Ok(());
        }
        let _waking = (!IS_MODEL).then(|| ThreadMarks::set(&WAKING, self.id));
        let _one_at_a_time = unpoisoned(self.waking.lock());
        if self.word.read().is_asleep() {
            wake()?;
            self.word.mark_awake();
        }
        Ok(())
    }

    pub(super) fn state(&self) -> GateState {
        if self.is_inherited() {
            return GateState { open: false, active: 0, parked: 0, waiting: 0 };
        }
        let queue = self.queue();
        GateState {
            open: queue.closing.is_none(),
            active: self.word.read().active(),
            parked: queue.parked,
            waiting: queue.waiting,
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        unpoisoned(self.queue.lock())
    }

    /// Tells the closer that the last pass has stopped. Under the lock, because the closer may have
    /// read the word and not wait yet.
    fn tell_closer(&self, _locked: MutexGuard<'_, Queue>) {
        self.stopped.notify_one();
    }

    fn wait_for_open(&self, mut queue: MutexGuard<'_, Queue>) {
        let before = queue.opened;
        while queue.opened == before {
            queue = wait(&self.opened, queue);
        }
    }
}

fn wait<'a>(changed: &Condvar, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
    unpoisoned(changed.wait(queue))
}
