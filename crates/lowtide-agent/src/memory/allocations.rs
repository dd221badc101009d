//! The program's allocations that can sleep.
//!
//! An allocation of 2 MiB or more comes from a pool; there is one for each context in which the program
//! allocates. Smaller ones stay with the driver. A freed allocation goes back to the device at once, as
//! the driver would do it, so the pool caches nothing.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowtide_device::cuda::Driver;
use lowtide_device::{Address, Device};
use lowtide_types::{Bytes, DeviceId};

use crate::driver::calls;
use crate::gate;
use crate::memory::chunks::{PAGE, RetainedChunk};
use crate::memory::context::{ProgramContext, TAG};
use crate::memory::live_contexts;
use crate::say::say;

/// Allocations of at least this size can sleep.
pub(crate) const LEAST: Bytes = PAGE;

/// The allocations of a process.
#[derive(Default)]
pub(crate) struct Memory {
    tables: Arc<Mutex<Tables>>,
    captures: Mutex<Captures>,
}

#[derive(Default)]
struct Tables {
    /// By the context's handle.
    contexts: BTreeMap<usize, Arc<ProgramContext>>,
    /// By the first address.
    allocations: BTreeMap<u64, Allocation>,
    last_id: u64,
}

/// Captures that are open, and frees that wait for their end.
#[derive(Default)]
struct Captures {
    /// The context of each stream that captures.
    open: BTreeMap<StreamName, usize>,
    deferred: Vec<Allocation>,
}

/// A stream, and the thread that it is of where each has its own.
pub(crate) type StreamName = (usize, i32);

/// An allocation of the program.
#[derive(Clone)]
pub(crate) struct Allocation {
    pub(crate) at: u64,
    /// The size that the program asked for.
    pub(crate) bytes: u64,
    /// A number that no other allocation of the process has or had.
    pub(crate) id: u64,
    pub(crate) context: Arc<ProgramContext>,
}

