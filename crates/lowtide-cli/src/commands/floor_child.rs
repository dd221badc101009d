//! The disposable child that `doctor` measures the floor with.
//!
//! It holds a bare context until it is told to go on, then tries each operation once, so that what
//! `doctor` says works has been seen to work. One JSON line for each step.

use std::io::{self, BufRead, Write};

use anyhow::ensure;
use lowtide_device::digest::Keys;
use lowtide_device::{Bytes, Device, DeviceId};

use crate::floor::ChildLine;

pub(crate) fn run(id: DeviceId) -> anyhow::Result<()> {
    let device = match Device::open(id) {
        Ok(device) => device,
        Err(error) => return say(&ChildLine::Failed { reason: error.to_string() }),
    };
    say(&ChildLine::Ready)?;
    io::stdin().lock().read_line(&mut String::new())?;
    let failure = trial(&device).err().map(|error| format!("{error:#}"));
    say(&ChildLine::Tried { failure })
}

fn say(line: &ChildLine) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(line)?)?;
    out.flush()?;
    Ok(())
}

// One page, all the way: reserved, created, mapped, filled, digested, copied out and in.
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
    ensure!(before == after, "a page came back changed from the host");
    let expected = keys.digest(&vec![0xa5; page.as_usize()]);
    ensure!(before == [expected], "the device's digest of a page is not the host's");
    Ok(())
}
