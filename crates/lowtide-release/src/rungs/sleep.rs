//! The rung `sleep`.

use std::time::Duration;

use lowtide_pool::{Error, Limit, Phase, Pool, Scope, SleepPolicy, Tag, TagSnapshot};
use lowtide_types::{Bytes, RungName, Touch};

use super::rung::{Climbed, Expectation, Rung};
use crate::callbacks::Climb;
use crate::failure::Failure;
use crate::readings::Inventory;

/// A sleep copies as much memory as the device has, so that it may take minutes without hanging.
pub(super) const SLEEP_LIMIT: Duration = Duration::from_secs(600);

/// Moves pool chunks off the device; their addresses stay.
#[derive(Debug)]
pub struct Sleep;

impl Rung for Sleep {
    fn name(&self) -> RungName {
        RungName::Sleep
    }

    fn limit(&self) -> Duration {
        SLEEP_LIMIT
    }

    fn expect(&self, inventory: &Inventory) -> Expectation {
        let pools = inventory.pools();
        if pools.is_empty() {
            return Expectation::Skip("no pool can sleep".to_owned());
        }
        let bytes: Bytes = pools.iter().map(|pool| can_sleep(pool, |_| true)).sum();
        if bytes == Bytes::ZERO {
            return Expectation::Skip("nothing is awake that can sleep".to_owned());
        }
        Expectation::Bytes(Some(bytes))
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        for pool in inventory.pools() {
            // Once the gate is open nobody would wake what is put to sleep.
            if !climb.go_on() {
                break;
            }
            climbed.attempt_rung("pool", || sleep(&pool, Scope::Whole, climb));
        }
        climbed.stopped |= !climb.go_on();
        Ok(climbed)
    }
}

/// Moves the chunks of some tags of a pool off the device; their addresses stay.
#[derive(Debug)]
pub struct SleepTags {
    /// The pool that has the tags.
    pub pool: Pool,
    /// The names of the tags that fall asleep. Names that the pool does not know are left out.
    pub names: Vec<String>,
}

impl Rung for SleepTags {
    fn name(&self) -> RungName {
        RungName::Sleep
    }

    fn limit(&self) -> Duration {
        SLEEP_LIMIT
    }

    fn expect(&self, _: &Inventory) -> Expectation {
        match can_sleep(&self.pool, |tag| self.names.contains(&tag.name)) {
            Bytes::ZERO => Expectation::Skip("nothing is awake that can sleep".to_owned()),
            bytes => Expectation::Bytes(Some(bytes)),
        }
    }

    fn climb(&self, _: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        let tags = self.names.iter().filter_map(|name| self.pool.find_tag(name).transpose());
        let tags = tags.collect::<Result<Vec<Tag>, _>>()?;
        sleep(&self.pool, Scope::Tags(&tags), climb)
    }
}

fn sleep(pool: &Pool, scope: Scope<'_>, climb: &Climb) -> Result<Climbed, Failure> {
    let go_on = || climb.go_on();
    let report = match pool.sleep_within(scope, Limit::new(&go_on)) {
        Ok(report) => report,
        // Nothing failed: the pool is awake, with its data.
        Err(stopped @ Error::Stopped { .. }) => {
            let skipped = vec![format!("pool: {stopped}")];
            return Ok(Climbed { skipped, stopped: true, ..Climbed::default() });
        }
        Err(error) => return Err(error.into()),
    };
    let what = format!(
        "pool, {} of its tags: {} copied, {} unchanged",
        report.tags, report.copied, report.unchanged
    );
    Ok(Climbed { touched: vec![Touch::sized(what, report.freed)], ..Climbed::default() })
}

fn can_sleep(pool: &Pool, is_meant: impl Fn(&TagSnapshot) -> bool) -> Bytes {
    let tags = pool.snapshot().tags.into_iter().filter(is_meant);
    tags.filter(|tag| tag.phase == Phase::Awake && tag.policy != SleepPolicy::Keep)
        .map(|tag| tag.physical_bytes)
        .sum()
}
