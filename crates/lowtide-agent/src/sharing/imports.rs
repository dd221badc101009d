//! Memory of other processes that this one has open.

use std::collections::BTreeMap;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ops;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lowtide_device::Error;
use lowtide_proto::{ShareAnswer, ShareAsk, Staying};
use lowtide_types::Bytes;

use super::handle::{MemoryHandle, ProcessName};
use super::link::{Link, spare_files};
use crate::driver::calls;
use crate::driver::codes::{INVALID_HANDLE, INVALID_VALUE, SUCCESS, UNKNOWN};
use crate::gate;
use crate::memory::allocations::Allocation;
use crate::memory::context::ProgramContext;
use crate::say::say;
use crate::settings;

/// The time that an answer may take beyond the wake of the process that has the memory.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Memory of other processes that this one has open.
#[derive(Default)]
pub(crate) struct Imports {
    /// By the first address.
    table: Mutex<BTreeMap<u64, Import>>,
    /// Closed in a capture, whose end they wait for: waiting for the device would end it.
    deferred: Mutex<Vec<Import>>,
    /// Never held while something waits for another process.
    links: Mutex<BTreeMap<ProcessName, Arc<Link>>>,
}

/// Memory of another process.
struct Import {
    handle: MemoryHandle,
    /// What the program sees of it.
    seen: Allocation,
    /// The whole chunks.
    mapped: Bytes,
    opens: u32,
    link: Arc<Link>,
    /// Whether the other process is of the same run: then it is closed while this one sleeps.
    is_kin: bool,
    /// Whether it is closed, and its addresses kept.
    is_away: bool,
}

impl Imports {
    /// Opens memory of another process in a context, and returns its address.
    ///
    /// # Errors
    /// The driver's code for the caller.
    pub(crate) fn open(
        &self,
        handle: &MemoryHandle,
        context: &Arc<ProgramContext>,
        id: u64,
        limit: Duration,
    ) -> Result<u64, i32> {
        if let Some(opened) = open_again(&mut self.table(), handle, context.handle) {
            return opened;
        }
        let (process, deadline) = (handle.process, Instant::now() + limit + ANSWER_LIMIT);
        let made = self.link(handle, deadline).map_err(Refusal::Unreachable).and_then(|link| {
            let received = link.conversation(|| receive(&link, handle, context, None, deadline));
            match &received {
                Err(Refusal::Driver(_)) => {
                    link.tell(&ShareAsk::Close { allocation: handle.allocation });
                }
                Err(Refusal::Unreachable(_)) => link.give_up(),
                Ok(_) | Err(Refusal::Refused(..)) => {}
            }
            received.map(|(bytes, range, is_kin)| (link, bytes, range, is_kin))
        });
        self.end_idle_links();
        let (link, bytes, range, is_kin) = made.map_err(|refusal| refusal.code(process))?;
        let (at, mapped) = range.keep();
        let seen = Allocation { at, bytes: bytes.0, id, context: Arc::clone(context) };
        let import =
            Import { handle: *handle, seen, mapped, opens: 1, link, is_kin, is_away: false };
        let mut table = self.table();
        // Another thread may have been faster.
        if let Some(opened) = open_again(&mut table, handle, context.handle) {
            drop(table);
            import.close();
            return opened;
        }
        table.insert(at, import);
        Ok(at)
    }

