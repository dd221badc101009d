//! The agent of a process: going to sleep and waking, suspending and resuming.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use lowtide_device::cuda::Driver;
use lowtide_device::{neighbours, tallies};
use lowtide_proto::share::{self, Give};
use lowtide_proto::{Answer, Ask, ContextStatus, NoRoom, Status, Woken};
use lowtide_release::Idle;
use lowtide_types::{Bytes, DeviceId, Receipt, Target};

use crate::driver::calls;
use crate::memory::allocations::{Memory, StreamName};
use crate::memory::context::ProgramContext;
use crate::memory::virtual_memory::VirtualMemory;
use crate::memory::{live_contexts, unmanaged};
use crate::say::say;
use crate::sharing::exports::Exports;
use crate::sharing::imports::Imports;
use crate::sleep::suspension::{Suspension, Way, check_not_exiting};
use crate::sleep::torch_cache::{self, Trim};
use crate::{gate, obstacles, settings};

/// The time that calls of other threads have to return, and then work to end, before a sleep gives up that was not
/// told to wait; the first also before a suspend does.
const CLOSING_LIMIT: Duration = Duration::from_millis(5);
/// The time in which a framework has given its cache back that was asked before the gate closed, and after.
const CACHE_LIMIT: Duration = Duration::from_millis(100);
const CLOSED_CACHE_LIMIT: Duration = Duration::from_secs(2);

/// The time in which agents hear that nobody of the family has memory open any more, and the pause between two looks.
const PARTING_LIMIT: Duration = Duration::from_secs(1);
const PARTING_PAUSE: Duration = Duration::from_millis(1);
/// The time in which memory of other processes is back.
const REJOINING_LIMIT: Duration = Duration::from_secs(30);

/// The reason why nothing leaves the device in the middle of a capture.
const CAPTURES: &str = "busy: a graph is being captured";

/// How a process falls asleep that may be in the middle of its work.
#[derive(Clone, Copy)]
enum Manner<'a> {
    /// Not at all, if it is.
    AtOnce,
    /// After the work that is submitted, which ends in this time. Threads that want to submit more wait. Then after the
    /// other processes of its family have come so far, if it is to wait for them.
    Draining(Duration, Option<&'a dyn Fn() -> Result<(), String>>),
}

impl Manner<'_> {
    /// Returns the time that calls of other threads have to return.
    fn limit(self) -> Duration {
        match self {
            Manner::AtOnce => CLOSING_LIMIT,
            Manner::Draining(limit, _) => limit,
        }
    }

    /// Returns whether other processes of its family sleep with it.
    fn is_with_family(self) -> bool {
        matches!(self, Manner::Draining(_, Some(_)))
    }
}

/// What came of falling asleep.
#[derive(Default)]
pub(crate) struct Slept {
    /// One for each context.
    pub(crate) receipts: Vec<Receipt>,
    /// The time from the end of the work until the memory was off the devices.
    pub(crate) took: Duration,
}

static AGENT: OnceLock<Agent> = OnceLock::new();

/// The agent of this process.
pub(crate) struct Agent {
    pub(crate) driver: Arc<Driver>,
    pub(crate) memory: Memory,
    pub(crate) virtual_memory: VirtualMemory,
    pub(crate) exports: Exports,
    pub(crate) imports: Imports,
    pub(crate) suspension: Suspension,
    /// The policy by which the process falls asleep by itself.
    pub(crate) idle: Option<Idle>,
    /// The time for which a touch tries to wake.
    pub(crate) wake_timeout: Duration,
    /// Held while memory leaves or comes back, and while a context is destroyed.
    turn: Mutex<()>,
}

/// Returns the agent; `None` where calls just pass through.
pub(crate) fn get() -> Option<&'static Agent> {
    if gate::is_inherited() { None } else { AGENT.get() }
}

/// Makes the agent, which answers with this driver from now on.
pub(crate) fn create(driver: Arc<Driver>) -> &'static Agent {
    AGENT.get_or_init(|| Agent {
        driver,
        memory: Memory::default(),
        virtual_memory: VirtualMemory::default(),
        exports: Exports::default(),
        imports: Imports::default(),
        suspension: Suspension::new(),
        idle: settings::idle_policy(),
        wake_timeout: settings::wait(),
        turn: Mutex::default(),
    })
}

