//! The child process that `doctor` measures the floor with.
//!
//! It holds a bare context until it is told to go on. Then it tries each operation once, so that
//! what `doctor` reports as working has been seen to work. It writes one JSON line per step.

use std::io::{self, BufRead, Write};

use anyhow::ensure;
use lowtide_device::digest::Keys;
use lowtide_device::{Bytes, Device, DeviceId, end_with_parent};

use crate::commands::floor::ChildLine;
use crate::program::ending::Ending;

pub(crate) fn run(id: DeviceId, parent: Option<u32>) -> anyhow::Result<Ending> {
    parent.map_or(Ok(()), end_with_parent)?;
    let device = match Device::open(id) {
        Ok(device) => device,
        Err(error) => {
            say(&ChildLine::Failed { reason: error.to_string() })?;
            return Ok(Ending::Proved);
        }
    };
    say(&ChildLine::Ready)?;
    io::stdin().lock().read_line(&mut String::new())?;
    let failure = trial(&device).err().map(|error| format!("{error:#}"));
    say(&ChildLine::Tried { failure })?;
    Ok(Ending::Proved)
}

fn say(line: &ChildLine) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(line)?)?;
    out.flush()?;
    Ok(())
}

// Reserves, creates, maps, fills, digests, and copies one page out and back.
fn trial(device: &Device) -> anyhow::Result<()> {
    let (start, page) = (Bytes::ZERO, device.info().page);
    let reservation = device.reserve(page)?;
    reservation.map(start, device.create(page)?)?;
    reservation.open(start, page)?;
    let (backup, stream, keys) =
        (device.host_memory(page)?, device.stream()?, Keys::of_this_process());
    stream.fill((&reservation, start), 0xa5, page)?;
    let before = stream.digest((&reservation, start), page, keys)?.wait()?;
    stream.copy_out((&reservation, start), (&backup, start), page)?;
    stream.fill((&reservation, start), 0, page)?;
    stream.copy_in((&backup, start), (&reservation, start), page)?;
    let after = stream.digest((&reservation, start), page, keys)?.wait()?;
    ensure!(before == after, "a page changed on its way to the host and back");
    let expected = keys.digest(&vec![0xa5; page.as_usize()]);
    ensure!(before == [expected], "the device and the host compute different digests of a page");
    Ok(())
}
