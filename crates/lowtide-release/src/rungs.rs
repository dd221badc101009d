//! The rungs there are, under the names of the design and of the eight steps of R27.
//!
//! What has a subject only in a host language (models to host, sessions, collectors, caches,
//! fractions, a context reset) is done by what was plugged in there; its order, isolation, time
//! limits and guards are ours.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lowtide_device::Bytes;
use lowtide_pool::{Phase, Pool, Scope, SleepPolicy};
use lowtide_types::Touch;

use crate::owners::DropOutcome;
use crate::rung::{Climbed, Expectation, Failure, Rung, message};
use crate::scene::{Hook, Place, Restore, Scene};

/// After so many rounds that each brought something, collecting is left to the next attempt.
const COLLECT_ROUNDS_MOST: u32 = 8;
/// Weights have been seen to die in the second collection only.
const COLLECT_ROUNDS_LEAST: u32 = 2;

/// Waits for all work on the device. The gate is closed by whoever climbs the ladder.
#[derive(Debug)]
pub struct Quiesce;

impl Rung for Quiesce {
    fn name(&self) -> &'static str {
        "quiesce"
    }

    fn expect(&self, scene: &Scene) -> Expectation {
        match scene.gauge() {
            Some(_) => Expectation::Bytes(Some(Bytes::ZERO)),
            None => Expectation::Skip("there is no device".to_owned()),
        }
    }

    fn climb(&self, scene: &Scene) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        if let Some(gauge) = scene.gauge() {
            gauge.synchronize()?;
            climbed.touched.push(format!("{}, all streams", gauge.id()).into());
        }
        Ok(climbed)
    }
}

/// Owners in plan order, wrappers first.
#[derive(Debug)]
pub struct DropOwners;

impl Rung for DropOwners {
    fn name(&self) -> &'static str {
        "drop"
    }

    fn expect(&self, scene: &Scene) -> Expectation {
        let plan = scene.owners().plan();
        if plan.steps.is_empty() {
            return Expectation::Skip("no owner has anything".to_owned());
        }
        Expectation::Bytes(plan.steps.iter().map(|step| step.bytes).sum())
    }

    fn climb(&self, scene: &Scene) -> Result<Climbed, Failure> {
        let shutdown = scene.owners().shutdown();
        let mut climbed = Climbed::default();
        for dropped in &shutdown.dropped {
            climbed.touched.push(Touch { what: dropped.name.clone(), bytes: dropped.bytes });
            if let DropOutcome::Panicked { message } = &dropped.outcome {
                climbed.failures.push(format!("{}: its drop panicked: {message}", dropped.name));
            }
        }
        Ok(climbed)
    }
}

/// What was plugged in at one place, each on its own: one that fails does not stop the next.
#[derive(Debug)]
pub struct Hooks {
    name: &'static str,
    place: Place,
    /// What is missing where nothing was plugged in.
    missing: &'static str,
}

/// Models to the host's memory.
pub const TO_HOST: Hooks =
    Hooks { name: "to_host", place: Place::ToHost, missing: "no model can be moved to the host" };
/// Sessions of inference runtimes closed.
pub const SESSIONS: Hooks =
    Hooks { name: "sessions", place: Place::Sessions, missing: "no inference runtime is known" };
/// Registered caches cleared.
pub const CACHES: Hooks =
    Hooks { name: "caches", place: Place::Caches, missing: "no cache is registered" };
/// Workspaces, communicators, leftovers of other processes.
pub const LIBRARIES: Hooks =
    Hooks { name: "libraries", place: Place::Libraries, missing: "no library is known" };

// What is plugged in there expects, or what is missing where nothing is.
fn expect(scene: &Scene, place: Place, missing: &str) -> Expectation {
    expect_of(&scene.hooks(place), missing)
}

fn expect_of(hooks: &[Arc<Hook>], missing: &str) -> Expectation {
    if hooks.is_empty() {
        return Expectation::Skip(missing.to_owned());
    }
    let skipped: Vec<Option<String>> = hooks.iter().map(|hook| hook.missing()).collect();
    if skipped.iter().all(Option::is_some) {
        return Expectation::Skip(skipped.into_iter().flatten().collect::<Vec<_>>().join("; "));
    }
    let applying = hooks.iter().zip(skipped).filter(|(_, skipped)| skipped.is_none());
    Expectation::Bytes(applying.map(|(hook, _)| hook.expected()).sum())
}

fn run(scene: &Scene, place: Place, round: u32, climbed: &mut Climbed) {
    run_all(&scene.hooks(place), scene, round, climbed);
}

