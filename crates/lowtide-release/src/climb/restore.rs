//! Restoring: what a release took off the device comes back before the next work begins.
//!
//! A release with a target may put pools to sleep, move models to host memory and close sessions. Work
//! that enters the gate afterwards needs them. Pools wake first, then each hook that can restore does,
//! in the order of the ladder. The device's number before and after says whether the memory is there.

use std::fmt;

use lowtide_device::tallies;
use lowtide_pool::Scope;
use lowtide_types::{Bytes, Reading, Touch};

use crate::clock::Clock;
use crate::readings::{Gauge, Inventory};

/// The reason why work could not begin: something did not come back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// A pool could not wake. All of it is still asleep.
    #[error(transparent)]
    Wake(#[from] lowtide_pool::Error),
    /// Hooks could not bring back what they had taken away. What came back stays.
    #[error("not everything came back to the device: {}; the next work tries again", failures.join("; "))]
    Hooks {
        /// The name of each hook that failed, and why.
        failures: Vec<String>,
    },
}

/// What came back to the device before work began.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Restored {
    /// Each thing that came back, with its size where that is known.
    pub touched: Vec<Touch>,
    /// The numbers of the device and of the allocators before anything came back.
    pub before: Reading,
    /// The same numbers when everything was back.
    pub after: Reading,
    /// The time that it took.
    pub took_s: f64,
    /// Whether the numbers confirm it: the device's number, or that of the allocators inside what they
    /// have taken from the device, rose by the sizes that are known. False if no size is known.
    pub proved: bool,
}

impl Restored {
    /// Returns the sum of the sizes that are known.
    pub fn bytes(&self) -> Bytes {
        self.touched.iter().filter_map(|touch| touch.bytes).sum()
    }
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.touched.iter().map(|touch| touch.what.as_str()).collect();
        write!(f, "restored {}, {}", names.join(", "), self.bytes())?;
        if let (Some(before), Some(after)) = (self.before.in_use(), self.after.in_use()) {
            write!(f, " ({before} → {after} in use)")?;
        }
        let confirmed = match (self.proved, self.bytes()) {
            (true, _) => "",
            (false, Bytes::ZERO) => ", whose size is not known",
            (false, _) => ", which the device does not confirm",
        };
        write!(f, " in {:.1} ms{confirmed}", self.took_s * 1000.0)
    }
}

/// Wakes every pool and brings back what hooks took away. Returns `None` if there was nothing.
pub(crate) fn restore(
    inventory: &Inventory,
    clock: &dyn Clock,
) -> Result<Option<Restored>, RestoreError> {
    let (began, before) = (clock.now(), inventory.read());
    inventory.pools().iter().try_for_each(|pool| pool.wake(Scope::Whole).map(drop))?;
    let woken = inventory.read();
    let (mut touched, mut failures) = (Vec::new(), Vec::new());
    for hook in inventory.restoring_hooks() {
        match hook.restore() {
            Ok(restored) => touched.extend(restored),
            Err(failure) => failures.push(format!("{}: {failure}", hook.name())),
        }
    }
    if !failures.is_empty() {
        return Err(RestoreError::Hooks { failures });
    }
    if touched.is_empty() {
        return Ok(None);
    }
    let after = inventory.read();
    let took_s = clock.since(began).as_secs_f64();
    let mut restored = Restored { touched, before, after, took_s, proved: false };
    let bytes = restored.bytes();
    tallies::woke(bytes, took_s);
    restored.proved = bytes > Bytes::ZERO && is_confirmed(inventory, bytes, &woken, &after);
    if restored.proved || bytes == Bytes::ZERO {
        tracing::info!("{restored}");
    } else {
        tracing::warn!("{restored}");
    }
    Ok(Some(restored))
}

