//! What is shown: an answer, a cut, and where there is no answer what can be told without one.

use lowtide_device::processes;
use lowtide_proto::Status;
use lowtide_proto::share::Queue;
use lowtide_types::{Bytes, kernel_text};
use serde_json::{Value, json};

use super::asking::Way;
use super::python;
use super::target::Target;
use crate::commands::queue;
use crate::program::ending::Ending;
use crate::text::page::{self, Page};

/// Parts of the names of libraries that use a GPU.
const LIBRARIES: &str =
    "libcuda.so libcudart libcublas libcudnn libnccl libtorch_cuda onnxruntime libllama libggml";

/// Shows an answer.
pub(super) fn answer(
    target: &Target,
    (name, words): Way,
    mut answer: Value,
    json: bool,
) -> anyhow::Result<Ending> {
    if json {
        answer["way"] = name.into();
        print_json(target, answer)?;
        return Ok(Ending::Proved);
    }
    let mut page = Page::default();
    page.title(&format!("process {}", target.pid), &target.command);
    let text = |key: &str| answer[key].as_str().unwrap_or_default();
    let own = if answer["installation"] == "own" { ", with its own lowtide" } else { "" };
    page.line(&format!(
        "  Python {}, {words}{own}; its interpreter stood still for {:.0} ms",
        text("python"),
        answer["longest_stop_s"].as_f64().unwrap_or_default() * 1e3
    ));
    for line in text("text").lines() {
        page.line(line);
    }
    if let Some(name) = answer["name"].as_str() {
        page.line(&format!("  → lowtide why {} --cut 1 --of {name}", target.pid));
    }
    page.print()?;
    Ok(Ending::Proved)
}

/// Prints an answer as JSON, with the process.
fn print_json(target: &Target, mut answer: Value) -> anyhow::Result<()> {
    answer["pid"] = target.pid.into();
    answer["command"] = target.command.clone().into();
    page::print_json(&answer)?;
    Ok(())
}

/// Shows what a cut has done.
pub(super) fn cut(target: &Target, answer: Value, json: bool) -> anyhow::Result<Ending> {
    let freed = Bytes(answer["freed_bytes"].as_u64().unwrap_or_default());
    if json {
        print_json(target, answer)?;
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
        let devices: Vec<Value> = devices.iter().map(device).collect();
        let answer = json!({
            "answer": "ledger",
            "reason": reason,
            "ledgers": ledgers,
            "devices": devices,
            "libraries": libraries,
            "queue": queue,
        });
        print_json(target, answer)?;
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
    let paths = python::mapped(&maps).into_iter().map(|one| one.path.display().to_string());
    let is_known = |path: &String| LIBRARIES.split(' ').any(|part| path.contains(part));
    // Each once: the parts of one follow each other.
    let mut paths: Vec<String> = paths.filter(is_known).collect();
    paths.dedup();
    paths
}
