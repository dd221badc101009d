//! The part of the double that processes share: the sizes of the devices, how much of
//! them each process uses, and each process's checkpoint state.
//!
//! It is one small file, mapped by every process that names it in
//! `LOWTIDE_DOUBLE_STATE`; without that, an anonymous file of this process alone.
//! The kernel keeps it honest: byte 0 of the file, write-locked, is the lock for
//! changing it, and byte `1 + i` is held by the process in slot `i` for as long as it
//! lives. A process that is killed gives its lock, and so its memory, back at once,
//! and no PID has to be believed.
#![allow(unsafe_code, reason = "maps a file that several processes share")]

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::files;
use super::settings::{self, DEFAULTS, MAX_DEVICES, MachineSetting, Setting};
use super::shares::{Moved, ShareId, Shares};

const MAX_PROCESSES: usize = 64;
const MAX_FOREIGN: usize = 8;
/// Names the layout of [`Table`]; a file of another layout is refused.
const MAGIC: u64 = u64::from_le_bytes(*b"lt-dbl-3");

/// The file's content. Only atomics, so that a shared reference to it is sound.
#[repr(C)]
struct Table {
    magic: AtomicU64,
    total: AtomicU64,
    reserved: AtomicU64,
    context: AtomicU64,
    devices: AtomicU64,
    unattributed: AtomicU64,
    foreign: [Foreign; MAX_FOREIGN],
    slots: [ProcessSlot; MAX_PROCESSES],
    shares: Shares,
}

#[repr(C)]
struct Foreign {
    pid: AtomicU64,
    bytes: AtomicU64,
}

/// The checkpoint state of a process that runs.
pub(super) const RUNNING: u64 = 0;
/// The checkpoint state of a process whose calls wait.
pub(super) const LOCKED: u64 = 1;
/// The checkpoint state of a process that is off the device.
pub(super) const CHECKPOINTED: u64 = 2;
/// The checkpoint state of a process that could not be restored.
pub(super) const FAILED: u64 = 3;
/// The checkpoint state of a process that is on its way off the device, until [`ProcessSlot::done_at`].
pub(super) const CHECKPOINTING: u64 = 4;
/// The checkpoint state of a process that is on its way back, until [`ProcessSlot::done_at`].
pub(super) const RESTORING: u64 = 5;
/// The checkpoint state of a process that another waits for to become idle: this plus the slot of the
/// process that waits.
pub(super) const LOCKING: u64 = 16;

/// The entry of a process that called `cuInit`.
#[repr(C)]
pub(super) struct ProcessSlot {
    pid: AtomicU64,
    /// The checkpoint state: [`RUNNING`], [`LOCKED`], [`CHECKPOINTED`], [`FAILED`], or [`LOCKING`] and
    /// more.
    pub(super) state: AtomicU64,
    /// The time at which a checkpoint or a restore is done, in ns of the kernel's monotonic clock. The process
    /// does that work itself: whoever asked for it may be killed meanwhile.
    pub(super) done_at: AtomicU64,
    /// Gated calls that are running plus operations that are not done.
    pub(super) busy: AtomicU64,
    bytes: [AtomicU64; MAX_DEVICES],
    /// The number of its contexts on each device.
    contexts: [AtomicU64; MAX_DEVICES],
    /// The number of handles and addresses of memory that it imported.
    pub(super) imports: AtomicU64,
}

impl ProcessSlot {
    /// Returns the state, after what is done by now.
    pub(super) fn settled(&self) -> u64 {
        let now = self.state.load(SeqCst);
        let next = match now {
            CHECKPOINTING => CHECKPOINTED,
            RESTORING => LOCKED,
            _ => return now,
        };
        if monotonic_ns() < self.done_at.load(SeqCst) {
            return now;
        }
        // Another process may have been faster.
        let _changed = self.state.compare_exchange(now, next, SeqCst, SeqCst);
        self.state.load(SeqCst)
    }

    fn pid(&self) -> u64 {
        self.pid.load(SeqCst)
    }

    fn is_on_device(&self) -> bool {
        ![CHECKPOINTED, FAILED].contains(&self.settled())
    }