impl Memory {
    /// Allocates in a context.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn allocate(
        &self,
        driver: &Arc<Driver>,
        context: usize,
        bytes: u64,
    ) -> lowtide_pool::Result<u64> {
        let context = self.context(driver, context)?;
        // Where there is no multiple, the pool says that it is too large.
        let whole = Bytes(bytes.checked_next_multiple_of(LEAST.0).unwrap_or(bytes));
        let at = context.allocate(&context.pool, TAG, whole)?.0;
        let id = self.new_id();
        lock(&self.tables).allocations.insert(at, Allocation { at, bytes, id, context });
        Ok(at)
    }

    /// Frees the allocation that begins at an address: at once, or at the end of the captures that are open, which
    /// waiting for the device would end. Returns `None` if none begins here.
    pub(crate) fn free(&self, at: u64) -> Option<lowtide_pool::Result<()>> {
        let allocation = lock(&self.tables).allocations.remove(&at)?;
        let mut captures = lock(&self.captures);
        if !captures.open.is_empty() {
            captures.deferred.push(allocation);
            return Some(Ok(()));
        }
        drop(captures);
        Some(allocation.give_back())
    }

    /// Notes that a stream of a context captures.
    pub(crate) fn began_capture(&self, stream: StreamName, context: usize) {
        lock(&self.captures).open.insert(stream, context);
    }

    /// Notes that streams capture no more: those that `is_over` picks by name and context.
    pub(crate) fn ended_captures(&self, is_over: impl Fn(StreamName, usize) -> bool) {
        let mut captures = lock(&self.captures);
        captures.open.retain(|stream, context| !is_over(*stream, *context));
        if !captures.open.is_empty() {
            return;
        }
        let deferred = mem::take(&mut captures.deferred);
        drop(captures);
        for allocation in deferred {
            // The program was told that it is free; what fails now is only memory that stays taken.
            if let Err(error) = allocation.give_back() {
                say!("a freed allocation stays on the device: {error}");
            }
        }
    }

    /// Returns whether a graph is being captured.
    pub(crate) fn is_capturing(&self) -> bool {
        !lock(&self.captures).open.is_empty()
    }

    /// Returns the allocation that an address is in.
    pub(crate) fn around(&self, at: u64) -> Option<Allocation> {
        let tables = lock(&self.tables);
        let (_, found) = tables.allocations.range(..=at).next_back()?;
        (at - found.at < found.bytes).then(|| found.clone())
    }

    /// Returns the allocation of a number.
    pub(crate) fn by_id(&self, id: u64) -> Option<Allocation> {
        lock(&self.tables).allocations.values().find(|one| one.id == id).cloned()
    }

    /// Returns a number that no allocation of the process has or had.
    pub(crate) fn new_id(&self) -> u64 {
        let mut tables = lock(&self.tables);
        tables.last_id += 1;
        tables.last_id
    }

    /// Takes a reference to each chunk of an allocation, and returns them with its size; `None` if it is not there.
    /// The caller is inside the gate.
    pub(crate) fn retain_chunks(
        &self,
        id: u64,
    ) -> Option<lowtide_device::Result<(Bytes, Vec<RetainedChunk>)>> {
        let found = self.by_id(id)?;
        // An allocation goes from the table before its memory does.
        let _unchanged = found.context.changing();
        self.by_id(id)?;
        let chunks = RetainedChunk::all(found.context.handle, found.at, found.bytes);
        Some(chunks.map(|chunks| (Bytes(found.bytes), chunks)))
    }

    /// Lets another device use the plain memory of a context, what there is and what comes. The caller is inside the
    /// gate.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn let_in(
        &self,
        context: &ProgramContext,
        peer: DeviceId,
    ) -> lowtide_device::Result<()> {
        let _unchanged = context.changing();
        context.let_in(peer);
        let tables = lock(&self.tables);
        let own = tables.allocations.values().filter(|one| one.context.handle == context.handle);
        let access = context.access();
        own.into_iter().try_for_each(|one| calls::set_access(one.at, one.whole(), &access))
    }

    /// Frees the allocations of a context that is about to be destroyed.
    pub(crate) fn free_all(&self, context: usize) {
        let mut tables = lock(&self.tables);
        let (own, others) = mem::take(&mut tables.allocations)
            .into_iter()
            .partition(|(_, allocation)| allocation.context.handle == context);
        tables.allocations = others;
        drop(tables);
        for allocation in BTreeMap::into_values(own) {
            match allocation.give_back() {
                // The driver has taken everything: the process ends, or a fault has lost the context.
                Err(lowtide_pool::Error::Device(error)) if error.is_context_lost() => {}
                Err(error) => say!("an allocation of a destroyed context stays: {error}"),
                Ok(()) => {}
            }
        }
    }

    /// Gives up what the agent has in a context that is about to be destroyed.
    pub(crate) fn forget(&self, context: usize) {
        let context = lock(&self.tables).contexts.remove(&context);
        drop(context);
    }

    /// Returns every context in which the program allocates.
    pub(crate) fn contexts(&self) -> Vec<Arc<ProgramContext>> {
        lock(&self.tables).contexts.values().cloned().collect()
    }

    /// Returns whether a context has not been destroyed.
    pub(crate) fn has(&self, context: &Arc<ProgramContext>) -> bool {
        let known = lock(&self.tables);
        known.contexts.get(&context.handle).is_some_and(|one| Arc::ptr_eq(one, context))
    }

    /// Returns whether some addresses of a range are of our pools.
    pub(crate) fn reserves(&self, range: &Range<u64>) -> bool {
        self.contexts().iter().any(|context| context.reserves(range))
    }

    /// Returns whether some memory that can sleep is on a device.
    pub(crate) fn is_on_device(&self) -> bool {
        self.contexts().iter().any(|context| context.on_device() > Bytes::ZERO)
    }

    /// Returns the number of allocations of a context, and their bytes.
    pub(crate) fn sum(&self, context: usize) -> (u64, Bytes) {
        let tables = lock(&self.tables);
        let own = tables.allocations.values().filter(|one| one.context.handle == context);
        own.fold((0, Bytes::ZERO), |(count, sum), one| (count + 1, Bytes(sum.0 + one.bytes)))
    }

    /// Returns a context on a device: the current one if it is there, otherwise another in which the program
    /// allocates; `None` if there is none.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn context_on(
        &self,
        driver: &Arc<Driver>,
        current: Option<(usize, DeviceId)>,
        device: DeviceId,
    ) -> lowtide_pool::Result<Option<Arc<ProgramContext>>> {
        match current {
            Some((context, of_current)) if of_current == device => {
                self.context(driver, context).map(Some)
            }
            _ => Ok(self.contexts().into_iter().find(|context| context.device.id() == device)),
        }
    }

    /// Returns a context in which the program allocates, or opens memory.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn context(
        &self,
        driver: &Arc<Driver>,
        handle: usize,
    ) -> lowtide_pool::Result<Arc<ProgramContext>> {
        if let Some(context) = lock(&self.tables).contexts.get(&handle) {
            return Ok(Arc::clone(context));
        }
        // The program may have got it in a way that no function of ours saw.
        live_contexts::created(handle);
        let tables = Arc::downgrade(&self.tables);
        let others = move |device: &Device| {
            let Some(tables) = tables.upgrade() else { return Bytes::ZERO };
            let all: Vec<_> = lock(&tables).contexts.values().cloned().collect();
            let others = all.iter().filter(|one| one.handle != handle);
            others.filter(|one| one.device.id() == device.id()).map(|one| one.on_device()).sum()
        };
        let context = Arc::new(ProgramContext::new(driver, handle, others)?);
        // Another thread may have been faster; its context is as good.
        Ok(Arc::clone(lock(&self.tables).contexts.entry(handle).or_insert(context)))
    }
}

impl Allocation {
    /// Returns the size of its pages.
    fn whole(&self) -> Bytes {
        Bytes(self.bytes.next_multiple_of(LEAST.0))
    }

    /// Waits for work that may use the memory, as the driver does, and gives it back to the device.
    fn give_back(&self) -> lowtide_pool::Result<()> {
        if !gate::is_asleep() {
            self.context.device.synchronize()?;
        }
        self.context.give_back(&self.context.pool, Address(self.at))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
