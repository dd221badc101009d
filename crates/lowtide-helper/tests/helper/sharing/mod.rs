//! The arbiter's policy in a simulated machine: by seed, with a clock of its own.

mod acts;
mod program;
mod rules;
mod sockets;
mod world;

use lowtide_helper::share::Rule;
use lowtide_proto::share::Priority;

use self::world::{Plot, Summary, World};

const EVENTS: u64 = 100_000;

fn plot(seed: u64) -> Plot {
    Plot {
        devices: 1 + (seed % 3) as usize,
        programs: 5 + (seed % 5) as usize,
        is_unfriendly: !seed.is_multiple_of(4),
        stubborn: if seed.is_multiple_of(4) { 5 } else { 300 },
        crowd: &[],
        has_families: false,
        crowd_gib: 0,
    }
}

fn crowd(crowd_gib: i64, crowd: &'static [Priority]) -> Plot {
    let programs = crowd.len();
    let stubborn = if crowd_gib > 70 { 5 } else { 200 };
    let has_families = false;
    Plot { devices: 1, programs, is_unfriendly: false, stubborn, crowd, has_families, crowd_gib }
}

const CLASSES: &[Priority] = &[Priority::Interactive, Priority::Interactive, Priority::Batch];
const EQUALS: &[Priority] = &[Priority::Normal; 3];
const PAIR: &[Priority] = &[Priority::Normal; 2];

fn run(seed: u64, plot: Plot, without: Option<Rule>) -> Result<Summary, String> {
    World::new(seed, plot, without).run(EVENTS)
}

#[test]
fn nobody_is_promised_too_much_or_waits_too_long_and_little_time_goes_into_moving() {
    let seeds = lowtide_testing::share(0..40);
    let least = 50 * (seeds.end - seeds.start);
    let mut served = 0;
    for seed in seeds {
        let summary =
            run(seed, plot(seed), None).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        eprintln!("seed {seed}: {summary:?}");
        served += summary.served;
    }
    assert!(served >= least, "{served} calls were served");
}

fn families(seed: u64) -> Plot {
    Plot { has_families: true, programs: 6 + (seed % 5) as usize, ..plot(seed) }
}

#[test]
fn processes_of_one_run_go_together_or_stay_on_several_devices_and_nobody_waits_for_ever() {
    let seeds = lowtide_testing::share(0..20);
    let least = 50 * (seeds.end - seeds.start);
    let mut served = 0;
    for seed in seeds {
        let summary =
            run(seed, families(seed), None).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        eprintln!("seed {seed}: {summary:?}");
        served += summary.served;
    }
    assert!(served >= least, "{served} calls were served");
}

#[test]
fn programs_of_all_classes_that_always_work_take_turns() {
    for (gib, classes) in [(75, CLASSES), (75, EQUALS), (75, PAIR), (60, PAIR)] {
        let summary = run(1, crowd(gib, classes), None).unwrap_or_else(|why| panic!("{why}"));
        eprintln!("{summary:?}");
        assert!(summary.forced > 20, "{summary:?}");
    }
}

#[test]
fn without_any_of_its_rules_the_policy_fails() {
    let rules = [
        (Rule::WaitingIsOutside, crowd(60, PAIR)),
        (Rule::WholeNeeds, plot(1)),
        (Rule::Residence, crowd(75, EQUALS)),
        (Rule::Aging, crowd(75, CLASSES)),
        (Rule::Families, families(4)),
    ];
    for (rule, plot) in rules {
        let failure = (0..12).find_map(|seed| Some((seed, run(seed, plot, Some(rule)).err()?)));
        eprintln!("{rule:?}: {failure:?}");
        assert!(failure.is_some(), "nobody misses {rule:?}");
    }
}