    /// Closes memory of processes of the same run for the time of a sleep, and keeps its addresses. Nothing uses it.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn take_away(&self) -> lowtide_device::Result<()> {
        for (at, import) in self.table().iter_mut().filter(|(_, it)| it.is_kin && !it.is_away) {
            calls::unmap(*at, import.mapped)?;
            import.is_away = true;
            import.link.tell(&ShareAsk::Close { allocation: import.handle.allocation });
        }
        Ok(())
    }

    /// Opens what was taken away again, at the same addresses. Memory that its process has freed, or has taken with it
    /// into its end, stays away.
    ///
    /// # Errors
    /// The reason why some is not open.
    pub(crate) fn bring_back(&self, limit: Duration) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        let away: Vec<_> = {
            let table = self.table();
            let away = table.iter().filter(|(_, import)| import.is_away);
            away.map(|(at, it)| (*at, it.mapped, it.handle, Arc::clone(&it.seen.context))).collect()
        };
        for (at, whole, handle, context) in away {
            let (known, process) = (Some((at, whole)), handle.process);
            let made =
                self.link(&handle, deadline).map_err(Refusal::Unreachable).and_then(|link| {
                    let received =
                        link.conversation(|| receive(&link, &handle, &context, known, deadline));
                    if let Err(Refusal::Unreachable(_)) = &received {
                        link.give_up();
                    }
                    received.map(|(_, range, _)| (link, range))
                });
            match made {
                Ok((link, range)) => {
                    let mut table = self.table();
                    let Some(import) = table.get_mut(&at) else { continue };
                    (import.link, import.is_away) = (link, false);
                    let _kept = range.keep();
                }
                Err(Refusal::Unreachable(_)) if !process.is_alive() => {}
                Err(refusal) => match refusal.code(process) {
                    INVALID_VALUE => {}
                    code => {
                        let pid = process.pid;
                        return Err(format!("memory of process {pid} is not open: code {code}"));
                    }
                },
            }
        }
        Ok(())
    }

    /// Returns the connection to the agent of a process, or a new one.
    fn link(&self, handle: &MemoryHandle, deadline: Instant) -> io::Result<Arc<Link>> {
        let process = handle.process;
        let known = self.links().get(&process).filter(|link| !link.is_broken()).cloned();
        if let Some(link) = known {
            return Ok(link);
        }
        let link = Arc::new(Link::connect(process, handle.place, deadline)?);
        self.links().insert(process, Arc::clone(&link));
        Ok(link)
    }

    /// Ends connections by which nothing is open: each is a file in both processes.
    fn end_idle_links(&self) {
        self.links().retain(|_, link| Arc::strong_count(link) > 1);
    }

    /// Closes memory that begins at an address, in whatever context it is open: at once, or at the end of the captures
    /// that are open. Returns `None` if none begins here.
    pub(crate) fn close(&self, at: u64, is_capturing: bool) -> Option<i32> {
        let mut table = self.table();
        let import = table.get_mut(&at)?;
        import.opens -= 1;
        if import.opens > 0 {
            return Some(SUCCESS);
        }
        let gone = table.remove(&at)?;
        drop(table);
        if is_capturing {
            lock(&self.deferred).push(gone);
        } else {
            self.end([gone]);
        }
        Some(SUCCESS)
    }

    /// Closes what was closed in a capture.
    pub(crate) fn captures_ended(&self) {
        let deferred = mem::take(&mut *lock(&self.deferred));
        self.end(deferred);
    }

    /// Closes all that is open in a context that is about to be destroyed.
    pub(crate) fn leave(&self, context: usize) {
        let mut table = self.table();
        let (gone, others) = mem::take(&mut *table)
            .into_iter()
            .partition(|(_, import)| import.seen.context.handle == context);
        *table = others;
        drop(table);
        self.end(BTreeMap::into_values(gone));
    }

    /// Gives up memory that is closed.
    fn end(&self, gone: impl IntoIterator<Item = Import>) {
        gone.into_iter().for_each(Import::close);
        self.end_idle_links();
    }

    /// Lets every device use what is open in a context that may use its plain memory.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn open_to_peers(&self, context: &ProgramContext) -> lowtide_device::Result<()> {
        let (table, access) = (self.table(), context.access());
        let is_own = |one: &Import| one.seen.context.handle == context.handle && !one.is_away;
        let own = table.iter().filter(|(_, one)| is_own(one));
        own.into_iter().try_for_each(|(at, one)| calls::set_access(*at, one.mapped, &access))
    }

    /// Returns the memory of another process that an address is in.
    pub(crate) fn around(&self, at: u64) -> Option<Allocation> {
        let table = self.table();
        let (_, import) = table.range(..=at).next_back()?;
        (at - import.seen.at < import.seen.bytes).then(|| import.seen.clone())
    }

    /// Returns whether some of a range of addresses is memory of another process.
    pub(crate) fn has_in(&self, range: &ops::Range<u64>) -> bool {
        let table = self.table();
        let before = table.range(..range.end).next_back();
        before.is_some_and(|(at, import)| at + import.mapped.0 > range.start)
    }

    /// Returns what is open, by the process that has it; with what is taken away, if that counts.
    pub(crate) fn all(&self, counts_away: bool) -> Vec<Staying> {
        let mut sums = BTreeMap::<ProcessName, (u64, Bytes)>::new();
        for import in self.table().values().filter(|import| counts_away || !import.is_away) {
            let (count, bytes) = sums.entry(import.handle.process).or_default();
            *count += 1;
            *bytes += import.mapped;
        }
        let of = |(process, (count, bytes)): (ProcessName, (u64, Bytes))| Staying {
            what: format!("memory of process {} (cuIpcOpenMemHandle)", process.pid),
            count,
            bytes,
        };
        sums.into_iter().map(of).collect()
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<u64, Import>> {
        lock(&self.table)
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<ProcessName, Arc<Link>>> {
        lock(&self.links)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Import {
    /// Waits for work that may use the memory, unmaps it, and tells the process that has it.
    fn close(self) {
        // Asleep nothing runs, and where the context is lost, nothing uses the memory any more.
        if !gate::is_asleep() {
            let _idle = self.seen.context.device.synchronize();
        }
        let mapped = if self.is_away { Bytes::ZERO } else { self.mapped };
        drop(Range { at: self.seen.at, mapped, whole: self.mapped, is_known: false });
        if !self.is_away {
            self.link.tell(&ShareAsk::Close { allocation: self.handle.allocation });
        }
    }
}

/// Opens once more what is open; `None` if it is not.
fn open_again(
    table: &mut BTreeMap<u64, Import>,
    handle: &MemoryHandle,
    context: usize,
) -> Option<Result<u64, i32>> {
    let known = table.values_mut().find(|import| import.handle == *handle)?;
    if known.seen.context.handle != context {
        return Some(Err(INVALID_HANDLE));
    }
    known.opens += 1;
    Some(Ok(known.seen.at))
}

/// The reason why memory of another process is not open.
enum Refusal {
    /// Its agent does not answer.
    Unreachable(io::Error),
    /// Its agent says why, with the driver's code for the caller.
    Refused(i32, String),
    /// The driver of this process.
    Driver(Error),
}

impl Refusal {
    fn nonsense(what: &str) -> Refusal {
        Refusal::Unreachable(io::Error::other(what))
    }

    /// Says the reason, and returns the driver's code for the caller. A process that is gone is the program's affair.
    fn code(self, process: ProcessName) -> i32 {
        let (code, reason) = match self {
            Refusal::Unreachable(_) if !process.is_alive() => return INVALID_HANDLE,
            Refusal::Unreachable(error) => (INVALID_HANDLE, error.to_string()),
            Refusal::Refused(INVALID_VALUE, _) => return INVALID_VALUE,
            Refusal::Refused(code, reason) => (code, reason),
            Refusal::Driver(error) => {
                let Error::Driver { code, .. } = error else { return UNKNOWN };
                (code, error.to_string())
            }
        };
        say!("memory of process {} cannot be opened: {reason}", process.pid);
        code
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Driver(error)
    }
}

/// Receives the chunks of an allocation and maps them one behind the other, at addresses that are known from before or
/// new ones. Returns the size that the other program asked for, and whether it is of the same run.
fn receive(
    link: &Link,
    handle: &MemoryHandle,
    context: &ProgramContext,
    known: Option<(u64, Bytes)>,
    deadline: Instant,
) -> Result<(Bytes, Range, bool), Refusal> {
    let (token, allocation, family) = (handle.token, handle.allocation, settings::family());
    let mut ask = ShareAsk::Open { token, allocation, most: spare_files(), family };
    let mut range: Option<Range> = None;
    loop {
        let (answer, descriptors) = link.ask(&ask, deadline).map_err(Refusal::Unreachable)?;
        let (bytes, chunks, left, is_kin) = match answer {
            ShareAnswer::Chunks { bytes, chunks, left, is_kin } => (bytes, chunks, left, is_kin),
            ShareAnswer::Refused { code, reason } => return Err(Refusal::Refused(code, reason)),
            ShareAnswer::Ready => return Err(Refusal::nonsense("no answer")),
        };
        // Anybody of this user may answer: what does not add up is not mapped.
        let coming = chunks.iter().try_fold(left.0, |sum, chunk| sum.checked_add(chunk.0));
        let is_whole = coming.is_some_and(|sum| match &range {
            Some(range) => sum == range.whole.0 - range.mapped.0,
            None => bytes.0 <= sum && known.is_none_or(|(_, whole)| sum == whole.0),
        });
        if !is_whole || chunks.is_empty() || chunks.len() != descriptors.len() {
            return Err(Refusal::nonsense("its chunks do not add up"));
        }
        let mut taken = match range.take() {
            Some(range) => range,
            None => Range::of(known, Bytes(coming.unwrap_or_default()))?,
        };
        for (chunk, descriptor) in chunks.into_iter().zip(descriptors) {
            taken.map(chunk, &descriptor)?;
        }
        if left == Bytes::ZERO {
            calls::set_access(taken.at, taken.whole, &context.access())?;
            return Ok((bytes, taken, is_kin));
        }
        range = Some(taken);
        ask = ShareAsk::More { most: spare_files() };
    }
}

/// Addresses for memory of another process, and what of them is mapped. They are given back unless they are kept.
struct Range {
    at: u64,
    mapped: Bytes,
    whole: Bytes,
    /// Whether the addresses stay where they are not kept.
    is_known: bool,
}

impl Range {
    fn of(known: Option<(u64, Bytes)>, whole: Bytes) -> Result<Range, Error> {
        let at = known.map_or_else(|| calls::reserve(whole), |(at, _)| Ok(at))?;
        Ok(Range { at, mapped: Bytes::ZERO, whole, is_known: known.is_some() })
    }

    fn map(&mut self, bytes: Bytes, descriptor: &OwnedFd) -> Result<(), Error> {
        let handle = calls::import(descriptor)?;
        let mapped = calls::map(self.at + self.mapped.0, bytes, handle);
        // The mapping keeps the memory.
        calls::release(handle)?;
        mapped?;
        self.mapped += bytes;
        Ok(())
    }

    fn keep(self) -> (u64, Bytes) {
        let kept = ManuallyDrop::new(self);
        (kept.at, kept.whole)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let unmapped =
            if self.mapped == Bytes::ZERO { Ok(()) } else { calls::unmap(self.at, self.mapped) };
        let free = || {
            if self.is_known { Ok(()) } else { calls::free_addresses(self.at, self.whole) }
        };
        if let Err(error) = unmapped.and_then(|()| free()) {
            say!("memory of another process stays mapped: {error}");
        }
    }
}
