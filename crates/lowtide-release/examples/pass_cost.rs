//! Measures what a pass through an open gate costs on one thread of this machine.
//!
//! `cargo run --release -p lowtide-release --example pass_cost`. A round enters and leaves the gate. For
//! comparison, a round of a mutex locks and unlocks it twice, which is what a gate behind a mutex
//! would do. Each figure is the fastest of many short runs, so that other programs count little.

use std::hint::black_box;
use std::sync::Mutex;
use std::time::Instant;

use lowtide_release::Gate;

const ROUNDS: u32 = 100_000;
const RUNS: u32 = 200;

fn main() {
    let gate = Gate::new();
    let mut outer = gate.enter();
    let counted = Mutex::new(0_usize);
    println!("{:<24} {:>12}", "round", "time");
    row("nothing", || ());
    row("enter, leave", || drop(black_box(gate.enter())));
    row("enter_awake, leave", || {
        let Ok::<_, ()>(pass) = gate.enter_awake(|| Ok(())) else { return };
        drop(black_box(pass));
    });
    row("into_owned, leave", || drop(black_box(gate.enter().into_owned())));
    row("mutex, locked twice", || {
        *black_box(&counted).lock().unwrap() += 1;
        *black_box(&counted).lock().unwrap() -= 1;
    });
    row("enter_within, leave", || drop(black_box(gate.enter_within(&outer))));
    row("checkpoint", || {
        let _step = black_box(outer.checkpoint());
    });
}

fn row(name: &str, mut round: impl FnMut()) {
    let mut run = || {
        let began = Instant::now();
        (0..ROUNDS).for_each(|_| round());
        began.elapsed().as_secs_f64() / f64::from(ROUNDS) * 1e9
    };
    let fastest = (0..RUNS).map(|_| run()).fold(f64::INFINITY, f64::min);
    println!("{name:<24} {fastest:>9.1} ns");
}
