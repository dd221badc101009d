//! Who has memory of the devices that programs share, and who waits for it: a part of `lowtide status`.

use lowtide_proto::helper::{Answer, Ask, DeviceBytes, HelperError};
use lowtide_proto::share::{Holder, Queue, Waiter};
use lowtide_types::Bytes;

use crate::commands::helper;
use crate::text::page::{self, Page};

/// Asks the helper for the queue; `None` where no program takes turns. Starts nothing.
pub(super) fn of_user() -> Option<Queue> {
    match ask() {
        Ok(queue) => queue.filter(|queue| queue.holders.iter().any(|one| one.state.is_some())),
        Err(error) => {
            if let Some(problem) = problem(&error) {
                page::complain(&problem);
            }
            None
        }
    }
}

/// Returns what is wrong where the helper did not answer; nothing where none is installed.
pub(super) fn problem(error: &anyhow::Error) -> Option<String> {
    let is_missing =
        matches!(error.downcast_ref::<HelperError>(), Some(HelperError::NotInstalled { .. }));
    (!is_missing).then(|| format!("nobody says who takes turns: {error:#}"))
}

/// Asks the helper for the queue; `None` where there is no helper. Starts nothing.
pub(super) fn ask() -> anyhow::Result<Option<Queue>> {
    let running = helper::of_user()?.running_unless(lowtide_helper::is_stopped)?;
    let Some(mut connection) = running else { return Ok(None) };
    match connection.ask(Ask::Queue)? {
        Answer::Queue(queue) => Ok(Some(queue)),
        answer => helper::refused(answer),
    }
}

/// Adds the queue to a page.
pub(super) fn describe(page: &mut Page, queue: &Queue) {
    page.title("turns", "programs that take turns (`lowtide run --share`)");
    for device in &queue.devices {
        let mut facts =
            vec![format!("{} for programs", device.capacity), format!("{} free", device.free)];
        if device.granted > Bytes::ZERO {
            facts.push(format!("{} promised", device.granted));
        }
        page.row(&device.uuid, &facts.join(", "));
    }
    for holder in &queue.holders {
        page.row("has", &holder_text(holder));
    }
    for (place, waiter) in (1..).zip(&queue.waiters) {
        page.row(&format!("waits {place}."), &waiter_text(waiter));
    }
    page.blank();
}

fn holder_text(holder: &Holder) -> String {
    let Holder { pid, command, .. } = holder;
    let mut facts = vec![format!("process {pid} ({command}): {}", amounts(&holder.devices))];
    if let (Some(state), Some(priority)) = (holder.state, holder.priority) {
        facts.extend([state.to_string(), priority.to_string()]);
    }
    facts.extend(holder.family.map(|run| format!("with all of run {run}")));
    facts.extend(holder.since_s.map(|since_s| format!("for {since_s:.1} s")));
    match (holder.idle_s, &holder.unmovable) {
        (_, Some(why)) => facts.push(format!("cannot give way: {why}")),
        (Some(idle_s), None) => facts.push(format!("idle for {idle_s:.1} s")),
        (None, None) if holder.protected_s > 0.0 => {
            facts.push(format!("its class does not move it for {:.1} s", holder.protected_s));
        }
        (None, None) => {}
    }
    facts.join(", ")
}

/// Returns what a program that takes turns is at, and since when.
pub(super) fn turn_text(holder: &Holder) -> Option<String> {
    let since = holder.since_s.map_or_else(String::new, |since_s| format!(" for {since_s:.0} s"));
    Some(format!("{}, {}{since}", holder.priority?, holder.state?))
}

fn waiter_text(waiter: &Waiter) -> String {
    let Waiter { pid, command, call, class, since_s, limit_s, why, .. } = waiter;
    let mut facts = vec![
        format!("process {pid} ({command}): {call}"),
        amounts(&waiter.devices),
        class.to_string(),
        format!("for {since_s:.1} s of at most {limit_s:.0} s"),
    ];
    facts.push(match (waiter.is_granted, waiter.expected_s) {
        (true, _) => "takes it now".to_owned(),
        (false, Some(expected_s)) => format!("in about {expected_s:.1} s"),
        (false, None) => "nobody can say for how long".to_owned(),
    });
    if !why.is_empty() {
        facts.push(format!("because {why}"));
    }
    facts.join(", ")
}

/// Returns the memory on each device, with the device where there are several.
fn amounts(devices: &[DeviceBytes]) -> String {
    match devices {
        [] => "nothing".to_owned(),
        [one] => one.bytes.to_string(),
        many => {
            let of = |one: &DeviceBytes| format!("{} on {}", one.bytes, one.uuid);
            many.iter().map(of).collect::<Vec<_>>().join(", ")
        }
    }
}
