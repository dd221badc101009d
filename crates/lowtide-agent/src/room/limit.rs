//! What the program may have on each of its devices, and what it is told of their memory.
//!
//! `lowtide run --memory` caps what all processes of the run have together: each keeps a record of its own bytes.
//! Under `--share` it is told one number for its life, from its first question on: the device without what others could
//! not move then, and without a reserve. Neighbours that come, sleep and wake do not change it; where they have the
//! room, calls wait.
//!
//! Its own bytes are those of its pools, on the device or asleep, and what NVML has for this process beyond them:
//! contexts, modules, small allocations. They are read where they matter: for an answer, and before a call that comes
//! near the limit. In between, what calls have taken is added up, and nothing is taken off.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};

use lowtide_device::cuda::uuid_text;
use lowtide_device::nvml::{Nvml, ProcessMemory};
use lowtide_device::private_files::PrivateFolder;
use lowtide_device::records::{Locked, RecordError, Records};
use lowtide_proto::MemoryCap;
use lowtide_proto::helper::Target;
use lowtide_release::floor;
use lowtide_types::{Bytes, DeviceId};

use super::Want;
use crate::driver::calls;
use crate::driver::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::gate;
use crate::say::say;
use crate::sleep::agent::{self, Agent};

/// The distance from the limit at which the numbers are read anew.
const NEAR: Bytes = Bytes::mib(256);
/// What is kept back of a device for what programs take without asking: an eighth of a small one.
const RESERVE: Bytes = Bytes::gib(2);
const RESERVED_PART: u64 = 8;
/// The readings of one answer: another thread may allocate in the middle of one.
const TRIES: usize = 3;

static LIMITS: OnceLock<Limits> = OnceLock::new();

/// The limits of this process.
pub(crate) struct Limits {
    cap: Option<MemoryCap>,
    /// What is kept back of each device under `--share`, where that is not its default.
    reserve: Option<Bytes>,
    /// The first process of the run, with whose others the cap is shared.
    family: Option<Target>,
    nvml: Option<Arc<Nvml>>,
    /// By the device's number.
    devices: Mutex<BTreeMap<u32, Known>>,
    /// Held while a call takes memory, so that two do not take what is left for one.
    taking: Mutex<()>,
}

/// What is known of a device.
#[derive(Clone)]
struct Known {
    uuid: String,
    /// The whole device, and the most that the program may have there.
    total: Bytes,
    cap: Bytes,
    /// What the program is told that there is for it, since its first question.
    life: Option<Bytes>,
    /// The own bytes at the last reading, and what calls have taken since; `None` where nobody knows how much.
    own: Option<Bytes>,
    /// The own bytes that are not in pools, at the last reading.
    beyond: Bytes,
    /// The record of the own bytes, beside those of other processes of the run.
    kin: Option<Arc<Records>>,
}

/// Limits what this process has. Loads NVML, which nobody may load later: a thread that waits may have the loader's
/// lock.
pub(crate) fn set(cap: Option<MemoryCap>, reserve: Option<Bytes>, family: Option<Target>) {
    let (nvml, devices, taking) = (Nvml::kept().ok(), Mutex::default(), Mutex::default());
    LIMITS.get_or_init(|| Limits { cap, reserve, family, nvml, devices, taking });
}

/// Returns the limits; `None` where there are none, and in children.
#[inline]
pub(crate) fn get() -> Option<&'static Limits> {
    LIMITS.get().filter(|_| agent::get().is_some())
}

/// Tells other processes of the run that this one has freed memory of its pools.
pub(crate) fn freed() {
    if let Some(limits) = get() {
        limits.tell_freed();
    }
}

/// A limit on a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// What the process has there, asleep or not, and what other processes of its run have.
    pub(crate) own: Bytes,
    pub(crate) kin: Bytes,
    /// The most that it may have.
    pub(crate) cap: Bytes,
    /// What it is told that there is for it.
    pub(crate) life: Option<Bytes>,
}

impl Limit {
    /// Returns the free memory that the program is told, where the driver has so much.
    pub(crate) fn told(self, free: Bytes) -> Bytes {
        let left = self.cap.saturating_sub(self.own + self.kin);
        match self.life {
            Some(life) => life.saturating_sub(self.own).min(left),
            None => free.min(left),
        }
    }
}

impl Limits {
    /// Returns whether calls may be refused.
    pub(super) fn has_cap(&self) -> bool {
        self.cap.is_some()
    }

