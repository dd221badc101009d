//! Work and closers on ordinary threads, many at once, by seed: the gate lets nothing through while
//! it is closed, and forgets nobody.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_release::{Clock, Gate, GateState, Mode, Pass, Step};
use lowtide_testing::Dice;

const WORKERS: u64 = 6;
const CLOSERS: u64 = 3;
const JOBS: u64 = 400;
const CLOSES: u64 = 150;

/// A test that takes longer than this waits for somebody who was forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);

const MODES: [Mode; 4] = [Mode::Abort, Mode::Retract, Mode::InPlace, Mode::Drain];

fn loiter(dice: &mut Dice) {
    match dice.roll(8) {
        0 => thread::sleep(Duration::from_micros(dice.roll(200))),
        1..4 => thread::yield_now(),
        _ => {}
    }
}

struct Wall(Instant);

impl Clock for Wall {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn pause(&self, duration: Duration) {
        thread::sleep(duration);
    }

    fn within(&self, _limit: Duration, _work: Box<dyn FnOnce() + Send>) -> bool {
        unreachable!("the gate gives nobody work")
    }
}

#[derive(Default)]
struct Ground {
    gate: Gate,
    /// Workers inside right now.
    inside: AtomicUsize,
    /// What happened, to be printed.
    ended: AtomicUsize,
    retracted: AtomicUsize,
    parked: AtomicUsize,
    closed: AtomicUsize,
    busy: AtomicUsize,
}

impl Ground {
    fn work(&self, dice: &mut Dice) {
        self.inside.fetch_add(1, Relaxed);
        loiter(dice);
        self.inside.fetch_sub(1, Relaxed);
    }

    fn pass(&self, dice: &mut Dice) -> Pass<'_> {
        match dice.roll(2) {
            0 => self.gate.enter(),
            _ => loop {
                match self.gate.try_enter() {
                    Some(pass) => break pass,
                    None => thread::yield_now(),
                }
            },
        }
    }

    /// One job: some pieces with a checkpoint after each. What is retracted is done again.
    fn job(&self, dice: &mut Dice) {
        'again: loop {
            let mut pass = self.pass(dice);
            for _ in 0..=dice.roll(4) {
                self.work(dice);
                match pass.checkpoint() {
                    Step::Go => {}
                    Step::Abort => {
                        self.ended.fetch_add(1, Relaxed);
                        return;
                    }
                    Step::Retract => {
                        self.retracted.fetch_add(1, Relaxed);
                        continue 'again;
                    }
                }
            }
            return;
        }
    }

    fn close(&self, clock: &Wall, dice: &mut Dice) {
        let mode = dice.pick(&MODES);
        let closed = match dice.roll(3) {
            0 => Ok(self.gate.close(mode)),
            1 => self.gate.try_close(mode),
            _ => self.gate.close_within(mode, clock, Duration::from_micros(dice.roll(2000))),
        };
        let Ok(closed) = closed else {
            self.busy.fetch_add(1, Relaxed);
            return;
        };
        let parked = closed.parked();
        for _ in 0..5 {
            assert_eq!(self.inside.load(Relaxed), 0, "somebody works behind a closed gate");
            assert!(self.gate.try_enter().is_none() && self.gate.try_close(mode).is_err());
            let GateState { open, active, .. } = self.gate.state();
            assert_eq!((open, active, closed.parked()), (false, 0, parked));
            loiter(dice);
        }
        assert!(closed.mode() == Mode::InPlace || parked == 0);
        self.closed.fetch_add(1, Relaxed);
        self.parked.fetch_add(parked, Relaxed);
    }

    fn play(&self, seed: u64) {
        let clock = Wall(Instant::now());
        thread::scope(|scope| {
            for worker in 0..WORKERS {
                let mut dice = Dice(seed * 1000 + worker);
                scope.spawn(move || (0..JOBS).for_each(|_| self.job(&mut dice)));
            }
            for closer in 0..CLOSERS {
                let (mut dice, clock) = (Dice(seed * 1000 + 500 + closer), &clock);
                scope.spawn(move || {
                    for _ in 0..CLOSES {
                        self.close(clock, &mut dice);
                        loiter(&mut dice);
                    }
                });
            }
        });
        let quiet = GateState { open: true, active: 0, parked: 0, waiting: 0 };
        assert_eq!(self.gate.state(), quiet);
        let happened = [&self.ended, &self.retracted, &self.parked, &self.closed, &self.busy]
            .map(|count| count.load(Relaxed));
        println!("ended, retracted, parked, closed, busy: {happened:?}");
        // Whether work and closers meet is up to the machine. Those who wait for the gate get it.
        assert!(self.closed.load(Relaxed) > 0, "{happened:?}");
    }
}

#[test]
fn nothing_works_behind_a_closed_gate_and_everybody_comes_through_in_the_end() {
    for seed in 1..=5 {
        println!("seed {seed}");
        let (done, finished) = mpsc::channel();
        let game = thread::spawn(move || {
            Ground::default().play(seed);
            done.send(()).unwrap();
        });
        // Where it ends without a word it panicked, and the thread tells.
        let ended = finished.recv_timeout(FORGOTTEN);
        let forgotten = ended == Err(mpsc::RecvTimeoutError::Timeout);
        assert!(!forgotten, "seed {seed}: somebody waits for ever");
        game.join().unwrap();
    }
}
