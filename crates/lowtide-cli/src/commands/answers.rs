//! What an agent or the helper answered, in words, and how a command ends after it.

use anyhow::anyhow;
use lowtide_proto::helper::{DeviceChange, Resumed, StepTime, Suspended};
use lowtide_proto::{Answer, Ask};
use lowtide_types::{Bytes, Receipt, Verdict};
use serde::Serialize;

use crate::program::ending::Ending;
use crate::text::page::{self, Page};

/// An answer as JSON, with the time at which the question was asked.
#[derive(Serialize)]
struct Timed<'a> {
    at_s: f64,
    #[serde(flatten)]
    answer: &'a Answer,
}

/// Prints what the agent of a process answered to a question.
pub(super) fn of_agent(
    pid: u32,
    json: bool,
    (question, at_s): (Ask, f64),
    answer: Answer,
) -> anyhow::Result<Ending> {
    if json {
        page::print_json(&Timed { at_s, answer: &answer })?;
    }
    let mut page = Page::default();
    let end = match answer {
        Answer::Slept { receipts } | Answer::Released { receipts } => {
            add_receipts(&mut page, &receipts);
            match receipts.iter().find(|receipt| !receipt.verdict.is_proved()) {
                _ if question == Ask::Suspend => {
                    Ending::NotProved { what: "the program did not fall asleep".to_owned() }
                }
                Some(receipt) => ending(receipt.verdict),
                None => Ending::Proved,
            }
        }
        Answer::Suspended { receipts, suspended: done } => {
            add_receipts(&mut page, &receipts);
            suspended(&mut page, &done);
            ending(done.verdict)
        }
        Answer::Asleep => {
            let state = if question == Ask::Suspend { "suspended" } else { "asleep" };
            page.line(&format!("process {pid} is {state} already"));
            Ending::Proved
        }
        Answer::Woken(woken) => {
            page.line(&match woken.bytes {
                Bytes::ZERO => format!("process {pid} was awake"),
                bytes => format!(
                    "process {pid} is awake: {bytes} came back in {:.3} s, every page verified",
                    woken.took_s
                ),
            });
            Ending::Proved
        }
        Answer::Resumed(resumed) => {
            page.line(&if resumed.steps.is_empty() {
                format!("process {pid} was not suspended")
            } else {
                format!(
                    "process {pid} is on the device again after {:.3} s; its memory sleeps until its next use of the \
                     device",
                    resumed.took_s
                )
            });
            Ending::Proved
        }
        Answer::NoRoom(no_room) => Ending::NotProved { what: no_room.to_string() },
        Answer::Refused { reason } => Ending::NotProved { what: reason },
        other @ (Answer::Status(_) | Answer::Asked) => return Err(unexpected(&other)),
    };
    if !json {
        page.print()?;
    }
    Ok(end)
}

/// Returns the error that an answer is which fits no question.
pub(super) fn unexpected(answer: &Answer) -> anyhow::Error {
    anyhow!("the agent answered something else: {}", answer.to_line())
}

/// Returns how a command with this verdict ends.
pub(super) fn ending(verdict: Verdict) -> Ending {
    if verdict.is_proved() {
        Ending::Proved
    } else {
        Ending::NotProved { what: verdict.to_string() }
    }
}

fn add_receipts(page: &mut Page, receipts: &[Receipt]) {
    if receipts.is_empty() {
        page.line("the process has no memory that can sleep");
    }
    for receipt in receipts {
        for line in receipt.to_string().lines() {
            page.line(line);
        }
    }
}

/// Adds what the helper did to take a process off the device.
pub(super) fn suspended(page: &mut Page, suspended: &Suspended) {
    let target = suspended.target;
    if suspended.was_suspended {
        page.line(&format!("{target} was suspended already"));
    } else {
        let (verdict, times) = (suspended.verdict, times(&suspended.steps));
        page.line(&format!("{target}: {verdict}, off the device in {times}"));
    }
    changes(page, &suspended.devices);
    for need in &suspended.needs {
        page.line(&format!("  to come back: {} must be free on {}", need.bytes, need.uuid));
    }
    page.line(&format!("  → lowtide resume {}", target.pid));
}

/// Adds what the helper did to bring a process back.
pub(super) fn resumed(page: &mut Page, resumed: &Resumed) {
    let target = resumed.target;
    if resumed.was_running {
        return page.line(&format!("{target} was not suspended"));
    }
    let times = times(&resumed.steps);
    page.line(&format!("{target}: runs, back on the device in {times}"));
    changes(page, &resumed.devices);
}

fn times(steps: &[StepTime]) -> String {
    let total: f64 = steps.iter().map(|time| time.took_s).sum();
    let each = steps.iter().map(|time| format!("{} {:.3} s", time.step.as_str(), time.took_s));
    format!("{total:.3} s ({})", each.collect::<Vec<_>>().join(", "))
}

fn changes(page: &mut Page, devices: &[DeviceChange]) {
    let told = |bytes: Option<Bytes>| bytes.map_or("not told".to_owned(), |it| it.to_string());
    for device in devices {
        let (before, after) = (told(device.process_before), told(device.process_after));
        let (all_before, all_after) = (device.before.in_use(), device.after.in_use());
        page.line(&format!(
            "  {}: {before} → {after} by the process, {all_before} → {all_after} by all",
            device.uuid
        ));
    }
}
