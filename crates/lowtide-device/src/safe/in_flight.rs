//! What a stream's work uses, kept alive until the stream is known to have passed it.
//!
//! Work is numbered in the order in which it was given. A piece of work *pins* its range of the
//! reservation and its host memory; the pins go when the stream has passed its number.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use crate::backend::BackendStream;
use crate::safe::host_memory::HostPin;
use crate::safe::reservation::Pin;
use crate::sync::lock;

/// The number of the last piece of work before a point in a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkNumber(u64);

/// The memory that one piece of work uses.
pub(crate) struct Pins {
    pub(crate) ranges: Vec<Pin>,
    pub(crate) host: Option<HostPin>,
}

impl Pins {
    fn let_go(&mut self) {
        self.ranges.iter().for_each(Pin::let_go);
        self.host.iter_mut().for_each(HostPin::let_go);
    }
}

/// The work of a stream that may not be done yet.
#[derive(Default)]
pub(crate) struct InFlight {
    pins: Mutex<PinList>,
}

#[derive(Default)]
struct PinList {
    given: WorkNumber,
    pins: VecDeque<(WorkNumber, Pins)>,
}

impl InFlight {
    fn pins(&self) -> MutexGuard<'_, PinList> {
        lock(&self.pins)
    }

    /// Returns the number of the work that was given last.
    pub(crate) fn given(&self) -> WorkNumber {
        self.pins().given
    }

    /// Returns how many pieces of work are pinned.
    pub(crate) fn count(&self) -> usize {
        self.pins().pins.len()
    }

    /// Keeps what work uses that was just given, even in part. It is numbered now and not before: a
    /// wait that began earlier on another thread does not let go of it.
    pub(crate) fn keep(&self, pins: Pins) {
        let mut list = self.pins();
        list.given.0 += 1;
        let number = list.given;
        list.pins.push_back((number, pins));
    }

    /// Lets go of what the work up to a number uses.
    pub(crate) fn passed(&self, until: WorkNumber) {
        let mut list = self.pins();
        let count = list.pins.partition_point(|(number, _)| *number <= until);
        let mut done: Vec<_> = list.pins.drain(..count).collect();
        // While the list is locked, so that a thread that waits for the same point finds everything
        // let go. Memory that goes with the pins goes without the lock.
        for (_, pins) in &mut done {
            pins.let_go();
        }
        drop(list);
        drop(done);
    }

    /// Takes all pins out, for a stream that is being dropped.
    pub(crate) fn take(&self) -> AbandonedPins {
        AbandonedPins(std::mem::take(&mut *self.pins()).pins)
    }
}

/// The pins of a stream that was dropped.
#[derive(Default)]
pub(crate) struct AbandonedPins(VecDeque<(WorkNumber, Pins)>);

impl AbandonedPins {
    /// Waits for the stream and lets go. Waits once more if it was refused, since one refusal says
    /// nothing of the work. A lost context uses nothing any more. If it cannot be known whether the
    /// work is done, its memory is never taken from under it: it stays mapped for as long as the
    /// process lives.
    pub(crate) fn release_when_passed(self, stream: &dyn BackendStream) {
        if self.0.is_empty() {
            return;
        }
        match stream.synchronize().or_else(|_| stream.synchronize()) {
            Ok(()) => {}
            Err(error) if error.is_context_lost() => {
                tracing::error!(%error, "a stream was dropped with work that failed");
            }
            Err(error) => {
                tracing::error!(%error, "a stream does not say whether it is done; its memory stays");
                std::mem::forget(self.0);
            }
        }
    }
}