fn run_all(hooks: &[Arc<Hook>], scene: &Scene, round: u32, climbed: &mut Climbed) {
    for hook in hooks {
        climbed.attempt_whole(hook.name(), || match hook.missing() {
            Some(skipped) => Ok(Climbed { skipped: vec![skipped], ..Climbed::default() }),
            None => Ok(Climbed { touched: hook.run(scene, round)?, ..Climbed::default() }),
        });
    }
}

impl Rung for Hooks {
    fn name(&self) -> &'static str {
        self.name
    }

    fn expect(&self, scene: &Scene) -> Expectation {
        expect(scene, self.place, self.missing)
    }

    fn climb(&self, scene: &Scene) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        run(scene, self.place, 0, &mut climbed);
        Ok(climbed)
    }
}

/// A rung of one release alone, made of parts that it brings: run one after another, each on its own
/// and within its limit, as what is plugged in is.
#[derive(Debug)]
pub struct Parts {
    name: String,
    hooks: Vec<Arc<Hook>>,
}

impl Parts {
    /// Under a name, which is that of the rung whose place it takes.
    pub fn new(name: impl Into<String>, hooks: Vec<Hook>) -> Parts {
        Parts { name: name.into(), hooks: hooks.into_iter().map(Arc::new).collect() }
    }
}

impl Rung for Parts {
    fn name(&self) -> &str {
        &self.name
    }

    fn expect(&self, _: &Scene) -> Expectation {
        expect_of(&self.hooks, "it has no parts")
    }

    fn climb(&self, scene: &Scene) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        run_all(&self.hooks, scene, 0, &mut climbed);
        Ok(climbed)
    }
}

/// The host language's collector, alternating with trim until nothing more comes back.
#[derive(Debug)]
pub struct Collect;

impl Rung for Collect {
    fn name(&self) -> &'static str {
        "collect"
    }

    fn lets_work_go_on(&self) -> bool {
        true
    }

    fn expect(&self, scene: &Scene) -> Expectation {
        expect(scene, Place::Collect, "no collector of a host language is registered")
    }

    fn climb(&self, scene: &Scene) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        let mut before = scene.read();
        for round in 0..COLLECT_ROUNDS_MOST {
            run(scene, Place::Collect, round, &mut climbed);
            trim(scene, &mut climbed);
            let after = scene.read();
            if after.is_like(&before, scene.noise()) && round + 1 >= COLLECT_ROUNDS_LEAST {
                break;
            }
            before = after;
        }
        Ok(climbed)
    }
}

/// Waits for the device, because what its work still uses cannot go; then cached memory of every
/// allocator we know back to the driver; then waits for that.
#[derive(Debug)]
pub struct Trim;

impl Rung for Trim {
    fn name(&self) -> &'static str {
        "trim"
    }

    fn lets_work_go_on(&self) -> bool {
        true
    }

    fn expect(&self, scene: &Scene) -> Expectation {
        let allocators = scene.allocators();
        if allocators.is_empty() {
            return Expectation::Skip("no allocator is known".to_owned());
        }
        let counts = allocators.iter().map(|allocator| allocator.counts());
        let cached = counts.map(|counts| counts.reserved.saturating_sub(counts.allocated)).sum();
        Expectation::Bytes(Some(cached))
    }

    fn climb(&self, scene: &Scene) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        synchronize(scene, &mut climbed);
        trim(scene, &mut climbed);
        synchronize(scene, &mut climbed);
        Ok(climbed)
    }
}

fn synchronize(scene: &Scene, climbed: &mut Climbed) {
    let Some(gauge) = scene.gauge() else { return };
    climbed.attempt("synchronise", || {
        gauge.synchronize()?;
        Ok(Vec::new())
    });
}

fn trim(scene: &Scene, climbed: &mut Climbed) {
    for allocator in scene.allocators() {
        let name = allocator.name();
        climbed.attempt(&name, || {
            if let Some(why) = allocator.why_not_trim() {
                return Err(why.into());
            }
            let given_back = allocator.trim()?;
            let touched = (given_back > Bytes::ZERO)
                .then(|| Touch::sized(format!("{name}, what it had cached"), given_back));
            Ok(touched.into_iter().collect())
        });
    }
}

/// Allocator fractions lowered, memory trimmed, statistics reset, fractions restored.
#[derive(Debug)]
pub struct Fraction;

impl Rung for Fraction {
    fn name(&self) -> &'static str {
        "fraction"
    }

    fn expect(&self, scene: &Scene) -> Expectation {
        if scene.settings().is_empty() {
            return Expectation::Skip("no allocator has a fraction to lower".to_owned());
        }
        Expectation::Bytes(None)
    }

    fn climb(&self, scene: &Scene) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        let mut lowered = Vec::new();
        for setting in scene.settings() {
            let name = setting.name();
            climbed.attempt(&name, || {
                lowered.push((Restoring::new(&name, setting.lower()?), Arc::clone(&setting)));
                Ok(Vec::new())
            });
        }
        trim(scene, &mut climbed);
        for (restoring, setting) in lowered {
            let name = setting.name();
            climbed.attempt(&name, || {
                setting.reset_statistics()?;
                Ok(Vec::new())
            });
            climbed.attempt(&name, || {
                restoring.restore()?;
                Ok(vec![format!("{name}, lowered and restored").into()])
            });
        }
        Ok(climbed)
    }
}

