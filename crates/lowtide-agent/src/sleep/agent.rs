//! The agent of a process: going to sleep and waking.

#![allow(unsafe_code, reason = "hands the driver's functions over")]

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lowtide_device::cuda::Driver;
use lowtide_proto::{Answer, ContextStatus, NoRoom, Status, Woken};
use lowtide_release::{Idle, parse_time};
use lowtide_types::{Bytes, DeviceId, Ledger, Receipt, Target};

use crate::control::worker::{Job, Worker};
use crate::control::{idle, socket as control};
use crate::driver::{busy as quiet, calls};
use crate::entry::lookup as loader;
use crate::gate;
use crate::memory::allocations::{Allocation, Home, Memory};
use crate::memory::virtual_memory::VirtualMemory;
use crate::memory::{contexts, unmanaged as staying};
use crate::say::say;
use crate::sleep::suspend::Suspending;
use crate::sleep::{driver_pools as pools, obstacles, torch_cache as interpreter};

/// The driver's code for a device that is out of memory.
pub(crate) const OUT_OF_MEMORY: i32 = 2;
/// The driver's code for an error that it has no name for.
pub(crate) const UNKNOWN: i32 = 999;

/// The time that calls of other threads have to return before a sleep gives up.
const CLOSING_LIMIT: Duration = Duration::from_millis(5);
/// The first pause between two attempts of a touch to wake; each is twice the one before, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The time for which a touch tries to wake, unless `LOWTIDE_WAKE_TIMEOUT` says another.
const WAKE_TIMEOUT: Duration = Duration::from_secs(60);
/// The attempts of a touch to wake where something else fails than room.
const ATTEMPTS: u32 = 3;
/// The time between two lines about a lack of room.
const TELLING: Duration = Duration::from_secs(10);

static AGENT: OnceLock<Agent> = OnceLock::new();
/// True in a child that was forked after the agent started: its driver does not work there.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// The agent of this process.
pub(crate) struct Agent {
    pub(crate) driver: Arc<Driver>,
    pub(crate) memory: Memory,
    pub(crate) virtual_memory: VirtualMemory,
    captures: Mutex<Captures>,
    worker: Worker,
    pub(crate) suspending: Suspending,
    idle: Option<Idle>,
    /// The time for which a touch tries to wake.
    wake_timeout: Duration,
    /// When somebody was last told that there is no room; `None` since the last wake.
    told: Mutex<Option<Instant>>,
}

/// Captures that are open, and frees that wait for their end.
#[derive(Default)]
struct Captures {
    open: u32,
    deferred: Vec<Allocation>,
}

/// Returns the agent; `None` where calls just pass through.
pub(crate) fn get() -> Option<&'static Agent> {
    if IS_FORKED.load(Relaxed) { None } else { AGENT.get() }
}

/// Returns whether `LOWTIDE_AGENT=off` turns the agent off.
pub(crate) fn is_off() -> bool {
    const UNKNOWN: u8 = 0;
    const ON: u8 = 1;
    const OFF: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    match KNOWN.load(Relaxed) {
        UNKNOWN => {
            let off = std::env::var_os("LOWTIDE_AGENT").is_some_and(|value| value == "off");
            KNOWN.store(if off { OFF } else { ON }, Relaxed);
            off
        }
        known => known == OFF,
    }
}

/// Starts the agent, once. The driver is initialised.
pub(crate) fn start() {
    if is_off() || IS_FORKED.load(Relaxed) {
        return;
    }
    let Some(driver) = driver() else { return };
    AGENT.get_or_init(|| {
        let idle = idle::policy();
        Agent {
            driver,
            memory: Memory::default(),
            virtual_memory: VirtualMemory::default(),
            captures: Mutex::default(),
            worker: Worker::start(idle.clone()),
            suspending: Suspending::new(),
            idle,
            wake_timeout: wake_timeout(),
            told: Mutex::default(),
        }
    });
    control::start();
}

