//! Sleep, wake and discard by tag, for Python.

use std::collections::BTreeSet;
use std::sync::Arc;

use lowtide::device::Bytes;
use lowtide::pool::{Limit, Phase, Scope, SleepPolicy, TagSnapshot};
use lowtide::release::{Clock, Ladder, Request, rungs};
use lowtide_device::tallies;
use pyo3::prelude::*;

use crate::calls::waiting::{CallClock, waiting};
use crate::data::receipt::Receipt;
use crate::tagged::entries::take_refusal;
use crate::tagged::error::Refusal;
use crate::tagged::pools::{self, TaggedPool};

/// What a tag has on a device.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub(crate) struct TagStatus {
    /// The name of the tag.
    name: String,
    /// The device, such as `cuda:0`.
    device: String,
    /// What a sleep does with it: `offload`, `discard` or `keep`.
    policy: &'static str,
    /// Whether its memory is off the device.
    is_asleep: bool,
    /// The memory that torch has in it, asleep or awake.
    bytes: u64,
    /// The part of it that is on the device now.
    on_device_bytes: u64,
    /// Host memory that holds its content, or a copy that a later sleep may use.
    backup_bytes: u64,
    /// The number of scopes that are open.
    open_scopes: usize,
}

#[pymethods]
impl TagStatus {
    fn __repr__(&self) -> String {
        let TagStatus { name, device, policy, bytes, on_device_bytes, .. } = self;
        let state = if self.is_asleep { "asleep" } else { "awake" };
        format!(
            "<TagStatus {name} on {device}, {policy}, {state}: {bytes} bytes, {on_device_bytes} on the \
             device>"
        )
    }
}

/// Returns the tags of this process, on every device.
#[pyfunction]
pub(crate) fn tags() -> Vec<TagStatus> {
    let mut all = Vec::new();
    for (number, tagged) in pools::all() {
        for TagSnapshot { name, phase, live_bytes, physical_bytes, backup_bytes, .. } in
            tagged.tags()
        {
            all.push(TagStatus {
                device: format!("cuda:{number}"),
                policy: tagged.declared(&name).as_str(),
                is_asleep: phase == Phase::Asleep,
                bytes: live_bytes.0,
                on_device_bytes: physical_bytes.0,
                backup_bytes: backup_bytes.0,
                open_scopes: tagged.open_scopes(&name),
                name,
            });
        }
    }
    all
}

/// Returns the tag of the allocation that begins at an address, and whether it is asleep.
#[pyfunction]
pub(crate) fn tag_at(address: u64) -> Option<(String, bool)> {
    pools::all().into_iter().find_map(|(_, tagged)| {
        let name = tagged.name_at(address)?;
        let tag = tagged.pool.find_tag(&name).ok()??;
        Some((name.to_string(), tagged.pool.phase(tag).ok()? == Phase::Asleep))
    })
}

/// Returns why the last allocation of this thread was refused, and forgets it.
#[pyfunction]
pub(crate) fn tag_refusal() -> Option<String> {
    take_refusal()
}

/// Puts tags to sleep; all if no name is given. With `discard`, their content is lost. Returns a receipt
/// for each device.
#[pyfunction]
#[pyo3(signature = (names, *, discard=false))]
pub(crate) fn tags_sleep(
    py: Python<'_>,
    names: Vec<String>,
    discard: bool,
) -> PyResult<Vec<Receipt>> {
    let work = move |clock: Arc<CallClock>| {
        let mut receipts = Vec::new();
        for Concerned { tagged, names } in concerned(&names)? {
            receipts.push(sleep(&tagged, names, discard, &clock)?);
        }
        Ok::<_, Refusal>(receipts)
    };
    Ok(waiting(py, work)??)
}

fn sleep(
    tagged: &TaggedPool,
    names: Vec<String>,
    discard: bool,
    clock: &Arc<CallClock>,
) -> Result<Receipt, Refusal> {
    let turning = tagged.turn(names)?;
    let tags = turning.tags()?;
    if discard {
        for tag in &tags {
            tagged.pool.set_policy(*tag, SleepPolicy::Discard)?;
        }
    } else {
        // What a sleep needs takes device memory, which the first reading counts. Where it is refused, the
        // sleep tries on its own, and its receipt says what failed.
        let _refused = tagged.pool.prepare_sleep();
    }
    let is_meant = |tag: &TagSnapshot| {
        let sleeps = tag.phase == Phase::Awake && tag.policy != SleepPolicy::Keep;
        sleeps && turning.names().contains(&tag.name)
    };
    let claim = tagged.tags().into_iter().filter(is_meant).map(|tag| tag.physical_bytes).sum();
    let rung = rungs::SleepTags { pool: tagged.pool.clone(), names: turning.names().to_vec() };
    let name = if discard { "discard" } else { "sleep" };
    let name = format!("{name} {}", turning.names().join(", "));
    let request = Request::new(name, Ladder::of(vec![Arc::new(rung)])).claiming(claim);
    let receipt = tagged.releaser.with_clock(Arc::clone(clock) as _).release(request);
    restore_policies(tagged, turning.names())?;
    Ok(Receipt(receipt))
}

/// Wakes tags; all if no name is given. Returns the bytes that came back.
#[pyfunction]
pub(crate) fn tags_wake(py: Python<'_>, names: Vec<String>) -> PyResult<u64> {
    let work = move |clock: Arc<CallClock>| {
        let go_on = || !clock.is_interrupted();
        let (began, mut mapped) = (clock.now(), Bytes::ZERO);
        for Concerned { tagged, names } in concerned(&names)? {
            let turning = tagged.turn(names)?;
            let tags = turning.tags()?;
            mapped += tagged.pool.wake_within(Scope::Tags(&tags), Limit::new(&go_on))?.mapped;
            restore_policies(&tagged, turning.names())?;
        }
        if mapped > Bytes::ZERO {
            tallies::woke(mapped, clock.since(began).as_secs_f64());
        }
        Ok::<_, Refusal>(mapped.0)
    };
    Ok(waiting(py, work)??)
}

/// Gives tags that are awake the policies that they were declared with.
fn restore_policies(tagged: &TaggedPool, names: &[String]) -> Result<(), Refusal> {
    for name in names {
        if let Some(tag) = tagged.pool.find_tag(name)?
            && tagged.pool.phase(tag)? == Phase::Awake
        {
            tagged.pool.set_policy(tag, tagged.declared(name))?;
        }
    }
    Ok(())
}

/// A pool, and the tags of it that a call is about.
struct Concerned {
    tagged: Arc<TaggedPool>,
    names: Vec<String>,
}

/// Returns the pools that have some of these tags, or all if no name is given; refuses an unknown name.
fn concerned(names: &[String]) -> Result<Vec<Concerned>, Refusal> {
    pools::check_process()?;
    let of_pool = |(_, tagged): (u32, Arc<TaggedPool>)| {
        let names = tagged.tags().into_iter().map(|tag| tag.name).collect();
        Concerned { tagged, names }
    };
    let mut all: Vec<Concerned> = pools::all().into_iter().map(of_pool).collect();
    let known: BTreeSet<String> = all.iter().flat_map(|one| one.names.clone()).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(*name)) {
        let (name, known): (_, Vec<_>) = (name.clone(), known.into_iter().collect());
        let is_none = known.is_empty();
        return Err(if is_none {
            Refusal::NoTag { name }
        } else {
            Refusal::UnknownTag { name, known }
        });
    }
    for one in &mut all {
        one.names.retain(|name| names.is_empty() || names.contains(name));
    }
    all.retain(|one| !one.names.is_empty());
    Ok(all)
}
