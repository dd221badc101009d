//! Several threads with one pool: some allocate and free while others put tags to sleep and wake them.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use lowtide_device::Bytes;
use lowtide_pool::{Error, Phase, Policy, Pool, Scope, SleepPolicy, Tag};

use crate::written::{STREAM, Written, check, check_whole, host, in_use, pool_on, wake_whole};
use lowtide_testing::{Dice, share};

#[test]
fn who_is_asked_to_go_on_trimming_may_put_the_same_tag_to_sleep() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let live = Written::new(&pool, Bytes::mib(6), Tag::default(), 1);
    let cached = pool.alloc(Bytes::mib(8), STREAM, Tag::default()).unwrap();
    pool.free(cached, STREAM).unwrap();
    let given_back = pool.trim_while(Bytes::ZERO, || {
        pool.sleep(Scope::Whole).unwrap();
        true
    });
    assert_eq!(given_back.unwrap(), Bytes::ZERO, "the sleep took all of it");
    assert_eq!(in_use(pool.device()), Bytes::ZERO);
    wake_whole(&pool, &[live]);
}

/// Blocks of one thread, which frees and takes them while others turn their tags.
struct Player<'a> {
    pool: &'a Pool,
    /// Held for reading by whoever touches bytes, for writing by whoever puts to sleep.
    touching: &'a RwLock<()>,
    tags: [Tag; 2],
    dice: Dice,
    /// With the tag's index, and whether its bytes were written.
    live: Vec<(Written, usize, bool)>,
    refused: usize,
}

impl Player<'_> {
    fn step(&mut self) {
        if self.live.len() < 5 && self.dice.roll(2) == 0 {
            self.alloc();
        } else if !self.live.is_empty() && self.dice.roll(2) == 0 {
            let index = self.dice.roll(self.live.len() as u64) as usize;
            let (block, ..) = self.live.swap_remove(index);
            self.pool.free(block.address, STREAM).unwrap();
        } else {
            self.touch();
        }
    }

    fn alloc(&mut self) {
        let most = if self.dice.roll(3) == 0 { 3 << 20 } else { 20 << 10 };
        let (size, tag) = (Bytes(1 + self.dice.roll(most)), self.dice.roll(2) as usize);
        match self.pool.alloc(size, STREAM, self.tags[tag]) {
            Ok(address) => {
                let seed = self.dice.roll(1 << 20);
                self.live.push((Written { address, size, seed }, tag, false));
            }
            Err(Error::Asleep { .. }) => {
                self.refused += 1;
                thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn touch(&mut self) {
        let _touching = self.touching.read().unwrap();
        for (block, tag, is_written) in &mut self.live {
            if self.pool.phase(self.tags[*tag]).unwrap() != Phase::Awake {
                continue;
            }
            if *is_written {
                block.assert_is_whole();
            } else {
                block.write();
            }
            *is_written = self.dice.roll(3) > 0;
            if !*is_written {
                block.seed += 1;
            }
        }
    }
}

/// Ends the game, however the test ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn threads_allocate_and_free_while_their_tags_turn() {
    const TURNS: u64 = 160;
    const STEPS: usize = 30;
    for (seed, wake_on_alloc) in [(20, false), (30, true)] {
        println!("seed {seed}");
        let pool = pool_on(&host(Bytes::mib(128)), Policy::default().wake_on_alloc(wake_on_alloc));
        let tags = ["one", "two"].map(|name| pool.tag(name, SleepPolicy::Offload).unwrap());
        let (touching, steps) = (RwLock::new(()), AtomicUsize::new(0));
        let is_over = AtomicBool::new(false);
        let play = |seed: u64| {
            let (dice, live) = (Dice(seed), Vec::new());
            let (pool, touching) = (&pool, &touching);
            let mut player = Player { pool, touching, tags, dice, live, refused: 0 };
            while !is_over.load(SeqCst) {
                player.step();
                steps.fetch_add(1, SeqCst);
            }
            (player.live, player.refused)
        };
        let (live, refused) = thread::scope(|scope| {
            let play = &play;
            let players: Vec<_> =
                (1..=3).map(|player| scope.spawn(move || play(seed + player))).collect();
            let let_them_play = || {
                let until = steps.load(SeqCst) + STEPS;
                let all_play = || players.iter().all(|player| !player.is_finished());
                while steps.load(SeqCst) < until && all_play() {
                    thread::yield_now();
                }
            };
            let (over, mut dice) = (Over(&is_over), Dice(seed));
            for _ in share(0..TURNS) {
                let scopes = [Scope::Whole, Scope::Tags(&tags[..1]), Scope::Tags(&tags[1..])];
                let scope = scopes[dice.roll(3) as usize];
                let nobody = touching.write().unwrap();
                pool.sleep(scope).unwrap();
                drop(nobody);
                let_them_play();
                pool.wake(scope).unwrap();
                let_them_play();
            }
            drop(over);
            let ended: Vec<_> = players.into_iter().map(|player| player.join().unwrap()).collect();
            let refused: usize = ended.iter().map(|(_, refused)| refused).sum();
            (ended.into_iter().flat_map(|(live, _)| live).collect::<Vec<_>>(), refused)
        });
        assert_eq!(refused > 0, !wake_on_alloc, "refused {refused} times");
        pool.wake(Scope::Whole).unwrap();
        check(&pool);
        assert_eq!(pool.counts().blocks, live.len() as u64);
        for (block, _, is_written) in live {
            if is_written {
                block.assert_is_whole();
            }
            pool.free(block.address, STREAM).unwrap();
        }
        pool.trim(Bytes::ZERO).unwrap();
        check(&pool);
        assert_eq!(in_use(pool.device()), Bytes::ZERO);
    }
}

#[test]
fn two_threads_turn_the_same_tags() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
    let cache = pool.tag("cache", SleepPolicy::Discard).unwrap();
    let blocks = [(Tag::default(), 1), (weights, 2)]
        .map(|(tag, seed)| Written::new(&pool, Bytes::mib(5), tag, seed));
    Written::new(&pool, Bytes::mib(3), cache, 3);
    let turn = |seed: u64| {
        println!("seed {seed}");
        let (mut dice, mut slept, mut woke) = (Dice(seed), 0, 0);
        for _ in 0..60 {
            let all = [Tag::default(), weights, cache];
            let scope = match dice.roll(3) {
                0 => Scope::Whole,
                _ => Scope::Tags(&all[dice.roll(3) as usize..]),
            };
            match dice.roll(2) {
                0 => slept += pool.sleep(scope).unwrap().tags,
                _ => woke += pool.wake(scope).unwrap().tags,
            }
        }
        (slept, woke)
    };
    let (one, two) = thread::scope(|scope| {
        let (one, two) = (scope.spawn(|| turn(40)), scope.spawn(|| turn(41)));
        (one.join().unwrap(), two.join().unwrap())
    });
    let woke = one.1 + two.1 + pool.wake(Scope::Whole).unwrap().tags;
    assert_eq!(one.0 + two.0, woke, "each sleep has its wake");
    // How often two threads undo each other's turns is up to the machine.
    assert!(woke > 0, "nothing slept");
    check_whole(&pool, &blocks);
}