    /// Makes a call that takes memory, unless that is more than the program may have. The caller is inside the gate.
    ///
    /// # Errors
    /// The code for the caller where the call was not made.
    pub(super) fn within(
        &self,
        name: &str,
        want: Want,
        call: impl FnOnce() -> i32,
    ) -> Result<i32, i32> {
        let device = want.device.or_else(calls::current_device);
        let (Some(agent), Some(DeviceId::Cuda(ordinal))) = (agent::get(), device) else {
            return Ok(call());
        };
        let _one = lock(&self.taking);
        let Some(known) = self.known(ordinal) else { return Ok(call()) };
        let wanted = want.bytes.unwrap_or_default();
        // From the sum to the record of what is taken no other process of the run takes some.
        let locked = known.lock_kin();
        let kin = others(locked.as_ref());
        let cap = known.cap.saturating_sub(kin);
        let near = cap.saturating_sub(NEAR);
        let is_too_much = |own| own > cap || wanted > cap.saturating_sub(own);
        let mut own = match known.own {
            Some(own) if own <= near && wanted <= near.saturating_sub(own) => own,
            _ => self.read(agent, ordinal, known.clone()),
        };
        if is_too_much(own) && !agent.memory.is_capturing() {
            // As the driver does where the device is full: what its own pool keeps and nobody uses goes first.
            calls::trim_default_pool(DeviceId::Cuda(ordinal));
            own = self.read(agent, ordinal, known.clone());
        }
        if is_too_much(own) {
            static SAID: Once = Once::new();
            let others = match kin {
                Bytes::ZERO => ",".to_owned(),
                kin => format!(", other processes of its run have {kin}, it"),
            };
            SAID.call_once(|| {
                say!(
                    "{name} fails with code {OUT_OF_MEMORY}: the program has {own} on cuda:{ordinal}{others} wants \
                     {wanted} more, and may have {} (--memory)",
                    known.cap
                );
            });
            return Err(OUT_OF_MEMORY);
        }
        known.write(own + wanted);
        drop(locked);
        let code = call();
        let taken = if code == SUCCESS { wanted } else { Bytes::ZERO };
        if taken != wanted {
            known.write(own);
        }
        if let Some(known) = lock(&self.devices).get_mut(&ordinal) {
            known.own = want.bytes.map(|_| own + taken);
        }
        Ok(code)
    }

    fn tell_freed(&self) {
        let Some(agent) = agent::get().filter(|_| self.has_cap() && self.family.is_some()) else {
            return;
        };
        let all: Vec<_> = lock(&self.devices).iter().map(|(at, one)| (*at, one.clone())).collect();
        for (ordinal, known) in all {
            let (resident, asleep) = pools(agent, ordinal);
            known.write(resident + asleep + known.beyond);
        }
    }

    /// Returns what the program is told: the driver's free and total memory, or what its limit leaves.
    pub(crate) fn told(&self, free: Bytes, total: Bytes) -> (Bytes, Bytes) {
        let Some(device) = calls::current_device() else { return (free, total) };
        let Some(ours) = self.of(device, true) else { return (free, total) };
        (ours.told(free), total.min(ours.cap))
    }

    /// Returns the most that the program may have on a device.
    pub(crate) fn total(&self, ordinal: u32, total: Bytes) -> Bytes {
        self.known(ordinal).map_or(total, |known| total.min(known.cap))
    }

    /// Returns the limit on a device and what the program has there; `None` where nobody knows. A question of the
    /// program's makes its limit for life.
    pub(crate) fn of(&self, device: DeviceId, is_asked: bool) -> Option<Limit> {
        let (DeviceId::Cuda(ordinal), agent) = (device, agent::get()?) else { return None };
        let known = self.known(ordinal)?;
        let (cap, mut life) = (known.cap, known.life);
        let own = self.read(agent, ordinal, known.clone());
        if let (Some(room), None, true) = (super::get(), life, is_asked) {
            let fixed = room.fixed(&known.uuid, own);
            life = fixed.map(|fixed| self.life(known.total, fixed));
            if let (Some(made), Some(known)) = (life, lock(&self.devices).get_mut(&ordinal)) {
                // Another thread may have asked first.
                life = Some(*known.life.get_or_insert(made));
            }
        }
        let kin = others(known.lock_kin().as_ref());
        Some(Limit { own, kin, cap, life })
    }

    /// Returns the limit for the life of the program, where others have so much that cannot be moved.
    fn life(&self, total: Bytes, fixed: Bytes) -> Bytes {
        let reserve = self.reserve.unwrap_or(RESERVE.min(Bytes(total.0 / RESERVED_PART)));
        total.saturating_sub(fixed).saturating_sub(reserve)
    }

