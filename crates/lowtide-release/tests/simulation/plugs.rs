//! What is plugged into a releaser: rungs, settings and allocators of other people.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use lowtide_device::{Bytes, Chunk};
use lowtide_release::{
    Allocator, AllocatorCounts, Climb, Climbed, Expectation, Failure, Inventory, LedgerKind,
    LedgerLine, Restore, Rung, RungName, Setting,
};

use crate::deeds::{Deed, Doer, Props};
use crate::memory::{Shelf, chunk_bytes};
use lowtide_testing::Dice;

/// A rung of somebody's own.
pub(crate) struct Own {
    name: String,
    expects: Option<Expectation>,
    /// One does it all; of two, each is on its own.
    parts: Vec<Doer>,
}

impl Own {
    pub(crate) fn new(name: &str, expects: Option<Expectation>, parts: Vec<Doer>) -> Own {
        Own { name: name.to_owned(), expects, parts }
    }

    /// What it says beforehand; `None` is a panic.
    pub(crate) fn roll_expectation(dice: &mut Dice) -> Option<Expectation> {
        match dice.roll(8) {
            0 => None,
            1 => Some(Expectation::Skip("not today".to_owned())),
            2 => Some(Expectation::Bytes(Some(Bytes(dice.roll(1 << 40))))),
            _ => Some(Expectation::Bytes(None)),
        }
    }
}

impl Rung for Own {
    fn name(&self) -> RungName {
        self.name.as_str().into()
    }

    fn expect(&self, _: &Inventory) -> Expectation {
        let panic = || resume_unwind(Box::new(format!("{} cannot tell", self.name)));
        self.expects.clone().unwrap_or_else(panic)
    }

    fn climb(&self, _: &Inventory, _: &Climb) -> Result<Climbed, Failure> {
        let mut climbed = Climbed::default();
        match self.parts.as_slice() {
            [one] => climbed.touched = one.act()?,
            parts => parts.iter().for_each(|part| climbed.attempt(&part.name, || part.act())),
        }
        Ok(climbed)
    }
}

/// A setting, how often it was lowered, and how often somebody put it back.
pub(crate) struct Fraction {
    name: String,
    lower: Deed,
    reset: Deed,
    restore: Deed,
    counts: Arc<(AtomicU32, AtomicU32)>,
    props: Arc<Props>,
}

impl Fraction {
    pub(crate) fn new(name: String, deeds: [Deed; 3], props: &Arc<Props>) -> Fraction {
        let [lower, reset, restore] = deeds;
        Fraction { name, lower, reset, restore, counts: Arc::default(), props: Arc::clone(props) }
    }

    /// How often it was lowered, and put back.
    pub(crate) fn counts(&self) -> (u32, u32) {
        (self.counts.0.load(SeqCst), self.counts.1.load(SeqCst))
    }
}

impl Setting for Fraction {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn lower(&self) -> Result<Restore, Failure> {
        self.props.act(&self.name, self.lower, &Shelf::default())?;
        self.counts.0.fetch_add(1, SeqCst);
        let (name, deed, props) = (self.name.clone(), self.restore, Arc::clone(&self.props));
        let counts = Arc::clone(&self.counts);
        Ok(Box::new(move || {
            counts.1.fetch_add(1, SeqCst);
            props.act(&name, deed, &Shelf::default()).map(drop)
        }))
    }

    fn reset_statistics(&self) -> Result<(), Failure> {
        self.props.act(&self.name, self.reset, &Shelf::default()).map(drop)
    }
}

/// A framework's allocator. What it says that it gave back is not true.
pub(crate) struct Framework {
    live: Mutex<Option<Chunk>>,
    trimmer: Doer,
    /// What it says when it is asked why it would do nothing.
    cannot: Option<Deed>,
    props: Arc<Props>,
}

impl Framework {
    pub(crate) fn new(
        live: Option<Chunk>,
        trimmer: Doer,
        cannot: Option<Deed>,
        props: &Arc<Props>,
    ) -> Framework {
        Framework { live: Mutex::new(live), trimmer, cannot, props: Arc::clone(props) }
    }

    pub(crate) fn reserved(&self) -> Bytes {
        self.parts().into_iter().sum()
    }

    fn parts(&self) -> [Bytes; 2] {
        let live = self.live.lock().unwrap().as_ref().map_or(Bytes::ZERO, Chunk::size);
        [live, chunk_bytes(&self.trimmer.shelf)]
    }
}

impl Allocator for Framework {
    fn name(&self) -> String {
        self.trimmer.name.clone()
    }

    fn counts(&self) -> AllocatorCounts {
        let [allocated, cached] = self.parts();
        AllocatorCounts { allocated, reserved: allocated + cached }
    }

    fn lines(&self) -> Vec<LedgerLine> {
        let line = |(kind, bytes)| LedgerLine { kind, name: self.name(), bytes };
        [LedgerKind::Live, LedgerKind::Cached].into_iter().zip(self.parts()).map(line).collect()
    }

    fn why_not_trim(&self) -> Option<String> {
        let asked = self.props.act(&self.trimmer.name, self.cannot?, &Shelf::default());
        asked.err().map(|failure| failure.to_string())
    }

    fn trim(&self) -> Result<Bytes, Failure> {
        self.trimmer.act()?;
        let cached = std::mem::take(&mut *self.trimmer.shelf.lock().unwrap());
        Ok(Bytes::gib(cached.len() as u64))
    }
}
