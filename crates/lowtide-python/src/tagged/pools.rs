//! The pools that tagged memory is in: one for each device, made when a tag is first used there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use lowtide::pool::{Phase, Policy, Pool, SleepPolicy, StreamId, Tag, TagSnapshot};
use lowtide::release::Releaser;
use lowtide_device::process::{Generation, has_exit_begun};
use lowtide_device::{Address, Bytes, Device, DeviceId};

use crate::calls::waiting::lock;
use crate::tagged::ahead_threads;
use crate::tagged::error::Refusal;

/// Pools by the number of their device. They stay until the process ends: torch may free at any time.
static POOLS: Mutex<BTreeMap<u32, Arc<TaggedPool>>> = Mutex::new(BTreeMap::new());
/// The process that has them.
static MADE_IN: OnceLock<Generation> = OnceLock::new();

/// The tagged memory of one device.
pub(crate) struct TaggedPool {
    pub(crate) pool: Pool,
    pub(crate) releaser: Releaser,
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    /// By name: the policy that a tag was declared with. A discard changes it until the next wake.
    declared: BTreeMap<String, SleepPolicy>,
    /// How many scopes of each tag are open.
    open: BTreeMap<String, usize>,
    /// Tags that somebody puts to sleep or wakes.
    turning: BTreeSet<String>,
    /// What torch has, by address: the name of its tag.
    allocations: BTreeMap<u64, Arc<str>>,
}

/// Tags that this thread puts to sleep or wakes. No scope of them opens until it is dropped.
pub(crate) struct Turning<'a> {
    tagged: &'a TaggedPool,
    names: Vec<String>,
}

/// Returns the pool of a device, made if there is none.
pub(crate) fn of_device(device: i32) -> Result<Arc<TaggedPool>, Refusal> {
    let number = u32::try_from(device).map_err(|_| Refusal::BadDevice { device })?;
    check_process()?;
    if let Some(tagged) = pools().get(&number) {
        return Ok(Arc::clone(tagged));
    }
    let tagged = Arc::new(TaggedPool::new(number)?);
    // Another thread may have been faster; its pool is as good.
    let tagged = Arc::clone(pools().entry(number).or_insert(tagged));
    ahead_threads::begin_on(number, &tagged.pool);
    Ok(tagged)
}

/// Returns every pool with its device's number; none in a forked child.
pub(crate) fn all() -> Vec<(u32, Arc<TaggedPool>)> {
    if check_process().is_err() {
        return Vec::new();
    }
    pools().iter().map(|(number, tagged)| (*number, Arc::clone(tagged))).collect()
}

/// Refuses in a forked child. Its parent's threads may have held any lock when it was forked.
pub(crate) fn check_process() -> Result<(), Refusal> {
    let made_in = MADE_IN.get_or_init(Generation::current);
    if made_in.is_current() { Ok(()) } else { Err(Refusal::Forked) }
}

fn pools() -> MutexGuard<'static, BTreeMap<u32, Arc<TaggedPool>>> {
    lock(&POOLS)
}

impl TaggedPool {
    fn new(number: u32) -> Result<TaggedPool, Refusal> {
        let device = Device::open(DeviceId::Cuda(number))?;
        // Each segment of torch has chunks of its own, as few as possible: a free returns them whole.
        let policy = Policy::default().apart(Some(Bytes::mib(512)));
        // `lowtide.ahead` decides whether any are made. They take what the sleep itself would take.
        let policy = policy.ahead_most(Bytes(u64::MAX));
        let pool = Pool::builder(&device).policy(policy).build()?;
        let releaser = lowtide::releaser(&device);
        releaser.add_pool(&pool);
        Ok(TaggedPool { pool, releaser, tables: Mutex::default() })
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        lock(&self.tables)
    }

    /// Declares a tag with its policy; refuses where it was declared with another.
    pub(crate) fn declare(&self, name: &str, policy: SleepPolicy) -> Result<Tag, Refusal> {
        let known = self.tables().declared.get(name).copied();
        match known {
            Some(known) if known != policy => {
                Err(Refusal::OtherPolicy { name: name.to_owned(), known: known.as_str() })
            }
            // Its policy may be another until the next wake.
            Some(_) => Ok(self.pool.find_tag(name)?.unwrap_or_default()),
            None => {
                let tag = self.pool.tag(name, policy)?;
                self.tables().declared.insert(name.to_owned(), policy);
                Ok(tag)
            }
        }
    }

