//! Forks: in the child everything inherited refuses, whatever other threads were doing, and new things
//! work.
#![allow(unsafe_code, reason = "forks")]

use lowtide_device::{Bytes, Device, HostOptions};
use lowtide_pool::{Scope, SleepPolicy};
use lowtide_release::Verdict;
use lowtide_testing::suite::Target;

use crate::figures;
use crate::player::Player;
use crate::sabotage::{self, Sabotage};
use crate::trail::fail;
use crate::world::World;

/// A forked child that has not ended after so many seconds hangs.
const HANGS_AFTER_S: u32 = 200;

/// Forks, and waits until the child has found everything as it should be.
pub(super) fn fork(player: &mut Player) {
    // SAFETY: the child only calls what is tested here, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    match child {
        0 => {
            // SAFETY: ends the child by a signal if something in it waits for ever.
            unsafe { libc::alarm(HANGS_AFTER_S) };
            let wrong = check_in_child(player).err().unwrap_or(0);
            // SAFETY: ends the child without handlers of its parent's.
            unsafe { libc::_exit(wrong) };
        }
        -1 => figures::refusal("fork"),
        _ => wait(child),
    }
}

fn wait(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: waits for our own child.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } != child {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            fail(format!("a forked child cannot be waited for: {error}"));
        }
    }
    figures::with(|figures| figures.forks += 1);
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        let why = if signal == libc::SIGALRM { ", because it hangs" } else { "" };
        fail(format!("a forked child was ended by signal {signal}{why}"));
    }
    if libc::WEXITSTATUS(status) != 0 {
        let number = libc::WEXITSTATUS(status);
        fail(format!("a forked child found check {number} of forks.rs wrong"));
    }
}

/// Fails with the number of the check that is wrong.
fn check_in_child(player: &mut Player) -> Result<(), i32> {
    let holds = |number: i32, holds: bool| if holds { Ok(()) } else { Err(number) };
    holds(1, !sabotage::is(Sabotage::Fork))?;
    let World { device, .. } = &*player.world;
    let page = device.info().page;
    holds(2, device.create(page).is_err())?;
    holds(3, device.reserve(page).is_err())?;
    holds(4, device.stream().is_err())?;
    holds(5, device.synchronize().is_err())?;
    pools_refuse(player)?;
    let receipt = player.world.releaser.empty_cache();
    holds(20, receipt.verdict == Verdict::Failed)?;
    holds(21, player.world.releaser.gate().try_enter().is_none())?;
    if player.world.target == Target::Host {
        new_device_works(page).ok_or(6)?;
    }
    Ok(())
}

fn pools_refuse(player: &mut Player) -> Result<(), i32> {
    let holds = |number: i32, holds: bool| if holds { Ok(()) } else { Err(number) };
    for pool in player.world.pools() {
        holds(10, pool.block(Bytes(512)).is_err())?;
        holds(11, pool.sleep(Scope::Whole).is_err())?;
        holds(12, pool.wake(Scope::Whole).is_err())?;
        holds(13, pool.trim(Bytes::ZERO).is_err())?;
        holds(14, pool.tag("of a child", SleepPolicy::Offload).is_err())?;
    }
    for held in &player.held {
        holds(15, held.is_refused())?;
    }
    // Dropped as a program would: the parent's blocks stay.
    player.held.clear();
    Ok(())
}

fn new_device_works(page: Bytes) -> Option<()> {
    let options = HostOptions { budget: Some(page), small_pages: true };
    let device = Device::host(options).ok()?;
    let chunk = match device.create(page) {
        Ok(chunk) => chunk,
        Err(lowtide_device::Error::NoHostHeadroom { .. }) => return Some(()),
        Err(_) => return None,
    };
    let in_use = device.usage().ok()?.in_use();
    drop(chunk);
    (in_use == page && device.usage().ok()?.in_use() == Bytes::ZERO).then_some(())
}
