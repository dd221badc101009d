//! What people's code does when a release calls it: what it should, too little, the wrong thing,
//! nothing for a long time.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lowtide_device::{Bytes, Device};
use lowtide_release::{Clock, Failure, Ladder, Releaser, Request, Touch, Verdict};

use crate::clock::Hours;
use crate::journal::Journal;
use crate::memory::{Memory, Shelf};
use lowtide_testing::Dice;

/// Longer than any limit.
const HANG: Duration = Duration::from_secs(11 * 60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    Nothing,
    /// Lets go of one thing.
    Free,
    /// Takes more.
    Grow,
    /// Takes its time, and is done within most limits.
    Dawdle,
    /// Asks for a release, from within one.
    Ask,
    Fail,
    FreeThenFail,
    Panic,
    FreeThenPanic,
    Hang,
    FreeThenHang,
}

impl Deed {
    pub(crate) fn roll(dice: &mut Dice) -> Deed {
        dice.pick(&[
            Deed::Nothing,
            Deed::Free,
            Deed::Free,
            Deed::Free,
            Deed::Free,
            Deed::Grow,
            Deed::Dawdle,
            Deed::Ask,
            Deed::Fail,
            Deed::FreeThenFail,
            Deed::Panic,
            Deed::FreeThenPanic,
            Deed::Hang,
            Deed::FreeThenHang,
        ])
    }

    fn frees(self) -> bool {
        use Deed::{Free, FreeThenFail, FreeThenHang, FreeThenPanic};
        matches!(self, Free | FreeThenFail | FreeThenPanic | FreeThenHang)
    }
}

/// What everybody's code has at hand.
pub(crate) struct Props {
    pub(crate) journal: Arc<Journal>,
    pub(crate) clock: Arc<Hours>,
    pub(crate) device: Device,
    /// For those who ask for a release. Taken out at the end: it has them.
    pub(crate) releaser: Mutex<Option<Releaser>>,
    /// Whether there is one under way.
    pub(crate) in_release: AtomicBool,
    /// The play is over: nobody fails any more.
    pub(crate) is_over: AtomicBool,
}

impl Props {
    pub(crate) fn act(&self, who: &str, deed: Deed, shelf: &Shelf) -> Result<Vec<Touch>, Failure> {
        if self.is_over.load(SeqCst) {
            return Ok(Vec::new());
        }
        let mut touched = Vec::new();
        if deed.frees() {
            let taken = shelf.lock().unwrap().pop();
            // Claims what it likes: only the device's number counts.
            touched.extend(taken.map(|_| Touch::sized(who, Bytes::gib(7))));
        }
        match deed {
            Deed::Nothing | Deed::Free => {}
            Deed::Grow => self.grow(shelf),
            Deed::Dawdle => self.clock.pause(Duration::from_millis(5)),
            Deed::Ask => self.ask_for_a_release(who),
            Deed::Hang | Deed::FreeThenHang => {
                self.journal.strike(who);
                self.clock.pause(HANG);
            }
            Deed::Fail | Deed::FreeThenFail => {
                self.journal.strike(who);
                return Err(format!("{who} was told to fail").into());
            }
            Deed::Panic | Deed::FreeThenPanic => self.panic(who),
        }
        Ok(touched)
    }

    // Past the hook that would print it: there are thousands, and they are meant.
    fn panic(&self, who: &str) {
        // A second one would end the program, and that is the language's rule and not ours.
        if !std::thread::panicking() {
            self.journal.strike(who);
            resume_unwind(Box::new(format!("{who} was told to panic")));
        }
    }

    fn grow(&self, shelf: &Shelf) {
        let mut shelf = shelf.lock().unwrap();
        if shelf.len() < 3 {
            shelf.extend(self.device.create(Bytes::mib(2)).ok().map(Memory::Chunk));
        }
    }

    fn ask_for_a_release(&self, who: &str) {
        let releaser = self.releaser.lock().unwrap().clone();
        let Some(releaser) = releaser.filter(|_| self.in_release.load(SeqCst)) else { return };
        let receipt = releaser.release(Request::new(who, Ladder::cache()));
        if (receipt.verdict, receipt.rungs.len()) != (Verdict::Busy, 0) {
            self.journal.notes().wrong.push(format!("{who} was given a release: {receipt}"));
        }
    }
}

/// Somebody with a shelf, who does one thing after another, over and over.
pub(crate) struct Doer {
    pub(crate) name: String,
    deeds: Vec<Deed>,
    done: AtomicUsize,
    pub(crate) shelf: Shelf,
    props: Arc<Props>,
}

impl Doer {
    pub(crate) fn new(name: String, dice: &mut Dice, shelf: Shelf, props: &Arc<Props>) -> Doer {
        let deeds = (0..=dice.roll(2)).map(|_| Deed::roll(dice)).collect();
        Doer { name, deeds, done: AtomicUsize::new(0), shelf, props: Arc::clone(props) }
    }

    /// How often it was called.
    pub(crate) fn calls(&self) -> usize {
        self.done.load(SeqCst)
    }

    pub(crate) fn act(&self) -> Result<Vec<Touch>, Failure> {
        let number = self.done.fetch_add(1, SeqCst);
        self.props.act(&self.name, self.deeds[number % self.deeds.len()], &self.shelf)
    }
}
