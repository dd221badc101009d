//! The same program with and without the agent: whatever it does with virtual memory, both give the same answers,
//! and one of them sleeps in between.

use lowtide_proto::Answer;
use lowtide_testing::Dice;

use crate::program::{Program, Route, World};
use crate::{MIB, sleep};

/// Blocks and handles of the program. Block 9 is a large reservation, in which some of the others are.
const SLOTS: u64 = 5;
const LARGE: u64 = 9;
const STEPS: u64 = 80;
const SEEDS: [u64; 2] = [1, 2];

/// Returns something that a program may do: memory that is made as it should be, or a call that may be wrong at its
/// time.
fn lines(dice: &mut Dice) -> Vec<String> {
    let (block, handle) = (dice.roll(SLOTS), dice.roll(SLOTS));
    let bytes = 2 * (1 + dice.roll(2)) * MIB;
    if dice.one_in(3) {
        return vec![
            format!("create {handle} {bytes} {}", dice.roll(2)),
            format!("inside {block} {LARGE} {} {bytes}", 2 * dice.roll(7) * MIB),
            format!("map {block} {handle}"),
            format!("grant {block} 3"),
            format!("write {block} {}", dice.roll(1000)),
        ];
    }
    vec![match dice.roll(16) {
        0 => format!("create {handle} {bytes}"),
        1 => format!("reserve {block} {bytes}"),
        2 => format!("inside {block} {LARGE} {} {bytes}", 2 * dice.roll(7) * MIB),
        3 | 4 => format!("map {block} {handle}"),
        5 => format!("grant {block} {}", dice.pick(&[3, 1, 0])),
        6 => format!("unmap {}", if dice.one_in(4) { LARGE } else { block }),
        7 | 8 => format!("uncreate {handle}"),
        9 => format!("retain {block} {handle}"),
        10 => format!("access {block}"),
        11 => format!("properties {handle}"),
        12 => format!("unreserve {block}"),
        13 => format!("range {block} 7"),
        14 => format!("attribute {block} 18"),
        _ => format!("write {block} {}", dice.roll(1000)),
    }]
}

fn both(pair: &mut [Program; 2], line: &str) -> [String; 2] {
    pair.each_mut().map(|program| program.text(line))
}

#[test]
fn virtual_memory_answers_the_same_with_and_without_the_agent() {
    for seed in SEEDS {
        let worlds = [World::new(), World::new()];
        let mut dice = Dice::new(seed);
        let mut pair = [
            worlds[0].start(Route::Dlsym),
            worlds[1].start_with(Route::Dlsym, &[("LOWTIDE_AGENT", "off")]),
        ];
        both(&mut pair, &format!("reserve {LARGE} {}", 16 * MIB));
        let (mut done, mut sleeps, mut right) = (Vec::new(), 0, 0);
        for _ in 0..STEPS {
            if dice.one_in(8) {
                sleeps += u32::from(matches!(sleep(&pair[0]), Answer::Slept { .. }));
            }
            for line in lines(&mut dice) {
                done.push(line.clone());
                let [with, without] = both(&mut pair, &line);
                assert_eq!(with, without, "seed {seed}: {line} after {done:#?}");
            }
            for block in 0..SLOTS {
                if dice.one_in(8) {
                    let line = format!("check {block}");
                    let [with, without] = both(&mut pair, &line);
                    assert_eq!(with, without, "seed {seed}: {line} after {done:#?}");
                    right += u32::from(with == "ok");
                }
            }
        }
        assert!(sleeps > 3, "seed {seed}: asleep {sleeps} times");
        assert!(right > 3, "seed {seed}: {right} blocks were right");
        assert!(pair[0].status().obstacles.is_empty(), "{:?}", pair[0].status());
    }
}
