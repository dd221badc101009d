//! What anybody may write to the socket.

use lowtide_proto::{Answer, Ask, LINE_MOST, Request};
use lowtide_testing::Dice;
use lowtide_types::Bytes;

use crate::program::{Program, Route};
use crate::slept;

const SEED: u64 = 15;
const FRAMES: usize = 400;

/// Returns a line that is wrong in some way, or right.
fn frame(dice: &mut Dice) -> Vec<u8> {
    let asks = [Ask::Status, Ask::Wake, Ask::Release { to: Some(Bytes(u64::MAX)) }];
    let mut line = Request::new(dice.pick(&asks)).to_line().into_bytes();
    match dice.roll(6) {
        0 => line = (0..dice.roll(200)).map(|_| dice.roll(256) as u8).collect(),
        1 => line.truncate(dice.index(line.len())),
        2 => line = line.repeat(1 + dice.index(4)),
        3 => line = vec![dice.roll(256) as u8; LINE_MOST - 2 + dice.index(5)],
        4 => line = b"[".repeat(dice.index(LINE_MOST)),
        _ => {
            for _ in 0..=dice.roll(3) {
                let at = dice.index(line.len());
                line[at] = dice.roll(256) as u8;
            }
        }
    }
    line
}

#[test]
fn random_frames_are_answered_and_change_nothing() {
    println!("seed {SEED}");
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304; write 0 5");
    let mut dice = Dice::new(SEED);
    for number in 0..FRAMES {
        let frame = frame(&mut dice);
        let answer = program.say(&frame);
        if !answer.is_empty() {
            let answer = serde_json::from_str::<Answer>(&answer);
            assert!(answer.is_ok(), "frame {number}: {:?}", String::from_utf8_lossy(&frame));
        }
    }
    assert!(!program.status().is_asleep);
    slept(&program);
    program.does("check 0");
}
