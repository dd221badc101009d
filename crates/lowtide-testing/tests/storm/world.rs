//! A world: one device with two pools and a releaser, from the beginning to the proof that nothing of
//! it is left.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_device::{Bytes, Device, HostOptions, RangeProblem};
use lowtide_pool::{Error, Policy, Pool, Result, SleepPolicy, Subscription, Tag};
use lowtide_release::{Idle, IdleOptions, Idling, Pauses, Registration, Releaser, Stages};
use lowtide_testing::Dice;
use lowtide_testing::double::{Double, REFUSABLE};
use lowtide_testing::refusing::{Faults, device_over};
use lowtide_testing::suite::Target;

use crate::clock::{FastClock, SPEED};
use crate::figures;
use crate::held::Held;
use crate::trail::{fail, note};

/// The policies of the tags of every pool, in this order.
pub(crate) const POLICIES: [SleepPolicy; 4] =
    [SleepPolicy::Offload, SleepPolicy::Offload, SleepPolicy::Discard, SleepPolicy::Keep];

/// A tag of one of the pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) pool: usize,
    pub(crate) tag: usize,
}

impl Group {
    pub(crate) fn policy(self) -> SleepPolicy {
        POLICIES[self.tag]
    }
}

struct Tagged {
    pool: Pool,
    policy: Policy,
    tags: [Tag; POLICIES.len()],
}

pub(crate) struct World {
    pub(crate) target: Target,
    pub(crate) device: Device,
    /// The device without faults between it and us.
    pub(crate) real: Device,
    /// The faults of `host`; the double has its own.
    faults: Arc<Faults>,
    /// What was in use before the first allocation.
    pub(crate) base: Bytes,
    pools: Vec<Tagged>,
    pub(crate) releaser: Releaser,
    pub(crate) idling: Idling,
    pub(crate) stages: Stages,
    pub(crate) pauses: Pauses,
    /// Blocks that one thread leaves to another.
    pub(crate) market: Mutex<Vec<Held>>,
    /// Whether calls of the driver fail on purpose in this world. In one without, an error of the
    /// device is a failure.
    pub(crate) has_faults: bool,
    /// Whether blocks are written past their pools in this world.
    pub(crate) has_strays: bool,
    /// Set when the threads are to stop.
    pub(crate) is_over: AtomicBool,
    /// The number of hooks that are running.
    pub(crate) hooks: AtomicUsize,
    /// The dice of callbacks, which run on any thread.
    pub(crate) dice: Mutex<Dice>,
    /// Faults of the double that struck in earlier worlds of this process.
    struck_before: u64,
    sleeps_begun: AtomicU64,
    sleeps_ended: AtomicU64,
    numbers: AtomicU64,
    pub(crate) plugged: Mutex<(Vec<Subscription>, Vec<Registration>)>,
}

/// Counts a sleep as under way, for content that a sleep may discard.
pub(crate) struct Sleeping<'a>(&'a World);

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.0.sleeps_ended.fetch_add(1, SeqCst);
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory of a process that was killed is given back by the kernel within this time.
pub(crate) const GONE_WITHIN: Duration = Duration::from_secs(60);

impl World {
    pub(crate) fn new(seed: u64, target: Target) -> Arc<World> {
        let mut dice = Dice::new(seed);
        let real = open(target, &mut dice);
        let (has_faults, faults) = (dice.one_in(2), Arc::new(Faults::default()));
        let device = if has_faults && target == Target::Host {
            device_over(&real, &faults)
        } else {
            real.clone()
        };
        let base = real.usage().unwrap_or_else(|error| fail(error)).in_use();
        let clock = Arc::new(FastClock::default());
        let releaser = Releaser::new(&device, clock.clone());
        if target == Target::Double {
            releaser.set_floor(base);
        }
        let has_strays = dice.one_in(3);
        let pools: Vec<Tagged> = (0..2).map(|_| tagged(&device, has_strays, &mut dice)).collect();
        for tagged in &pools {
            releaser.add_pool(&tagged.pool);
        }
        let after = SPEED * Duration::from_millis(dice.pick(&[0, 5, 40]));
        let options = IdleOptions { enabled: true, after, ..IdleOptions::default() };
        let idle = Idle::new(options, clock);
        Arc::new(World {
            target,
            real,
            faults,
            base,
            pools,
            idling: Idling::new(&releaser, &idle),
            stages: Stages::new(&releaser),
            pauses: Pauses::new(&releaser),
            releaser,
            device,
            market: Mutex::default(),
            has_faults,
            has_strays,
            is_over: AtomicBool::new(false),
            hooks: AtomicUsize::new(0),
            dice: Mutex::new(Dice::new(dice.roll(u64::MAX))),
            struck_before: if target == Target::Double { Double::load().struck() } else { 0 },
            sleeps_begun: AtomicU64::new(0),
            sleeps_ended: AtomicU64::new(0),
            numbers: AtomicU64::new(seed << 20),
            plugged: Mutex::default(),
        })
    }