/// A setting that comes back whatever happens.
struct Restoring {
    name: String,
    restore: Option<Restore>,
}

impl Restoring {
    fn new(name: &str, restore: Restore) -> Restoring {
        Restoring { name: name.to_owned(), restore: Some(restore) }
    }

    fn restore(mut self) -> Result<(), Failure> {
        self.restore.take().map_or(Ok(()), |restore| restore())
    }
}

impl Drop for Restoring {
    fn drop(&mut self) {
        let Some(restore) = self.restore.take() else { return };
        // It may be dropped by a panic; a second one would end the process.
        let restored = catch_unwind(AssertUnwindSafe(restore));
        let failure = match restored {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => failure.to_string(),
            Err(panic) => message(&*panic),
        };
        tracing::error!(setting = self.name, failure, "a setting could not be restored");
    }
}

/// Pool chunks off the device, addresses kept.
#[derive(Debug)]
pub struct Sleep;

impl Rung for Sleep {
    fn name(&self) -> &'static str {
        "sleep"
    }

    fn expect(&self, scene: &Scene) -> Expectation {
        let pools = scene.pools();
        if pools.is_empty() {
            return Expectation::Skip("no pool can sleep".to_owned());
        }
        let bytes: Bytes = pools.iter().map(can_sleep).sum();
        if bytes == Bytes::ZERO {
            return Expectation::Skip("nothing is awake that can sleep".to_owned());
        }
        Expectation::Bytes(Some(bytes))
    }

    fn climb(&self, scene: &Scene) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        for pool in scene.pools() {
            climbed.attempt("pool", || {
                let report = pool.sleep(Scope::Whole)?;
                let what = format!(
                    "pool, {} of its tags: {} copied, {} unchanged",
                    report.tags, report.copied, report.unchanged
                );
                Ok(vec![Touch::sized(what, report.freed)])
            });
        }
        Ok(climbed)
    }
}

fn can_sleep(pool: &Pool) -> Bytes {
    let tags = pool.snapshot().tags.into_iter();
    tags.filter(|tag| tag.phase == Phase::Awake && tag.policy != SleepPolicy::Keep)
        .map(|tag| tag.physical_bytes)
        .sum()
}

/// The context destroyed and made anew: only where the process is disposable, because in a live
/// framework it destroys what is in use.
#[derive(Debug)]
pub struct ContextReset;

impl Rung for ContextReset {
    fn name(&self) -> &'static str {
        "context_reset"
    }

    fn expect(&self, scene: &Scene) -> Expectation {
        if !scene.is_disposable() {
            let why = "the process is not disposable, and a reset destroys what is in use";
            return Expectation::Skip(why.to_owned());
        }
        expect(scene, Place::ContextReset, "nobody can reset a context here")
    }

    fn climb(&self, scene: &Scene) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        run(scene, Place::ContextReset, 0, &mut climbed);
        Ok(climbed)
    }
}

/// Everything that gives memory back without losing any, once more in one go, and what was plugged
/// in for this.
#[derive(Debug)]
pub struct Fallback;

impl Rung for Fallback {
    fn name(&self) -> &'static str {
        "fallback"
    }

    fn expect(&self, _: &Scene) -> Expectation {
        Expectation::Bytes(None)
    }

    fn climb(&self, scene: &Scene) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        for hooks in [&TO_HOST, &SESSIONS, &CACHES] {
            run(scene, hooks.place, 0, &mut climbed);
        }
        for rung in [&Collect as &dyn Rung, &Trim, &Sleep] {
            climbed.attempt_whole(rung.name(), || rung.climb(scene));
        }
        run(scene, Place::Fallback, 0, &mut climbed);
        Ok(climbed)
    }
}

/// All of them, in the order of the whole ladder. (`suspend` and `exit` come after `sleep`, later.)
pub(crate) fn all() -> Vec<Arc<dyn Rung>> {
    vec![
        Arc::new(Quiesce),
        Arc::new(DropOwners),
        Arc::new(TO_HOST),
        Arc::new(SESSIONS),
        Arc::new(LIBRARIES),
        Arc::new(CACHES),
        Arc::new(Collect),
        Arc::new(Trim),
        Arc::new(Fraction),
        Arc::new(Sleep),
        Arc::new(ContextReset),
        Arc::new(Fallback),
    ]
}