    /// Returns the policy that a tag was declared with.
    pub(crate) fn declared(&self, name: &str) -> SleepPolicy {
        self.tables().declared.get(name).copied().unwrap_or(SleepPolicy::Offload)
    }

    /// Returns the tags that were declared or used here, with their numbers.
    pub(crate) fn tags(&self) -> Vec<TagSnapshot> {
        let declared: BTreeSet<String> = self.tables().declared.keys().cloned().collect();
        let tags = self.pool.snapshot().tags.into_iter();
        tags.filter(|tag| declared.contains(&tag.name) || tag.live_bytes > Bytes::ZERO).collect()
    }

    /// Counts a scope of a tag that opens; refuses where the tag is not awake.
    pub(crate) fn open(&self, name: &str, tag: Tag) -> Result<(), Refusal> {
        let mut tables = self.tables();
        if tables.turning.contains(name) {
            return Err(Refusal::Turning { name: name.to_owned() });
        }
        if self.pool.phase(tag)? != Phase::Awake {
            return Err(Refusal::Asleep { name: name.to_owned() });
        }
        *tables.open.entry(name.to_owned()).or_default() += 1;
        Ok(())
    }

    /// Counts a scope of a tag that ends.
    pub(crate) fn close(&self, name: &str) {
        if let Some(open) = self.tables().open.get_mut(name) {
            *open = open.saturating_sub(1);
        }
    }

    /// Returns how many scopes of a tag are open.
    pub(crate) fn open_scopes(&self, name: &str) -> usize {
        self.tables().open.get(name).copied().unwrap_or_default()
    }

    /// Begins to put tags to sleep, or to wake them. Refuses where a scope of one is open, or another
    /// thread does the same.
    pub(crate) fn turn(&self, names: Vec<String>) -> Result<Turning<'_>, Refusal> {
        let mut tables = self.tables();
        for name in &names {
            if tables.open.get(name).is_some_and(|open| *open > 0) {
                return Err(Refusal::Open { name: name.clone() });
            }
            if tables.turning.contains(name) {
                return Err(Refusal::Turning { name: name.clone() });
            }
        }
        tables.turning.extend(names.iter().cloned());
        drop(tables);
        Ok(Turning { tagged: self, names })
    }

    /// Allocates whole pages for torch.
    pub(crate) fn allocate(&self, size: u64, tag: Tag, name: &Arc<str>) -> Result<u64, Refusal> {
        let page = self.pool.device().info().page.0;
        // Where there is no multiple, the pool says that it is too large.
        let whole = Bytes(size.checked_next_multiple_of(page).unwrap_or(size));
        let at = self.pool.alloc(whole, StreamId::default(), tag)?.0;
        self.tables().allocations.insert(at, Arc::clone(name));
        Ok(at)
    }

    /// Frees what torch has at an address, and returns the memory to the device. Waits for the device
    /// first, as `cudaFree` does: torch does not wait for work that it gave to the allocation's stream.
    pub(crate) fn free(&self, at: u64) -> Result<(), Refusal> {
        // At exit the driver may be gone, and the memory goes with the process.
        if has_exit_begun() || self.tables().allocations.remove(&at).is_none() {
            return Ok(());
        }
        self.pool.device().synchronize()?;
        self.pool.free(Address(at), StreamId::default())?;
        self.pool.trim(Bytes::ZERO)?;
        Ok(())
    }

    /// Returns the name of the tag of an allocation that begins at this address.
    pub(crate) fn name_at(&self, at: u64) -> Option<Arc<str>> {
        self.tables().allocations.get(&at).cloned()
    }
}

impl Turning<'_> {
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the tags.
    pub(crate) fn tags(&self) -> Result<Vec<Tag>, Refusal> {
        let found =
            self.names.iter().filter_map(|name| self.tagged.pool.find_tag(name).transpose());
        Ok(found.collect::<Result<_, _>>()?)
    }
}

impl Drop for Turning<'_> {
    fn drop(&mut self) {
        let mut tables = self.tagged.tables();
        for name in &self.names {
            tables.turning.remove(name);
        }
    }
}

/// Returns the policy of a word.
pub(crate) fn policy(word: &str) -> Result<SleepPolicy, Refusal> {
    match word {
        "offload" => Ok(SleepPolicy::Offload),
        "discard" => Ok(SleepPolicy::Discard),
        "keep" => Ok(SleepPolicy::Keep),
        other => Err(Refusal::UnknownPolicy { policy: other.to_owned() }),
    }
}