    /// Returns what is known of a device.
    fn known(&self, ordinal: u32) -> Option<Known> {
        if let Some(known) = lock(&self.devices).get(&ordinal) {
            return Some(known.clone());
        }
        let uuid = uuid_text(&calls::uuid(ordinal)?);
        let total = calls::total(ordinal)?;
        let cap = self.cap.map_or(total, |cap| cap.of(total));
        let mut devices = lock(&self.devices);
        let known = devices.entry(ordinal).or_insert_with(|| {
            let kin = self.family.filter(|_| self.has_cap());
            let kin = kin.and_then(|family| record(family, &uuid)).map(Arc::new);
            Known { uuid, total, cap, life: None, own: None, beyond: Bytes::ZERO, kin }
        });
        Some(known.clone())
    }

    /// Reads what the program has on a device. While its memory moves, what it has beyond its pools is what it was.
    fn read(&self, agent: &Agent, ordinal: u32, mut known: Known) -> Bytes {
        for _ in 0..TRIES {
            let (resident, asleep) = pools(agent, ordinal);
            let beyond = self.beyond(&known, resident);
            if pools(agent, ordinal) == (resident, asleep) {
                known.beyond = beyond.unwrap_or(known.beyond);
                break;
            }
        }
        let (resident, asleep) = pools(agent, ordinal);
        let own = resident + asleep + known.beyond;
        if let Some(place) = lock(&self.devices).get_mut(&ordinal) {
            (place.own, place.beyond) = (Some(own), known.beyond);
        }
        known.write(own);
        own
    }

    /// Returns what the process has on a device beside so much in pools; `None` where nobody can tell now.
    fn beyond(&self, known: &Known, resident: Bytes) -> Option<Bytes> {
        let _pass = gate::try_enter_quietly()?;
        if !gate::is_open() {
            return None;
        }
        let processes = self.nvml.as_ref().and_then(|nvml| nvml.processes(&known.uuid).ok());
        let own = |one: &ProcessMemory| one.pid == std::process::id();
        let used = processes.and_then(|all| all.into_iter().find(own)).and_then(|own| own.used);
        match used {
            Some(used) => gate::is_open().then_some(used.saturating_sub(resident)),
            // In a container NVML may list other numbers, or none.
            None => floor::of_uuid(&known.uuid, known.total).filter(|_| resident > Bytes::ZERO),
        }
    }
}

impl Known {
    /// Keeps other processes of the run from taking memory, where there may be some.
    fn lock_kin(&self) -> Option<Locked<'_>> {
        self.kin.as_ref()?.lock().inspect_err(not_shared).ok()
    }

    /// Tells other processes of the run what this one has.
    fn write(&self, own: Bytes) {
        if let Some(error) = self.kin.as_ref().and_then(|kin| kin.write(own).err()) {
            not_shared(&error);
        }
    }
}

/// Returns what other processes of the run have.
fn others(locked: Option<&Locked>) -> Bytes {
    let sum = locked.map(Locked::others).transpose();
    sum.inspect_err(not_shared).ok().flatten().unwrap_or_default()
}

/// Makes the record of what this process has on a device.
fn record(family: Target, uuid: &str) -> Option<Records> {
    let kind = format!("run-{}-{uuid}", family.to_text());
    let folder = PrivateFolder::of_user().map_err(RecordError::from);
    let recorded = folder.and_then(|folder| {
        // What cannot be removed now is tried by the next program.
        let _removed = remove_ended(family, &folder);
        Records::of_kind(&kind, folder)
    });
    recorded.inspect_err(not_shared).ok()
}

/// Removes the records of runs of which no process is left.
fn remove_ended(own: Target, folder: &PrivateFolder) -> Result<(), RecordError> {
    let own = format!("run-{}-", own.to_text());
    for name in folder.names()? {
        let kind = name.to_str().and_then(|name| name.strip_suffix(".lock"));
        if let Some(kind) = kind.filter(|one| one.starts_with("run-") && !one.starts_with(&own)) {
            Records::remove_left(kind, folder)?;
        }
    }
    Ok(())
}

/// Says once that the cap is this process's alone.
fn not_shared(error: &RecordError) {
    static SAID: Once = Once::new();
    SAID.call_once(|| say!("each process of the run may have --memory for itself: {error}"));
}

/// Returns the memory of the pools of a device, there and asleep.
fn pools(agent: &Agent, ordinal: u32) -> (Bytes, Bytes) {
    let mut contexts = agent.memory.contexts();
    contexts.retain(|one| one.device.id() == DeviceId::Cuda(ordinal));
    let all = contexts.iter();
    (all.clone().map(|one| one.on_device()).sum(), all.map(|one| one.asleep()).sum())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