/// Builds a driver from the real functions; `None` if this driver lacks what sleeping needs, which
/// `status` then says.
fn driver() -> Option<Arc<Driver>> {
    let look_up = |name: &CStr| NonNull::new(loader::look_up(name));
    // SAFETY: functions of the driver that the program has loaded and initialised; it is never unloaded.
    match unsafe { Driver::from_entry_points(look_up) } {
        Ok(driver) => Some(Arc::new(driver)),
        Err(error) => {
            obstacles::add(&error.to_string());
            None
        }
    }
}

/// Returns the time for which a touch tries to wake, as `LOWTIDE_WAKE_TIMEOUT` says.
fn wake_timeout() -> Duration {
    let Ok(text) = std::env::var("LOWTIDE_WAKE_TIMEOUT") else { return WAKE_TIMEOUT };
    parse_time(&text).unwrap_or_else(|| {
        say!("LOWTIDE_WAKE_TIMEOUT={text} is not a time such as 30s or 5m; the limit is {WAKE_TIMEOUT:?}");
        WAKE_TIMEOUT
    })
}

/// Makes calls pass through in a forked child.
pub(crate) extern "C" fn after_fork() {
    IS_FORKED.store(true, SeqCst);
    gate::open();
}

/// Wakes the process for a thread that is about to use the device. Waits while there is no room.
///
/// # Errors
/// The driver's code for a device without room, after the time limit; or for an unknown error, where
/// waking fails for another reason. The process stays asleep, and the next touch tries again.
pub(crate) fn wake_for_touch() -> Result<(), i32> {
    let Some(agent) = get() else {
        gate::open();
        return Ok(());
    };
    agent.bring_back(Job::Wake)
}

/// Resumes the process for a call that it does not answer while it is suspended. Waits while there is no room.
///
/// # Errors
/// As [`wake_for_touch`].
pub(crate) fn resume_for_call() -> Result<(), i32> {
    let Some(agent) = get() else {
        gate::open();
        return Ok(());
    };
    agent.bring_back(Job::Resume)
}

