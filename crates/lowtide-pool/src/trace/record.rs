//! Recording: the allocations and frees of a pool, as a trace that `lowtide replay` can replay.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use lowtide_device::{Address, Bytes};

use crate::pool::fence::StreamId;

/// The allocations and frees of a pool, in order. A free of a block that was allocated before the
/// recording began is left out.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    events: Vec<Event>,
    live: std::collections::HashMap<u64, Bytes>,
}

#[derive(Debug, Clone, Copy)]
struct Event {
    thread: u32,
    is_free: bool,
    address: u64,
    size: Bytes,
    stream: StreamId,
}

impl Recording {
    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns whether there is no event.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Writes the events in the format of RMM's log. The time column counts events, because a pool
    /// has no clock.
    ///
    /// # Errors
    /// What the writer refused.
    pub fn write_to(&self, mut to: impl Write) -> io::Result<()> {
        writeln!(to, "Thread,Time,Action,Pointer,Size,Stream")?;
        for (time, event) in self.events.iter().enumerate() {
            let Event { thread, is_free, address, size, stream } = event;
            let action = if *is_free { "free" } else { "allocate" };
            writeln!(to, "{thread},{time},{action},{address:#x},{},{}", size.0, stream.0)?;
        }
        to.flush()
    }

    pub(crate) fn allocated(&mut self, address: Address, size: Bytes, stream: StreamId) {
        self.live.insert(address.0, size);
        self.push(false, address, size, stream);
    }

    pub(crate) fn freed(&mut self, address: Address, stream: StreamId) {
        if let Some(size) = self.live.remove(&address.0) {
            self.push(true, address, size, stream);
        }
    }

    fn push(&mut self, is_free: bool, address: Address, size: Bytes, stream: StreamId) {
        let thread = thread_number();
        self.events.push(Event { thread, is_free, address: address.0, size, stream });
    }
}

// Threads by small numbers, in the order in which they first asked. A thread-local is right here: the
// number fills the trace's thread column and decides nothing.
fn thread_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local!(static OWN: Cell<Option<u32>> = const { Cell::new(None) });
    OWN.with(|own| {
        let number = own.get().unwrap_or_else(|| NEXT.fetch_add(1, Relaxed));
        own.set(Some(number));
        number
    })
}
