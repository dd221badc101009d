//! Measures what a pass through an open gate costs, on this machine.
//!
//! `cargo run --release -p lowtide-release --example pass_cost`. A round enters and leaves the gate. For
//! comparison, a round of a mutex locks and unlocks it twice, which is what a gate behind a mutex
//! would do. Each figure is the median of several runs.

use std::hint::black_box;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Instant;

use lowtide_release::Gate;

const ROUNDS: u32 = 2_000_000;
const RUNS: usize = 7;

fn main() {
    let gate = Gate::new();
    let outer = gate.enter().into_owned();
    let counted = Arc::new(Mutex::new(0_usize));
    println!("ns per round             1 thread    2 threads    4 threads");
    row("enter, leave", &|| drop(black_box(gate.enter())));
    row("enter_awake, leave", &|| drop(black_box(gate.enter_awake(|| Ok::<(), ()>(())))));
    row("enter_within, leave", &|| drop(black_box(gate.enter_within(&outer))));
    row("checkpoint", &|| {
        black_box(gate.is_open());
    });
    row("into_owned, leave", &|| drop(black_box(gate.enter().into_owned())));
    row("mutex, locked twice", &|| {
        *black_box(&counted).lock().unwrap() += 1;
        *black_box(&counted).lock().unwrap() -= 1;
    });
}

fn row(name: &str, round: &(dyn Fn() + Sync)) {
    let [one, two, four] = [1, 2, 4].map(|threads| median_ns(threads, round));
    println!("{name:<22} {one:>10.1} {two:>12.1} {four:>12.1}");
}

/// Returns the time of one round on one thread, while so many threads do the same.
fn median_ns(threads: u32, round: &(dyn Fn() + Sync)) -> f64 {
    let mut runs = [(); RUNS].map(|()| {
        let ready = Barrier::new(threads as usize);
        let timed = || {
            ready.wait();
            let began = Instant::now();
            (0..ROUNDS / threads).for_each(|_| round());
            began.elapsed().as_secs_f64()
        };
        let took: f64 = thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(timed)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        took / f64::from(ROUNDS) * 1e9
    });
    runs.sort_by(f64::total_cmp);
    runs[RUNS / 2]
}