impl Agent {
    /// Does what the process was asked. Called by the worker only, one at a time.
    pub(crate) fn run(&self, ask: Ask, way: Option<Way>) -> Answer {
        let done = match ask {
            Ask::Status => Ok(Answer::Status(self.status())),
            Ask::Sleep => self.sleep(),
            Ask::Wake => self.wake(),
            Ask::Suspend => self.suspend(way),
            Ask::Resume => self.suspension.resume(),
            Ask::Release { to } => self.release(to),
            Ask::Share | Ask::Why => Err("it needs a connection of its own".to_owned()),
        };
        done.unwrap_or_else(|reason| Answer::Refused { reason })
    }

    /// Frees everything of a context that is about to be destroyed.
    pub(crate) fn leave_context(&self, context: usize) {
        self.imports.leave(context);
        self.memory.free_all(context);
        self.virtual_memory.leave(context);
        self.memory.forget(context);
    }

    /// Keeps memory where it is.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that streams capture no more, and does what waited for that.
    pub(crate) fn ended_captures(&self, is_over: impl Fn(StreamName, usize) -> bool) {
        self.memory.ended_captures(is_over);
        if !self.memory.is_capturing() {
            self.imports.captures_ended();
        }
    }

    fn sleep(&self) -> Result<Answer, String> {
        if gate::is_asleep() {
            return Ok(Answer::Asleep);
        }
        let slept = self.fall_asleep("sleep", None, Manner::AtOnce);
        slept.map(|slept| Answer::Slept { receipts: slept.receipts })
    }

    /// Makes room for another program: no new work begins, what is submitted ends in this time, and the process sleeps,
    /// or leaves its devices. `hold` waits for its family. Only the worker calls this.
    ///
    /// # Errors
    /// The reason why nothing was tried, or why the work goes on.
    pub(crate) fn give_way(
        &self,
        give: &Give,
        way: Option<Way>,
        hold: &dyn Fn() -> Result<(), String>,
    ) -> Result<Slept, String> {
        let (mut slept, hold) = (Slept::default(), give.holds.then_some(hold));
        if !gate::is_asleep() {
            let limit = Duration::from_millis(give.drain_ms);
            slept = self.fall_asleep("give way", None, Manner::Draining(limit, hold))?;
        } else if let Some(hold) = hold {
            hold()?;
        }
        if !gate::is_asleep() {
            let receipts = slept.receipts.iter().map(Receipt::to_string).collect::<Vec<_>>();
            return Err(format!("it did not sleep: {}", receipts.join("; ")));
        }
        if give.way == share::Way::Suspend {
            let began = Instant::now();
            match self.suspend(way)? {
                Answer::Suspended { .. } | Answer::Asleep => slept.took += began.elapsed(),
                other => return Err(format!("it was not suspended: {other:?}")),
            }
        }
        Ok(slept)
    }

    /// Returns whether nothing is on the devices, in a moment in which nothing is added. Only the worker calls this.
    pub(crate) fn is_idle(&self) -> bool {
        if gate::is_asleep() {
            return true;
        }
        calls::prepare();
        if self.memory.is_capturing() || !gate::close(CLOSING_LIMIT) {
            return false;
        }
        let is_idle = self.check_idle(Duration::ZERO).is_ok();
        gate::open();
        is_idle
    }

    /// Returns whether the helper can take the process off its devices.
    pub(crate) fn can_be_suspended(&self) -> bool {
        self.suspension.has_helper() && self.obstacles_to_suspend().is_empty()
    }

    /// Frees memory of the process, by sleeping where that is needed.
    fn release(&self, to: Option<Bytes>) -> Result<Answer, String> {
        let to = to.map(Target::Under);
        let receipts = match to {
            _ if !gate::is_asleep() => self.fall_asleep("release", to, Manner::AtOnce)?.receipts,
            // Nothing is left to take; the receipts say whether that is enough.
            Some(_) if !gate::is_suspended() => {
                self.memory.contexts().iter().map(|one| one.release("release", to)).collect()
            }
            _ => return Ok(Answer::Asleep),
        };
        Ok(Answer::Released { receipts })
    }

    /// Returns why the process cannot sleep, alone or with its family; empty if it can.
    fn obstacles(&self, is_with_family: bool) -> Vec<String> {
        self.noted_obstacles(is_with_family).into_iter().chain(obstacles::seen()).collect()
    }

    /// Returns what the program did that keeps it from sleeping, alone or with its family.
    pub(crate) fn noted_obstacles(&self, is_with_family: bool) -> Vec<String> {
        let mut names = obstacles::noted();
        names.extend(self.exports.obstacles(&self.memory, is_with_family));
        if self.virtual_memory.has_exported() {
            names.push("memory given to other processes (cuMemExportToShareableHandle)".to_owned());
        }
        names
    }