/// Returns whether the numbers rose by so many bytes. Memory that an allocator had cached is in the
/// device's number already.
fn is_confirmed(inventory: &Inventory, bytes: Bytes, before: &Reading, after: &Reading) -> bool {
    let grain = inventory.gauge().map_or(Bytes(1), Gauge::grain).0.saturating_sub(1);
    let tolerance = inventory.noise().0.max(grain);
    let rose = |before: Option<Bytes>, after: Option<Bytes>| {
        before.zip(after).is_some_and(|(before, after)| after.0 + tolerance >= before.0 + bytes.0)
    };
    let is_inside = after.in_use().is_some_and(|in_use| in_use.0 + tolerance >= after.reserved.0);
    rose(before.in_use(), after.in_use())
        || is_inside && rose(Some(before.allocated), Some(after.allocated))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
    use std::sync::{Arc, Mutex};

    use lowtide_device::{Device, HostOptions};
    use lowtide_pool::{Block, Pool};
    use lowtide_types::{Target, Verdict};

    use super::*;
    use crate::{Hook, HookPoint, Idle, Idling, Ladder, ManualClock, Releaser, Request, Tick};

    const SIZE: Bytes = Bytes::mib(8);

    /// A model of a host language: a block that a hook drops and takes again.
    struct World {
        device: Device,
        releaser: Releaser,
        idling: Idling,
        fails: Arc<AtomicBool>,
        restored: Arc<AtomicU32>,
    }

    fn world_of(options: &str) -> World {
        let options_of_host =
            HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() };
        let device = Device::host(options_of_host).unwrap();
        let clock = Arc::new(ManualClock::default());
        let releaser = Releaser::new(&device, clock.clone());
        // A framework's memory: the releaser does not know the pool.
        let pool = Pool::new(&device).unwrap();
        let model: Arc<Mutex<Option<Block>>> = Arc::default();
        *model.lock().unwrap() = Some(pool.block(SIZE).unwrap());
        let (fails, restored) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let (moved, home, refuses) = (Arc::clone(&model), pool.clone(), Arc::clone(&fails));
        let count = Arc::clone(&restored);
        let hook = Hook::new("models", move |_| {
            let had = moved.lock().unwrap().take().is_some();
            pool.trim(Bytes::ZERO)?;
            Ok(if had { vec![Touch::sized("model", SIZE)] } else { Vec::new() })
        });
        let hook = hook.restored_by(move || {
            if refuses.load(SeqCst) {
                return Err("no room".into());
            }
            let mut model = model.lock().unwrap();
            if model.is_some() {
                return Ok(Vec::new());
            }
            *model = Some(home.block(SIZE)?);
            count.fetch_add(1, SeqCst);
            Ok(vec![Touch::sized("model", SIZE)])
        });
        releaser.add_hook(HookPoint::ToHost, hook).keep();
        let idle = Idle::new(options.parse().unwrap(), clock);
        let idling = Idling::new(&releaser, &idle);
        World { device, releaser, idling, fails, restored }
    }

    #[test]
    fn what_a_hook_took_away_is_back_before_work_begins_and_once() {
        let world = world_of("0s");
        drop(world.idling.work().unwrap());
        let Tick::Released(receipt) = world.idling.tick() else { panic!("it was time") };
        assert_eq!(receipt.verdict, Verdict::Released);
        assert_eq!(world.device.usage().unwrap().in_use(), Bytes::ZERO);
        let work = world.idling.work().unwrap();
        assert_eq!(world.device.usage().unwrap().in_use(), SIZE);
        let restored = work.restored().unwrap();
        assert!(restored.proved, "{restored}");
        assert!(restored.to_string().starts_with("restored model, 8.0 MiB (0.0 MiB → 8.0 MiB"));
        assert!(world.idling.work().unwrap().restored().is_none(), "it is awake");
        assert_eq!(world.restored.load(SeqCst), 1);
    }

    #[test]
    fn what_cannot_come_back_is_named_and_tried_again() {
        let world = world_of("0s");
        let request = Request::new("release", Ladder::gradual()).to(Target::Floor);
        world.releaser.release(request);
        world.fails.store(true, SeqCst);
        let error = world.idling.work().unwrap_err().to_string();
        assert!(error.contains("models: no room"), "{error}");
        assert_eq!(world.releaser.gate().state().active, 0, "the work has not begun");
        world.fails.store(false, SeqCst);
        assert_eq!(world.releaser.restore().unwrap().unwrap().bytes(), SIZE);
        assert!(world.releaser.restore().unwrap().is_none());
    }

    #[test]
    fn a_number_that_did_not_rise_confirms_nothing() {
        let world = world_of("0s");
        world.releaser.release(Request::new("release", Ladder::gradual()).to(Target::Floor));
        let says = Hook::new("liar", |_| Ok(Vec::new()))
            .restored_by(|| Ok(vec![Touch::sized("liar", Bytes::mib(16))]));
        world.releaser.add_hook(HookPoint::Sessions, says).keep();
        let restored = world.releaser.restore().unwrap().unwrap();
        assert!(!restored.proved && restored.to_string().contains("does not confirm"));
    }

    #[test]
    fn what_comes_back_without_a_size_is_not_proved() {
        let options = HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() };
        let device = Device::host(options).unwrap();
        let releaser = Releaser::new(&device, Arc::new(ManualClock::default()));
        let session = Hook::new("sessions", |_| Ok(Vec::new()))
            .restored_by(|| Ok(vec![Touch::from("session")]));
        releaser.add_hook(HookPoint::Sessions, session).keep();
        let chunk = device.create(SIZE).unwrap();
        releaser.release(Request::new("release", Ladder::gradual()).to(Target::Floor));
        drop(chunk);
        let restored = releaser.restore().unwrap().unwrap();
        assert!(!restored.proved, "{restored}");
        assert!(restored.to_string().contains("size is not known"), "{restored}");
    }

    #[test]
    fn r26_at_the_end_of_a_task_who_ends_it_releases() {
        let world = world_of("task");
        let other = world.idling.work().unwrap();
        let tick = world.idling.work().unwrap().end();
        assert!(matches!(tick, Some(Tick::No(_))), "another task is active: {tick:?}");
        let Some(Tick::Released(receipt)) = other.end() else { panic!("it was the last") };
        assert_eq!(receipt.verdict, Verdict::Released);
        assert_eq!(world.device.usage().unwrap().in_use(), Bytes::ZERO);
        let later = world_of("5m");
        assert!(later.idling.work().unwrap().end().is_none());
    }
}
