//! What is shown: an answer, a cut, and where there is no answer what can be told without one.

use lowtide_device::processes;
use lowtide_proto::Status;
use lowtide_proto::share::Queue;
use lowtide_types::{Bytes, kernel_text};
use serde_json::{Value, json};

use super::asking::Way;
use super::python;
use super::target::Target;
use super::waiting::Answered;
use crate::commands::queue;
use crate::program::ending::Ending;
use crate::text::page::{self, Page};

/// Parts of the names of libraries that use a GPU.
const LIBRARIES: &str =
    "libcuda.so libcudart libcublas libcudnn libnccl libtorch_cuda onnxruntime libllama libggml";

/// Shows an answer.
pub(super) fn answer(
    target: &Target,
    way: Way,
    answered: &Answered,
    json: bool,
) -> anyhow::Result<Ending> {
    let Answered { version, answer } = answered;
    if json {
        let mut value = answer.clone();
        value["pid"] = target.pid.into();
        value["command"] = target.command.clone().into();
        value["way"] = json!(way);
        value["python"] = version.clone().into();
        page::print_json(&value)?;
        return Ok(Ending::Proved);
    }
    let mut page = Page::default();
    page.title(&format!("process {}", target.pid), &target.command);
    let own = if answer["installation"] == "own" { ", with its own lowtide" } else { "" };
    let stop_s = answer["longest_stop_s"].as_f64().unwrap_or_default();
    page.line(&format!(
        "  Python {version}, {}{own}; its interpreter stood still for {:.0} ms",
        way.text(),
        stop_s * 1e3
    ));
    for line in answer["text"].as_str().unwrap_or_default().lines() {
        page.line(line);
    }
    if let Some(name) = answer["name"].as_str() {
        page.line(&format!("  → lowtide why {} --cut 1 --of {name}", target.pid));
    }
    page.print()?;
    Ok(Ending::Proved)
}

/// Returns the question whether a long walk is meant.
pub(super) fn large(target: &Target, answer: &Value) -> String {
    format!(
        "process {} ({}) has about {} objects: it would stand still for about {:.0} s",
        target.pid,
        target.command,
        answer["objects"],
        answer["expected_s"].as_f64().unwrap_or_default().ceil()
    )
}

/// Returns the question whether a cut is meant.
pub(super) fn proposed(target: &Target, name: Option<&str>, answer: &Value) -> String {
    let lines = answer["lines"].as_array().map(Vec::as_slice).unwrap_or_default();
    let lines: Vec<&str> = lines.iter().filter_map(Value::as_str).collect();
    format!(
        "{} of {} in process {} ({}): {}",
        answer["cuts"].as_str().unwrap_or_default(),
        name.unwrap_or_default(),
        target.pid,
        target.command,
        lines.join("; ")
    )
}

/// Shows what a cut has done.
pub(super) fn cut(target: &Target, answer: &Value, json: bool) -> anyhow::Result<Ending> {
    let freed = Bytes(answer["freed_bytes"].as_u64().unwrap_or_default());
    if json {
        let mut value = answer.clone();
        value["pid"] = target.pid.into();
        page::print_json(&value)?;
    } else {
        let mut page = Page::default();
        let cuts = answer["cuts"].as_str().unwrap_or_default();
        page.line(&format!("{cuts} in process {} ({}): {freed} freed", target.pid, target.command));
        for (device, bytes) in in_use(target.pid) {
            page.line(&format!(
                "  in use by it on {device}: {bytes}, with the cache of its allocator"
            ));
        }
        page.print()?;
    }
    if freed > Bytes::ZERO {
        return Ok(Ending::Proved);
    }
    Ok(Ending::NotProved {
        what: "nothing was freed: something else holds the memory; ask again".to_owned(),
    })
}

/// Shows what can be told without an answer: all memory in use, who waits for room, and the libraries.
pub(super) fn instead(
    target: &Target,
    status: Option<&Status>,
    queue: Option<&Queue>,
    reason: String,
    json: bool,
) -> anyhow::Result<Ending> {
    let ledgers = status.map(|status| &status.ledgers[..]).unwrap_or_default();
    let (devices, libraries) = (in_use(target.pid), libraries(target.pid));
    if json {
        let device = |(device, bytes): &(String, Bytes)| json!({"device": device, "bytes": bytes});
        page::print_json(&json!({
            "answer": "ledger",
            "reason": reason,
            "pid": target.pid,
            "command": target.command,
            "ledgers": ledgers,
            "devices": devices.iter().map(device).collect::<Vec<_>>(),
            "libraries": libraries,
            "queue": queue,
        }))?;
    } else {
        let mut page = Page::default();
        page.title(&format!("process {}", target.pid), &target.command);
        for (device, bytes) in devices {
            page.row(&device, &format!("{bytes} in use by it"));
        }
        for ledger in ledgers {
            page.row("ledger", &format!("all memory in use on {}", ledger.device));
            for line in ledger.to_string().lines() {
                page.line(line);
            }
        }
        for library in libraries {
            page.row("loaded", &library);
        }
        if let Some(queue) = queue {
            queue::describe(&mut page, queue);
        }
        page.print()?;
    }
    Ok(Ending::NotProved { what: reason })
}

/// Returns the memory of a process on each GPU, as the driver reports it.
fn in_use(pid: u32) -> Vec<(String, Bytes)> {
    let Ok((devices, _problems)) = processes::gpus() else { return Vec::new() };
    let held = |device: &processes::DeviceProcesses| {
        let bytes = device.processes.iter().find(|one| one.pid == pid)?.held?;
        let name = device.id.map(|id| id.to_string()).or_else(|| device.uuid.clone());
        Some((name.unwrap_or_default(), bytes))
    };
    devices.iter().filter_map(held).collect()
}

/// Returns the libraries of a process that use a GPU.
fn libraries(pid: u32) -> Vec<String> {
    let maps = kernel_text(format!("/proc/{pid}/maps")).unwrap_or_default();
    let paths = python::files(&maps).into_iter().map(|(_, path)| path.display().to_string());
    paths.filter(|path| LIBRARIES.split(' ').any(|part| path.contains(part))).collect()
}