    /// Returns why the process cannot be suspended, though it can sleep: the driver does not bring such a process
    /// back.
    fn obstacles_to_suspend(&self) -> Vec<String> {
        let mut names = obstacles::to_suspend();
        names.extend(self.imports.all(true).into_iter().map(|one| format!("{} is open", one.what)));
        if self.virtual_memory.has_imported() {
            let name = "memory of another process is open (cuMemImportFromShareableHandle)";
            names.push(name.to_owned());
        }
        names
    }

    /// Closes the gate and moves memory off the devices, all of it or until the target is met.
    ///
    /// # Errors
    /// The reason why nothing was tried.
    fn fall_asleep(&self, name: &str, to: Option<Target>, how: Manner) -> Result<Slept, String> {
        none_of(&self.obstacles(how.is_with_family()))?;
        match how {
            // If it asks still, the sleep finds the process busy, or does not.
            Manner::AtOnce => drop(torch_cache::trim(CACHE_LIMIT)),
            Manner::Draining(..) if self.memory.is_capturing() => return Err(CAPTURES.to_owned()),
            Manner::Draining(..) => {}
        }
        let mut contexts = self.memory.contexts();
        // What is loaded lazily is loaded now: a thread that waits at the gate may have the loader's lock.
        calls::prepare();
        for context in &contexts {
            context.prepare();
        }
        let began = Instant::now();
        if !gate::close(how.limit()) {
            return Err("busy: a driver call is under way".to_owned());
        }
        // Not waited for: the work of a context that is destroyed may wait for a thread at the gate.
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => {
                gate::open();
                return Err("busy: a context is being destroyed".to_owned());
            }
        };
        contexts.retain(|context| self.memory.has(context));
        // The program went on up to now, and may have shared memory meanwhile.
        let is_idle = || match how {
            Manner::AtOnce => self.check_idle(CLOSING_LIMIT),
            Manner::Draining(limit, _) => {
                self.check_idle(limit.saturating_sub(began.elapsed()))?;
                trim_of_idle()
            }
        };
        let noted = none_of(&self.noted_obstacles(how.is_with_family()));
        let stopped = noted.and_then(|()| is_idle()).and_then(|()| self.part(how));
        if let Err(reason) = stopped {
            self.rejoin();
            gate::open();
            return Err(reason);
        }
        let began = Instant::now();
        for context in &contexts {
            calls::trim_default_pool(context.device.id());
        }
        let mut all = contexts.iter();
        if let Err(error) =
            all.try_for_each(|one| self.virtual_memory.take_mappings_away(one.handle))
        {
            self.settle(false, &contexts);
            return Err(format!("virtual memory of the program stays mapped: {error}"));
        }
        let receipts: Vec<Receipt> = contexts.iter().map(|one| one.release(name, to)).collect();
        let is_asleep = if to.is_some() {
            // A context may stay awake: the target was met without it.
            contexts.iter().any(|context| context.has_sleeping())
        } else {
            contexts.iter().all(|context| context.is_asleep())
        };
        self.settle(is_asleep, &contexts);
        Ok(Slept { receipts, took: began.elapsed() })
    }

    /// Takes memory of other processes away that comes back with a wake, waits for the family of this process, and gives
    /// no more memory of its own to others. The gate is closed and nothing runs.
    fn part(&self, how: Manner) -> Result<(), String> {
        self.imports.take_away().map_err(|error| error.to_string())?;
        if let Manner::Draining(_, Some(hold)) = how {
            hold()?;
        }
        // What others of the family say about that comes on ways of its own.
        let began = Instant::now();
        loop {
            match self.exports.close(&self.memory) {
                Err(_) if how.is_with_family() && began.elapsed() < PARTING_LIMIT => {
                    std::thread::sleep(PARTING_PAUSE);
                }
                done => return done,
            }
        }
    }

    /// Gives memory to other processes again, and takes back what was taken away of theirs.
    fn rejoin(&self) {
        self.exports.reopen();
        if let Err(reason) = self.imports.bring_back(REJOINING_LIMIT) {
            say!("memory of another process is not back, and its use will fail: {reason}");
        }
    }

    /// Ends an attempt to sleep. Where it failed, everything comes back and the gate opens. Where even that fails, the
    /// process is asleep, and its next touch tries again.
    fn settle(&self, is_asleep: bool, contexts: &[Arc<ProgramContext>]) {
        if is_asleep || self.wake_all(contexts).is_err() {
            gate::fall_asleep();
        } else {
            self.rejoin();
            gate::open();
        }
    }

    /// Checks that the devices are idle, and waits for that up to a limit. The gate is closed, so nothing is added.
    fn check_idle(&self, limit: Duration) -> Result<(), String> {
        if self.memory.is_capturing() {
            return Err(CAPTURES.to_owned());
        }
        let began = Instant::now();
        for (context, question) in live_contexts::all() {
            if let Err(busy) = question.check_idle(context, limit.saturating_sub(began.elapsed())) {
                let why = busy.text();
                if busy.is_lost() {
                    // Nothing works in it any more, now or later.
                    obstacles::add(&format!("a lost context ({why})"));
                }
                return Err(why);
            }
        }
        Ok(())
    }

    fn wake(&self) -> Result<Answer, String> {
        let began = Instant::now();
        if !gate::is_asleep() {
            return Ok(Answer::Woken(Woken { bytes: Bytes::ZERO, took_s: 0.0 }));
        }
        if gate::is_suspended() {
            match self.suspension.resume()? {
                Answer::Resumed(_) => {}
                answer => return Ok(answer),
            }
        }
        let _turn = self.turn();
        let contexts = self.memory.contexts();
        match self.wake_all(&contexts) {
            Ok(bytes) => {
                // Before it waits for others, which may wait for it.
                self.exports.reopen();
                if let Err(reason) = self.imports.bring_back(REJOINING_LIMIT) {
                    if self.imports.take_away().is_ok() && self.exports.close(&self.memory).is_ok()
                    {
                        for context in &contexts {
                            self.sleep_again(context);
                        }
                    }
                    return Err(format!("the process stays asleep: {reason}"));
                }
                gate::open();
                let took_s = began.elapsed().as_secs_f64();
                tallies::woke(bytes, took_s);
                Ok(Answer::Woken(Woken { bytes, took_s }))
            }
            Err(lowtide_pool::Error::NoRoom { device, needed, free, holders }) => {
                Ok(Answer::NoRoom(NoRoom { device, needed, free, holders }))
            }
            Err(error) => Err(format!("the process stays asleep: {error}")),
        }
    }

    /// Wakes every context, or none: where one cannot wake, those that woke go back to sleep. Nobody has used them
    /// meanwhile.
    fn wake_all(&self, contexts: &[Arc<ProgramContext>]) -> lowtide_pool::Result<Bytes> {
        let mut bytes = Bytes::ZERO;
        for (number, context) in contexts.iter().enumerate() {
            match self.wake_context(context) {
                Ok(woken) => bytes += woken,
                Err(error) => {
                    contexts[..=number].iter().for_each(|woken| self.sleep_again(woken));
                    return Err(error);
                }
            }
        }
        Ok(bytes)
    }

    /// Wakes all memory of a context, and makes the program's mappings of it again.
    fn wake_context(&self, context: &ProgramContext) -> lowtide_pool::Result<Bytes> {
        let bytes = context.wake()?;
        self.virtual_memory.bring_mappings_back(context.handle)?;
        Ok(bytes)
    }

    fn sleep_again(&self, context: &ProgramContext) {
        let unmapped = self.virtual_memory.take_mappings_away(context.handle);
        if let Err(error) = unmapped.map_err(Into::into).and_then(|()| context.sleep_again()) {
            say!("memory of a context that woke stays on the device: {error}");
        }
    }

    /// Connects to the helper for a suspend; `None` if the process is suspended already. A helper that has to be started
    /// takes its time, and a touch may need the worker meanwhile: so that does not call this.
    pub(crate) fn way_to_suspend(&self) -> Result<Option<Way>, String> {
        if gate::is_suspended() { Ok(None) } else { self.suspension.connect_to_suspend().map(Some) }
    }

    /// Takes the process off its devices. It sleeps first, because the driver's own copy is slow.
    fn suspend(&self, way: Option<Way>) -> Result<Answer, String> {
        if gate::is_suspended() {
            return Ok(Answer::Asleep);
        }
        let (connection, target) = way.ok_or("busy: the process was just coming back")?;
        let receipts = match self.sleep()? {
            Answer::Slept { receipts } if gate::is_asleep() => receipts,
            Answer::Asleep => Vec::new(),
            answer => return Ok(answer),
        };
        // The gate is closed: nothing more is opened.
        let obstacles = self.obstacles_to_suspend();
        if !obstacles.is_empty() {
            let why = obstacles.join(", ");
            return Err(format!("the process cannot be suspended, and stays asleep: {why}"));
        }
        let connection = self.suspension.renewed(connection)?;
        self.suspension.remember(self.status(), &self.memory.contexts());
        if !gate::suspend(CLOSING_LIMIT) {
            return Err("busy: a driver call is under way; the process stays asleep".to_owned());
        }
        // Either this sees the exit, or the exit sees that the gate is closed, and waits for the way back.
        if let Err(reason) = check_not_exiting() {
            gate::fall_asleep();
            return Err(reason);
        }
        self.suspension
            .suspend(connection, target)
            .map(|suspended| Answer::Suspended { receipts, suspended })
    }

    /// Returns what the process has on its devices.
    pub(crate) fn status(&self) -> Status {
        loop {
            if let Some(status) = self.suspension.status() {
                return status;
            }
            // The driver and NVML are asked, and would not answer once the worker has the process suspended.
            if let Some(_pass) = gate::try_enter_quietly() {
                return self.status_on_the_device();
            }
        }
    }

    /// Returns what the process has on its devices, which it has not left. The caller is inside the gate.
    fn status_on_the_device(&self) -> Status {
        let (contexts, idle) = (self.memory.contexts(), self.idle.as_ref());
        let of = |context: &Arc<ProgramContext>| {
            let plain = self.memory.sum(context.handle);
            let own = self.virtual_memory.sum(context.handle);
            let (blocks, bytes) = (plain.0 + own.0, plain.1 + own.1);
            let (device, on_device) = (context.device.id(), context.on_device());
            ContextStatus { device, blocks, bytes, on_device }
        };
        // A device with several contexts has one ledger.
        let mut devices: Vec<DeviceId> = Vec::new();
        let mut ledgers = Vec::new();
        for context in &contexts {
            if !devices.contains(&context.device.id()) {
                devices.push(context.device.id());
                ledgers.extend(context.ledger());
            }
        }
        Status {
            pid: std::process::id(),
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            is_asleep: gate::is_asleep(),
            is_suspended: false,
            idle_s: idle.map(|idle| idle.options().after.as_secs_f64()),
            quiet_s: idle.map(|idle| idle.quiet().as_secs_f64()),
            due_s: idle.and_then(Idle::left).map(|left| left.as_secs_f64()),
            idle_to: idle.map(|_| {
                let word = if settings::suspends_when_idle() { "suspend" } else { "sleep" };
                word.to_owned()
            }),
            failed: None,
            // Without a context NVML does not list the process.
            gives_way: idle.filter(|_| !contexts.is_empty()).map(gives_way),
            shares: settings::shares(),
            wake_timeout_s: self.wake_timeout.as_secs_f64(),
            touches: gate::touches(),
            contexts: contexts.iter().map(of).collect(),
            limits: Vec::new(),
            ledgers,
            staying: unmanaged::all().into_iter().chain(self.imports.all(false)).collect(),
            obstacles: self.obstacles(false),
        }
    }
}

/// Returns to whom an idle sleep gives way, in words.
fn gives_way(idle: &Idle) -> String {
    let limit = idle.options().give_way;
    match neighbours::of(std::process::id()) {
        _ if limit.is_zero() => "to nobody: LOWTIDE_GIVE_WAY=0".to_owned(),
        Err(error) => format!("to nobody: {error}"),
        Ok(others) => match others.first().filter(|other| other.age < limit) {
            Some(other) => format!("now: {other}"),
            None => format!("to processes that started less than {} s ago", limit.as_secs()),
        },
    }
}

/// Asks a framework for its cache after the program's work. The gate is closed: a thread that waits there may have a
/// lock of the framework's, which then cannot answer.
fn trim_of_idle() -> Result<(), String> {
    if !gate::waits_to_take() && torch_cache::trim(CLOSED_CACHE_LIMIT) == Trim::UnderWay {
        return Err("busy: the framework's cache is being given back".to_owned());
    }
    Ok(())
}

/// Checks that nothing keeps the process from sleeping.
fn none_of(obstacles: &[String]) -> Result<(), String> {
    if obstacles.is_empty() {
        return Ok(());
    }
    Err(format!("the process cannot sleep: {}", obstacles.join(", ")))
}