impl Agent {
    /// Has the worker bring the process back; tries again while there is no room.
    fn bring_back(&self, job: Job) -> Result<(), i32> {
        let (began, mut failures, mut pause) = (Instant::now(), 0, FIRST_PAUSE);
        loop {
            match self.worker.ask(job) {
                Answer::Woken(_) | Answer::Resumed(_) => return Ok(()),
                Answer::NoRoom(no_room) => {
                    if began.elapsed() >= self.wake_timeout {
                        say!("a call of the program is told that memory is out: {no_room}");
                        return Err(OUT_OF_MEMORY);
                    }
                    self.tell_once(&no_room);
                }
                answer => {
                    failures += 1;
                    if failures == ATTEMPTS {
                        say!("this process could not wake: {answer:?}");
                        return Err(UNKNOWN);
                    }
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Asks the worker, and waits for its answer.
    pub(crate) fn ask(&self, job: Job) -> Answer {
        self.worker.ask(job)
    }

    /// Says who uses the memory, for all threads that wait together.
    fn tell_once(&self, no_room: &NoRoom) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|when| when.elapsed() > TELLING) {
            *told = Some(Instant::now());
            drop(told);
            say!("waiting to wake: {no_room}");
        }
    }

    /// Notes that a capture began, or ended.
    pub(crate) fn capture_changed(&self, began: bool) {
        let mut captures = self.captures.lock().unwrap_or_else(PoisonError::into_inner);
        captures.open = if began { captures.open + 1 } else { captures.open.saturating_sub(1) };
        if captures.open > 0 {
            return;
        }
        let deferred = std::mem::take(&mut captures.deferred);
        drop(captures);
        for allocation in deferred {
            // The program was told that it is free; what fails now is only memory that stays taken.
            if let Err(error) = give_back(&allocation) {
                say!("a freed allocation stays on the device: {error}");
            }
        }
    }

    /// Frees an allocation: at once, or at the end of the captures that are open, which waiting for the
    /// device would end.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn free(&self, allocation: Allocation) -> lowtide_pool::Result<()> {
        let mut captures = self.captures.lock().unwrap_or_else(PoisonError::into_inner);
        if captures.open > 0 {
            captures.deferred.push(allocation);
            return Ok(());
        }
        drop(captures);
        give_back(&allocation)
    }

    /// Frees everything of a context that is about to be destroyed.
    pub(crate) fn leave_context(&self, context: usize) {
        for allocation in self.memory.of_context(context) {
            match give_back(&allocation) {
                // The driver has taken everything: the process ends, or a fault has lost the context.
                Err(lowtide_pool::Error::Device(error)) if error.is_context_lost() => {}
                Err(error) => say!("an allocation of a destroyed context stays: {error}"),
                Ok(()) => {}
            }
        }
        self.virtual_memory.leave(context);
        self.memory.forget(context);
    }

    /// Puts the process to sleep. Called by the worker.
    pub(crate) fn sleep(&self) -> Answer {
        if gate::is_asleep() {
            return Answer::Asleep;
        }
        match self.fall_asleep("sleep", None) {
            Ok(receipts) => Answer::Slept { receipts },
            Err(reason) => refused(&reason),
        }
    }

    /// Frees memory of the process, by sleeping where that is needed. Called by the worker.
    pub(crate) fn release(&self, to: Option<Bytes>) -> Answer {
        let target = to.map(Target::Under);
        if gate::is_suspended() {
            return Answer::Asleep;
        }
        if gate::is_asleep() {
            let Some(target) = target else { return Answer::Asleep };
            // Nothing is left to take; the receipts say whether that is enough.
            let homes = self.memory.homes();
            let receipts = homes.iter().map(|home| home.release("release", Some(target))).collect();
            return Answer::Released { receipts };
        }
        match self.fall_asleep("release", target) {
            Ok(receipts) => Answer::Released { receipts },
            Err(reason) => refused(&reason),
        }
    }

    /// Closes the gate and moves memory off the devices, all of it or until the target is met.
    ///
    /// # Errors
    /// The reason why nothing was tried.
    fn fall_asleep(&self, name: &str, to: Option<Target>) -> Result<Vec<Receipt>, String> {
        let obstacles = obstacles::names();
        if !obstacles.is_empty() {
            return Err(format!("the process cannot sleep: {}", obstacles.join(", ")));
        }
        interpreter::trim();
        let homes = self.memory.homes();
        // What is loaded lazily is loaded now: a thread that waits at the gate may have the loader's lock.
        quiet::prepare();
        pools::prepare();
        calls::prepare();
        for home in &homes {
            home.prepare();
        }
        if !gate::close(CLOSING_LIMIT) {
            return Err("busy: a driver call is under way".to_owned());
        }
        if let Some(reason) = self.work_on_device(&homes) {
            gate::open();
            return Err(reason);
        }
        for home in &homes {
            pools::trim(home.device.id());
        }
        let taken =
            homes.iter().try_for_each(|home| self.virtual_memory.take_mappings_away(home.context));
        if let Err(error) = taken {
            self.settle(false, &homes);
            return Err(format!("virtual memory of the program stays mapped: {error}"));
        }
        let receipts: Vec<Receipt> = homes.iter().map(|home| home.release(name, to)).collect();
        let is_asleep = if to.is_some() {
            // A context may stay awake: the target was met without it.
            homes.iter().any(|home| home.has_sleeping())
        } else {
            homes.iter().all(|home| home.is_asleep())
        };
        self.settle(is_asleep, &homes);
        Ok(receipts)
    }

    /// Ends an attempt to sleep. Where it failed, everything comes back and the gate opens. Where even that fails, the
    /// process is asleep, and its next touch tries again.
    fn settle(&self, is_asleep: bool, homes: &[Arc<Home>]) {
        if is_asleep || self.wake_all(homes).is_err() {
            gate::fall_asleep();
        } else {
            gate::open();
        }
    }

    /// Wakes every context, or none: where one cannot wake, those that woke go back to sleep. Nobody has used them
    /// meanwhile.
    fn wake_all(&self, homes: &[Arc<Home>]) -> lowtide_pool::Result<Bytes> {
        let mut bytes = Bytes::ZERO;
        for (number, home) in homes.iter().enumerate() {
            match home.wake(&self.virtual_memory) {
                Ok(woken) => bytes += woken,
                Err(error) => {
                    for woken in &homes[..=number] {
                        woken.sleep_again(&self.virtual_memory);
                    }
                    return Err(error);
                }
            }
        }
        Ok(bytes)
    }

    /// Returns why the device is not idle. The gate is closed, so nothing is added.
    fn work_on_device(&self, homes: &[Arc<Home>]) -> Option<String> {
        let open = self.captures.lock().unwrap_or_else(PoisonError::into_inner).open;
        if open > 0 {
            return Some("busy: a graph is being captured".to_owned());
        }
        let contexts = contexts::all();
        // The program may have got a context in a way that no function of ours saw.
        let unseen = homes.iter().filter(|home| !contexts.iter().any(|one| one.0 == home.context));
        let of_homes = unseen.map(|home| home.question.is_busy(home.context));
        let all = contexts.iter().map(|(context, question)| question.is_busy(*context));
        all.chain(of_homes).flatten().next()
    }

    /// Wakes the process. Called by the worker.
    pub(crate) fn wake(&self) -> Answer {
        let began = Instant::now();
        if !gate::is_asleep() {
            return Answer::Woken(Woken { bytes: Bytes::ZERO, took_s: 0.0 });
        }
        if gate::is_suspended() {
            match self.resume() {
                Answer::Resumed(_) => {}
                answer => return answer,
            }
        }
        match self.wake_all(&self.memory.homes()) {
            Ok(bytes) => {
                gate::open();
                *self.told.lock().unwrap_or_else(PoisonError::into_inner) = None;
                Answer::Woken(Woken { bytes, took_s: began.elapsed().as_secs_f64() })
            }
            Err(lowtide_pool::Error::NoRoom { device, needed, free, holders }) => {
                Answer::NoRoom(NoRoom { device, needed, free, holders })
            }
            Err(error) => refused(&format!("the process stays asleep: {error}")),
        }
    }

    /// Returns what the process has on its devices.
    pub(crate) fn status(&self) -> Status {
        loop {
            if let Some(status) = self.suspending.status() {
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
        let (homes, idle) = (self.memory.homes(), self.idle.as_ref());
        let of = |home: &Arc<Home>| {
            let plain = self.memory.sum(home.context);
            let own = self.virtual_memory.sum(home.context);
            let (blocks, bytes) = (plain.0 + own.0, plain.1 + own.1);
            ContextStatus { device: home.device.id(), blocks, bytes, on_device: home.on_device() }
        };
        Status {
            pid: std::process::id(),
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            is_asleep: gate::is_asleep(),
            is_suspended: false,
            idle_s: idle.map(|idle| idle.options().after.as_secs_f64()),
            quiet_s: idle.map(|idle| idle.quiet().as_secs_f64()),
            wake_timeout_s: self.wake_timeout.as_secs_f64(),
            touches: gate::touches(),
            contexts: homes.iter().map(of).collect(),
            ledgers: ledgers(&homes),
            staying: staying::all(),
            obstacles: obstacles::names(),
        }
    }
}

/// Returns the ledger of each device. A device with several contexts has one.
fn ledgers(homes: &[Arc<Home>]) -> Vec<Ledger> {
    let mut devices: Vec<DeviceId> = Vec::new();
    let mut ledgers = Vec::new();
    for home in homes {
        if !devices.contains(&home.device.id()) {
            devices.push(home.device.id());
            ledgers.extend(home.ledger());
        }
    }
    ledgers
}

/// Waits for work that may use an allocation, as the driver does, and gives it back.
fn give_back(allocation: &Allocation) -> lowtide_pool::Result<()> {
    if !gate::is_asleep() {
        allocation.home.device.synchronize()?;
    }
    allocation.give_back()
}

fn refused(reason: &str) -> Answer {
    Answer::Refused { reason: reason.to_owned() }
}
