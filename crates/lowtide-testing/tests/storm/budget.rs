//! The host memory that a child believes the machine has: a number that shrinks and grows.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lowtide_device::headroom;
use lowtide_testing::Dice;

/// What always stays with the machine, in MiB: lowtide grants nothing of it.
const MARGIN_MIB: u64 = 256;
/// More than a world ever needs, in MiB.
const PLENTY_MIB: u64 = 4096;

static FILE: OnceLock<PathBuf> = OnceLock::new();

/// Has lowtide read the machine's free memory from a file of the storm's own.
pub(crate) fn pretend(folder: &Path) -> io::Result<()> {
    let folder = folder.join("machine");
    let file = folder.join("proc/meminfo");
    fs::create_dir_all(folder.join("proc"))?;
    write(&file, PLENTY_MIB)?;
    headroom::pretend(&folder);
    FILE.get_or_init(|| file);
    Ok(())
}

/// Shrinks or grows the free memory. Returns it, without the margin, in MiB.
pub(crate) fn roll(dice: &mut Dice) -> u64 {
    let free_mib = dice.pick(&[0, 4, 12, 40, 100, PLENTY_MIB]);
    set(free_mib);
    free_mib
}

/// Makes all memory free that a world could need.
pub(crate) fn restore() {
    set(PLENTY_MIB);
}

fn set(free_mib: u64) {
    if let Some(file) = FILE.get()
        && let Err(error) = write(file, MARGIN_MIB + free_mib)
    {
        crate::trail::fail(format!("{}: {error}", file.display()));
    }
}

/// Replaces the file as a whole, so that no reader sees half of it.
fn write(file: &Path, free_mib: u64) -> io::Result<()> {
    static WRITING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _writing = crate::world::lock(&WRITING);
    let new = file.with_extension("new");
    let kib = free_mib * 1024;
    fs::write(&new, format!("MemTotal: 8388608 kB\nMemAvailable: {kib} kB\n"))?;
    fs::rename(new, file)
}