    /// Keeps subscriptions and registrations until the world ends.
    pub(crate) fn plug(&self, subscriptions: Vec<Subscription>, registrations: Vec<Registration>) {
        let mut plugged = lock(&self.plugged);
        plugged.0.extend(subscriptions);
        plugged.1.extend(registrations);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(SeqCst)
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, SeqCst)
    }

    pub(crate) fn pool_and_tag(&self, Group { pool, tag }: Group) -> (&Pool, Tag) {
        (&self.pools[pool].pool, self.pools[pool].tags[tag])
    }

    pub(crate) fn policy(&self, pool: usize) -> &Policy {
        &self.pools[pool].policy
    }

    pub(crate) fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().map(|tagged| &tagged.pool)
    }

    pub(crate) fn roll_group(&self, dice: &mut Dice) -> Group {
        Group { pool: dice.index(self.pools.len()), tag: dice.index(POLICIES.len()) }
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = Group> {
        (0..self.pools.len())
            .flat_map(|pool| (0..POLICIES.len()).map(move |tag| Group { pool, tag }))
    }

    /// Says that a sleep may begin from now on, until the guard is dropped.
    pub(crate) fn sleeping(&self) -> Sleeping<'_> {
        self.sleeps_begun.fetch_add(1, SeqCst);
        Sleeping(self)
    }

    pub(crate) fn sleeps_begun(&self) -> u64 {
        self.sleeps_begun.load(SeqCst)
    }

    /// Returns how many sleeps have begun, if none is under way.
    pub(crate) fn sleeps_if_none(&self) -> Option<u64> {
        let ended = self.sleeps_ended.load(SeqCst);
        let begun = self.sleeps_begun.load(SeqCst);
        (begun == ended).then_some(begun)
    }

    /// Returns the value, or `None` for a refusal that a storm brings. Any other error is a failure.
    pub(crate) fn allowed<T>(&self, operation: &str, result: Result<T>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let why = match &error {
            Error::Asleep { .. } => "asleep",
            Error::NoRoom { .. } => "no room to wake",
            Error::Stopped { .. } => "stopped by its limit",
            Error::BackupLimit { .. } => "limit of backups",
            error if error.is_out_of_memory() => "out of memory",
            Error::Device(lowtide_device::Error::NoHostHeadroom { .. }) => "no host memory",
            Error::KeepsChanging { .. } if self.has_strays => "stray write",
            // One that comes while another thread wakes the tag again. The last wake must succeed.
            Error::Corrupt { .. } if self.has_strays => "stray write during a wake",
            Error::Device(lowtide_device::Error::BadRange {
                problem: RangeProblem::InUse, ..
            }) if self.has_strays => "stray write in flight",
            Error::Device(_) if self.has_faults => "device error",
            _ => fail(format!("{operation}: {error}")),
        };
        note(format_args!("{operation} refused: {error}"));
        figures::refusal(why);
        None
    }

    /// Has a call of the driver fail soon.
    pub(crate) fn arm_fault(&self, dice: &mut Dice) {
        if self.target == Target::Double {
            Double::load().arm(&calls(), dice);
        } else {
            self.faults.arm(dice);
        }
    }

    /// Ends all faults that have not struck, or that strike for ever.
    pub(crate) fn end_faults(&self) {
        if self.target == Target::Double {
            Double::load().clear_faults();
        } else {
            self.faults.disarm();
        }
    }

    pub(crate) fn struck(&self) -> u64 {
        if self.target == Target::Double {
            Double::load().struck() - self.struck_before
        } else {
            self.faults.struck()
        }
    }
}

// A stream that does not say that it has passed keeps its memory, and then nobody can tell what a block
// contains that was freed on it.
fn calls() -> Vec<&'static str> {
    REFUSABLE.into_iter().filter(|call| *call != "cuStreamSynchronize").collect()
}

fn open(target: Target, dice: &mut Dice) -> Device {
    let budget = Bytes::mib(32 + 16 * dice.roll(4));
    let device = if target == Target::Host {
        Device::host(HostOptions { budget: Some(budget), small_pages: dice.one_in(2) })
    } else {
        let late_us = dice.pick(&[0, 20, 200]);
        let total_mib = 16 + (budget.0 >> 20);
        let settings = format!(
            "total={total_mib}MiB,context=16MiB,reserved=0MiB,foreign=off,late_us={late_us}"
        );
        Double::load().configure(&settings);
        open_double()
    };
    device.unwrap_or_else(|error| fail(format!("the device could not be opened: {error}")))
}

// The memory of a child that was killed goes once the kernel has taken its mappings apart. Whoever reads
// its `/proc` at that moment, another storm for example, delays that.
fn open_double() -> lowtide_device::Result<Device> {
    let until = Instant::now() + GONE_WITHIN;
    loop {
        let device = Device::cuda(0);
        let usage = device.as_ref().ok().and_then(|device| device.usage().ok());
        let is_alone = usage.is_some_and(|usage| usage.in_use() == Bytes::mib(16));
        if is_alone || Instant::now() > until {
            return device;
        }
        drop(device);
        thread::sleep(Duration::from_millis(5));
    }
}

// Two digests are the same where a page has changed, was copied and has changed back. So backups are
// checked where writes come that change pages back.
fn tagged(device: &Device, has_strays: bool, dice: &mut Dice) -> Tagged {
    let policy = Policy::default()
        .keep_backups(dice.one_in(2))
        .wake_on_alloc(dice.one_in(2))
        .direct_backups(dice.pick(&[Bytes::ZERO, Bytes::mib(6), Bytes(u64::MAX)]))
        .backup_most(dice.pick(&[None, None, Some(Bytes::mib(24)), Some(Bytes::mib(4))]))
        .check_backups(has_strays || dice.one_in(2))
        .numbers(|numbers| numbers.checked_at_once = dice.pick(&[Bytes::mib(2), Bytes::gib(2)]));
    let pool = Pool::builder(device).policy(policy).build();
    let pool = pool.unwrap_or_else(|error| fail(format!("no pool: {error}")));
    let mut index = 0;
    let tags = POLICIES.map(|policy| {
        index += 1;
        let tag = pool.tag(&format!("tag {index}"), policy);
        tag.unwrap_or_else(|error| fail(format!("no tag: {error}")))
    });
    Tagged { pool, policy, tags }
}
