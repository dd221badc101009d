//! The rungs `suspend` and `exit`, in a release.

use std::time::Duration;

use lowtide::prelude::*;
use lowtide_device::HostOptions;
use lowtide_helper::rungs;
use lowtide_proto::helper::ProcessState;
use lowtide_release::{HookPoint, Ladder, Request};
use lowtide_types::{Bytes, RungName, RungOutcome};

use crate::world::{World, has_ended, state};

fn releaser() -> Releaser {
    let options = HostOptions { budget: Some(Bytes::mib(8)), small_pages: true };
    lowtide::releaser(&Device::host(options).expect("a device"))
}

#[test]
fn a_release_suspends_a_process_and_its_next_work_brings_it_back() {
    let world = World::new();
    let (helper, mut program, releaser) = (world.helper(), world.program(8), releaser());
    let hook = rungs::suspend("worker", world.helper(), program.target);
    let _registered = releaser.add_hook(HookPoint::Suspend, hook);
    let ladder = Ladder::of_names(&[RungName::Suspend]).expect("a rung");
    let receipt = releaser.release(Request::new("idle", ladder.clone()));
    let rung = receipt.rung("suspend").expect("it was climbed");
    assert_eq!(rung.outcome, RungOutcome::Done, "{rung}");
    assert!(rung.touched[0].what.contains("suspended"), "{rung}");
    assert_eq!(state(&helper, &program), ProcessState::Checkpointed);
    drop(releaser.enter().expect("the gate is open"));
    assert_eq!(state(&helper, &program), ProcessState::Running);
    program.is_right();
    program.kill_it();
    let receipt = releaser.release(Request::new("idle", ladder));
    let rung = receipt.rung("suspend").expect("it is named");
    assert!(
        matches!(&rung.outcome, RungOutcome::Skipped { why } if why.contains("has ended")),
        "{rung}"
    );
}

#[test]
fn a_release_ends_a_process_and_proves_it() {
    let (world, releaser) = (World::new(), releaser());
    let program = world.program(8);
    let hook = rungs::exit("worker", program.target, Duration::from_secs(60));
    let _registered = releaser.add_hook(HookPoint::Exit, hook);
    let ladder = Ladder::of_names(&[RungName::Exit]).expect("a rung");
    let receipt = releaser.release(Request::new("shutdown", ladder));
    let rung = receipt.rung("exit").expect("it was climbed");
    assert_eq!(rung.outcome, RungOutcome::Done, "{rung}");
    assert!(has_ended(program.target.pid));
}