    fn memory_bytes(&self, device: usize, context: u64) -> u64 {
        self.bytes[device].load(SeqCst) + self.contexts[device].load(SeqCst) * context
    }
}

/// The machine as this process sees it.
pub(super) struct Machine {
    file: File,
    table: &'static Table,
    /// Record locks exclude other processes, not other threads of this one.
    threads: Mutex<()>,
    mine: OnceLock<usize>,
}

/// Returns the machine of this process.
///
/// # Panics
/// If the state file cannot be opened or has another layout.
pub(super) fn get() -> &'static Machine {
    static MACHINE: LazyLock<Machine> = LazyLock::new(|| {
        let machine = Machine::open().expect("the driver double's state file cannot be used");
        machine.found();
        machine
    });
    &MACHINE
}

impl Machine {
    fn open() -> io::Result<Machine> {
        let file = match std::env::var_os("LOWTIDE_DOUBLE_STATE") {
            Some(path) => {
                File::options().read(true).write(true).create(true).truncate(false).open(path)?
            }
            None => memfd_create("lowtide-double", MemfdFlags::CLOEXEC)?.into(),
        };
        match file.metadata()?.len() {
            0 => file.set_len(size_of::<Table>() as u64)?,
            bytes if bytes == size_of::<Table>() as u64 => {}
            _ => return Err(io::Error::other("it is not a state file of this version")),
        }
        let (none, bytes, access) =
            (std::ptr::null_mut(), size_of::<Table>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { mmap(none, bytes, access, MapFlags::SHARED, &file, 0) }?;
        // SAFETY: the mapping is as large as a Table, page-aligned, never unmapped,
        // and every bit pattern is a valid Table.
        let table = unsafe { &*at.cast::<Table>() };
        Ok(Machine { file, table, threads: Mutex::new(()), mine: OnceLock::new() })
    }

    /// Gives a new file the default settings.
    fn found(&self) {
        let lock = self.locked();
        let fresh = self.table.magic.compare_exchange(0, MAGIC, SeqCst, SeqCst);
        assert!(matches!(fresh, Ok(_) | Err(MAGIC)), "the state file has another layout");
        if fresh.is_ok() {
            default_settings().for_each(|setting| lock.set(setting));
        }
    }

    /// Takes the lock for reading sums or changing anything but atomics of one's own slot.
    pub(super) fn locked(&self) -> MachineLock<'_> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while let Err(why) = self.record_lock(libc::F_OFD_SETLKW, libc::F_WRLCK, 0) {
            assert_eq!(why.kind(), io::ErrorKind::Interrupted, "the state file: {why}");
        }
        MachineLock { machine: self, _threads: threads }
    }

    /// Returns the slot of this process, once it called `cuInit`.
    pub(super) fn mine(&self) -> Option<&'static ProcessSlot> {
        self.mine.get().map(|index| &self.table.slots[*index])
    }

    /// Returns the number of devices.
    pub(super) fn devices(&self) -> usize {
        usize::try_from(self.table.devices.load(SeqCst)).unwrap_or(MAX_DEVICES)
    }

    /// Returns the memory that the driver keeps for itself on each device.
    pub(super) fn reserved(&self) -> u64 {
        self.table.reserved.load(SeqCst)
    }

    /// Returns the size of each device.
    pub(super) fn total(&self) -> u64 {
        self.table.total.load(SeqCst)
    }

    fn record_lock(&self, command: i32, kind: i32, byte: u64) -> io::Result<bool> {
        files::record_lock(&self.file, command, kind, byte)
    }

    /// Returns the number of this process's slot, for [`Machine::is_alive`].
    pub(super) fn my_index(&self) -> Option<usize> {
        self.mine.get().copied()
    }

    /// Returns whether the process in a slot lives.
    pub(super) fn is_alive(&self, index: usize) -> bool {
        self.mine.get() == Some(&index)
            || self.record_lock(libc::F_OFD_GETLK, libc::F_WRLCK, slot_byte(index)).unwrap_or(true)
    }
}

/// Returns the kernel's monotonic clock, which all processes share.
pub(super) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Returns the settings of a new machine.
fn default_settings() -> impl Iterator<Item = MachineSetting> {
    let defaults = settings::parse(DEFAULTS).expect("the defaults parse").into_iter();
    defaults.filter_map(|setting| match setting {
        Setting::Machine(setting) => Some(setting),
        _ => None,
    })
}

fn slot_byte(index: usize) -> u64 {
    index as u64 + 1
}

/// The lock for changing the machine.
pub(super) struct MachineLock<'a> {
    machine: &'a Machine,
    _threads: MutexGuard<'a, ()>,
}

impl Drop for MachineLock<'_> {
    fn drop(&mut self) {
        // Unlocking a byte that this file description holds cannot fail.
        let _unlocked = self.machine.record_lock(libc::F_OFD_SETLK, libc::F_UNLCK, 0);
    }
}

impl MachineLock<'_> {
    /// Takes a slot for this process, if it has none; false where all are taken.
    pub(super) fn enrol(&self) -> bool {
        if self.machine.mine.get().is_some() {
            return true;
        }
        self.bury_the_dead();
        let free = (0..MAX_PROCESSES).find(|index| !self.is_taken(*index));
        free.is_some_and(|index| {
            let byte = slot_byte(index);
            self.machine.record_lock(libc::F_OFD_SETLK, libc::F_WRLCK, byte).expect("a free slot");
            let slot = &self.machine.table.slots[index];
            slot.bytes.iter().chain(&slot.contexts).for_each(|number| number.store(0, SeqCst));
            slot.state.store(0, SeqCst);
            slot.busy.store(0, SeqCst);
            slot.imports.store(0, SeqCst);
            slot.pid.store(u64::from(std::process::id()), SeqCst);
            self.machine.mine.set(index).is_ok()
        })
    }

    fn is_taken(&self, index: usize) -> bool {
        self.machine.table.slots[index].pid() != 0 && self.machine.is_alive(index)
    }

    fn living(&self) -> impl Iterator<Item = &'static ProcessSlot> {
        let table = self.machine.table;
        (0..MAX_PROCESSES).filter(|index| self.is_taken(*index)).map(|index| &table.slots[index])
    }

    /// Returns the slot of a living process that called `cuInit`.
    pub(super) fn slot_of(&self, pid: i32) -> Option<&'static ProcessSlot> {
        let pid = u64::try_from(pid).ok()?;
        self.living().find(|slot| slot.pid() == pid)
    }

    /// Returns our processes on the device: PID and bytes, contexts included.
    pub(super) fn users(&self, device: usize) -> Vec<(u64, u64)> {
        self.bury_the_dead();
        let context = self.machine.table.context.load(SeqCst);
        self.living()
            .filter(|slot| slot.is_on_device())
            .map(|slot| (slot.pid(), slot.memory_bytes(device, context)))
            .filter(|(_, bytes)| *bytes > 0)
            .collect()
    }

    /// Returns foreign processes, which are on device 0: PID and bytes.
    pub(super) fn foreigners(&self, device: usize) -> Vec<(u64, u64)> {
        let all = self.machine.table.foreign.iter().filter(|_| device == 0);
        let all = all.map(|one| (one.pid.load(SeqCst), one.bytes.load(SeqCst)));
        all.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Returns the bytes in use on the device, without what the driver reserves.
    pub(super) fn in_use(&self, device: usize) -> u64 {
        let nobody = if device == 0 { self.machine.table.unattributed.load(SeqCst) } else { 0 };
        let everybody = [self.users(device), self.foreigners(device)].concat();
        nobody + everybody.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Returns the bytes that are free on the device.
    pub(super) fn free(&self, device: usize) -> u64 {
        self.machine.total().saturating_sub(self.machine.reserved() + self.in_use(device))
    }

    /// Takes memory for this process; false if there is less.
    pub(super) fn take(&self, device: usize, bytes: u64) -> bool {
        let room = bytes <= self.free(device);
        if let (true, Some(mine)) = (room, self.machine.mine()) {
            mine.bytes[device].fetch_add(bytes, SeqCst);
        }
        room
    }

    /// Gives memory of this process back.
    pub(super) fn give(&self, device: usize, bytes: u64) {
        if let Some(mine) = self.machine.mine() {
            mine.bytes[device].fetch_sub(bytes, SeqCst);
        }
    }

    /// Has memory that dead processes held count to the living that hold it too.
    fn bury_the_dead(&self) {
        let table = self.machine.table;
        let is_dead = |index: &usize| table.slots[*index].pid() != 0 && !self.is_taken(*index);
        let dead = (0..MAX_PROCESSES).filter(is_dead).fold(0, |dead, index| {
            table.slots[index].pid.store(0, SeqCst);
            dead | 1 << index
        });
        if dead != 0 {
            table.shares.bury(dead).for_each(|moved| self.count_anew(&moved));
        }
    }

    fn count_anew(&self, moved: &Moved) {
        let bytes = |slot: usize| &self.machine.table.slots[slot].bytes[moved.device];
        bytes(moved.from).fetch_sub(moved.bytes, SeqCst);
        if let Some(to) = moved.to {
            bytes(to).fetch_add(moved.bytes, SeqCst);
        }
    }

    /// Enters memory of this process that others can hold, too.
    pub(super) fn share(&self, device: usize, bytes: u64) -> Option<ShareId> {
        self.machine.table.shares.add(self.machine.my_index()?, device, bytes)
    }

    /// Holds memory of another process; false if no process holds it any more.
    pub(super) fn join(&self, id: ShareId) -> bool {
        self.bury_the_dead();
        self.machine.my_index().is_some_and(|mine| self.machine.table.shares.join(id, mine))
    }

    /// Returns whether a process holds memory; `None` if there is no such process.
    pub(super) fn is_held_by(&self, pid: u64, id: ShareId) -> Option<bool> {
        let table = self.machine.table;
        let is_it = |index: &usize| table.slots[*index].pid() == pid && self.is_taken(*index);
        Some(table.shares.is_held_by(id, (0..MAX_PROCESSES).find(is_it)?))
    }

    /// Lets memory go that others may hold. Returns whether none does.
    pub(super) fn leave(&self, id: ShareId) -> bool {
        self.bury_the_dead();
        let mine = self.machine.my_index().map_or(0, |mine| 1 << mine);
        let (is_last, moved) = self.machine.table.shares.leave(id, mine);
        if let Some(moved) = moved {
            self.count_anew(&moved);
        }
        is_last
    }

    /// Takes the memory of a context; false if there is less.
    pub(super) fn take_context(&self, device: usize) -> bool {
        let room = self.machine.table.context.load(SeqCst) <= self.free(device);
        if let (true, Some(mine)) = (room, self.machine.mine()) {
            mine.contexts[device].fetch_add(1, SeqCst);
        }
        room
    }

    /// Gives back what one context of this process costs.
    pub(super) fn give_context(&self, device: usize) {
        if let Some(mine) = self.machine.mine() {
            mine.contexts[device].fetch_sub(1, SeqCst);
        }
    }

    /// Returns whether everything that a checkpointed process had fits on the device.
    pub(super) fn has_room_for(&self, slot: &ProcessSlot) -> bool {
        let context = self.machine.table.context.load(SeqCst);
        (0..self.machine.devices())
            .all(|device| slot.memory_bytes(device, context) <= self.free(device))
    }

    /// Applies one of the machine's settings.
    ///
    /// # Panics
    /// If there are more foreign processes than the file has room for.
    pub(super) fn set(&self, setting: MachineSetting) {
        let table = self.machine.table;
        match setting {
            MachineSetting::Total(bytes) => table.total.store(bytes, SeqCst),
            MachineSetting::Reserved(bytes) => table.reserved.store(bytes, SeqCst),
            MachineSetting::Context(bytes) => table.context.store(bytes, SeqCst),
            MachineSetting::Unattributed(bytes) => table.unattributed.store(bytes, SeqCst),
            MachineSetting::Devices(count) => table.devices.store(count, SeqCst),
            MachineSetting::NoForeign => {
                table.foreign.iter().for_each(|one| one.bytes.store(0, SeqCst));
            }
            MachineSetting::Foreign { pid, bytes } => {
                let free = table.foreign.iter().find(|one| one.bytes.load(SeqCst) == 0);
                let free = free.expect("no more foreign processes fit in the state file");
                free.pid.store(pid, SeqCst);
                free.bytes.store(bytes, SeqCst);
            }
        }
    }
}
