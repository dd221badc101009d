//! A world for one seed: a device, a pool, owners, and everybody who plugs something in.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lowtide_device::{Bytes, Device, HostOptions};
use lowtide_pool::{PoolSnapshot, Scope};
use lowtide_release::{
    Allocator, Closed, GateState, Gauge, Hook, HookPoint, LedgerKind, Mode, Registration, Releaser,
    Setting,
};

use crate::clock::{Hours, Time};
use crate::deeds::{Deed, Doer, Props};
use crate::gauge::{Moody, Temper};
use crate::journal::Journal;
use crate::memory::{Blocks, Memory, Shelf, chunk_bytes};
use crate::owners::Registry;
use crate::plugs::{Fraction, Framework};
use lowtide_testing::Dice;
use lowtide_testing::refusing::{Faults, device_over};

pub(crate) const BUDGET: Bytes = Bytes::mib(64);

/// Who is asked what is in use.
pub(crate) enum Asked {
    Nobody,
    /// The device itself, faults and all.
    Device,
    Gauge(Arc<Moody>),
}

pub(crate) struct World {
    pub(crate) asked: Asked,
    pub(crate) faults: Arc<Faults>,
    pub(crate) props: Arc<Props>,
    pub(crate) releaser: Releaser,
    pub(crate) floor: Option<u64>,
    pub(crate) blocks: Blocks,
    pub(crate) owners: Registry,
    /// What the world itself has in use.
    hands: Vec<Memory>,
    pub(crate) settings: Vec<Arc<Fraction>>,
    pub(crate) frameworks: Vec<Arc<Framework>>,
    /// What is on record beside allocators, by kind.
    pub(crate) accounts: Vec<(LedgerKind, Shelf)>,
    pub(crate) hooks: Vec<(HookPoint, Arc<Doer>)>,
    shelves: Vec<Shelf>,
    plugged: Vec<Registration>,
    /// Somebody else has the gate closed.
    closed: Option<Closed>,
}

/// How everything is at one moment.
pub(crate) struct Facts {
    pub(crate) things: Things,
    /// Apart, because work may end while a release waits.
    pub(crate) gate: GateState,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Things {
    pub(crate) in_use: u64,
    pub(crate) pool: PoolSnapshot,
    pub(crate) owners: (Vec<bool>, Vec<bool>),
    pub(crate) settings: Vec<(u32, u32)>,
    /// How often each hook was called.
    pub(crate) hooks: Vec<usize>,
}

impl World {
    pub(crate) fn new(dice: &mut Dice) -> World {
        let options = HostOptions { budget: Some(BUDGET), small_pages: true };
        let (real, time) = (Device::host(options).unwrap(), Time::default());
        let faults = Arc::new(Faults::default());
        let device = device_over(&real, &faults);
        let journal = Arc::new(Journal::new(&real, &time));
        let hours = Arc::new(Hours::new(&time, &journal));
        let (asked, releaser) = releaser(dice, &device, &journal, &time, &hours);
        let gate = releaser.gate().clone();
        journal.gate.set(gate).expect("a world has one releaser");
        let props = Arc::new(Props {
            journal,
            clock: hours,
            device: device.clone(),
            releaser: Mutex::new(Some(releaser.clone())),
            in_release: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let floor = match &asked {
            Asked::Device => Some(0),
            Asked::Nobody => None,
            Asked::Gauge(_) => dice.pick(&[None, Some(0), Some(3 << 20)]),
        };
        if let Some(floor) = floor {
            releaser.set_floor(Bytes(floor));
        }
        releaser.set_disposable(dice.one_in(2));
        let (blocks, owners) = (Blocks::new(&device, dice), Registry::new(releaser.owners(), dice));
        releaser.add_pool(&blocks.pool);
        let mut world = World {
            asked,
            faults,
            props,
            releaser,
            floor,
            blocks,
            owners,
            hands: Vec::new(),
            settings: Vec::new(),
            frameworks: Vec::new(),
            accounts: Vec::new(),
            hooks: Vec::new(),
            shelves: Vec::new(),
            plugged: Vec::new(),
            closed: None,
        };
        world.plug(dice);
        world.grow(dice);
        if dice.one_in(16) {
            world.blocks.pool.sleep(Scope::Whole).unwrap();
        }
        world
    }

    fn plug(&mut self, dice: &mut Dice) {
        for number in 0..dice.roll(6) {
            let doer = Arc::new(self.doer(format!("hook{number}"), dice));
            let (place, same) = (dice.pick(&HookPoint::ALL), Arc::clone(&doer));
            self.hooks.push((place, Arc::clone(&doer)));
            let hook = Hook::new(doer.name.clone(), move |_| same.act());
            let bytes = Bytes(dice.roll(1 << 30));
            let hook = if dice.one_in(3) { hook.expecting(move || Some(bytes)) } else { hook };
            let limit = Duration::from_millis(dice.pick(&[2, 20_000, 20_000, 20_000]));
            let hook = hook.limit(limit);
            self.plugged.push(self.releaser.add_hook(place, hook));
        }
        let deeds =
            [Deed::Nothing, Deed::Nothing, Deed::Nothing, Deed::Fail, Deed::Panic, Deed::Hang];
        for number in 0..dice.roll(3) {
            let rolled = std::array::from_fn(|_| dice.pick(&deeds));
            let setting = Arc::new(Fraction::new(format!("setting{number}"), rolled, &self.props));
            self.plugged.push(self.releaser.add_setting(setting.clone() as Arc<dyn Setting>));
            self.settings.push(setting);
        }
        if dice.one_in(4) {
            let trimmer = self.doer("framework".to_owned(), dice);
            // An allocator of its own: blocks of the pool are counted there.
            trimmer.shelf.lock().unwrap().retain(|memory| matches!(memory, Memory::Chunk(_)));
            let device = Some(&self.props.device).filter(|_| dice.one_in(2));
            let live = device.and_then(|device| device.create(Bytes::mib(2)).ok());
            let cannot = dice.pick(&[None, None, None, Some(Deed::Fail), Some(Deed::Panic)]);
            let framework = Arc::new(Framework::new(live, trimmer, cannot, &self.props));
            let allocator = framework.clone() as Arc<dyn Allocator>;
            self.plugged.push(self.releaser.add_allocator(allocator));
            self.frameworks.push(framework);
        }
        for kind in [LedgerKind::Graphs, LedgerKind::Libraries] {
            if dice.one_in(3) {
                let shelf = self.shelf(dice);
                let on_record = Arc::clone(&shelf);
                let account = move || chunk_bytes(&on_record);
                self.plugged.push(self.releaser.add_account(kind, "somebody", account));
                self.accounts.push((kind, shelf));
            }
        }
    }

    /// Somebody with something to give back, perhaps.
    pub(crate) fn doer(&mut self, name: String, dice: &mut Dice) -> Doer {
        let shelf = self.shelf(dice);
        Doer::new(name, dice, shelf, &self.props)
    }

    fn shelf(&mut self, dice: &mut Dice) -> Shelf {
        let shelf = Shelf::default();
        if dice.one_in(3) {
            shelf.lock().unwrap().extend(self.blocks.take(dice));
        }
        self.shelves.push(Arc::clone(&shelf));
        shelf
    }

    /// Owners get what they have not, work takes memory, and leaves some of it cached.
    pub(crate) fn grow(&mut self, dice: &mut Dice) {
        self.owners.fill(dice, &mut self.blocks, &self.props);
        for _ in 0..dice.roll(3) {
            self.hands.extend(self.blocks.take(dice));
        }
        if !self.hands.is_empty() && dice.one_in(2) {
            drop(self.hands.swap_remove(dice.index(self.hands.len())));
        }
    }

    /// Perhaps work runs, for so long, or somebody else has the gate closed. Whether that keeps a
    /// release that waits up to `patience` from beginning.
    pub(crate) fn crowd_the_gate(&mut self, dice: &mut Dice, patience: Duration) -> bool {
        match dice.roll(10) {
            0 => {
                let pass = self.releaser.gate().enter().into_owned();
                let lasts = Duration::from_millis(1 + dice.roll(120_000));
                self.props.clock.work(pass, lasts);
                lasts > patience
            }
            1 => {
                self.closed = self.releaser.gate().try_close(Mode::InPlace).ok();
                true
            }
            _ => false,
        }
    }

    pub(crate) fn facts(&self) -> Facts {
        let things = Things {
            in_use: self.props.journal.in_use(),
            pool: self.blocks.pool.snapshot(),
            owners: self.owners.state(),
            settings: self.settings.iter().map(|setting| setting.counts()).collect(),
            hooks: self.hooks.iter().map(|(_, doer)| doer.calls()).collect(),
        };
        Facts { things, gate: self.releaser.gate().state() }
    }

    /// After a release: what was left behind ends, and work goes on.
    pub(crate) fn go_on(&mut self) {
        self.props.clock.finish();
        self.closed = None;
        let GateState { open, active, parked, waiting } = self.releaser.gate().state();
        assert_eq!((open, active, parked, waiting), (true, 0, 0, 0), "the gate is as it was");
        for setting in &self.settings {
            let (lowered, restored) = setting.counts();
            assert_eq!(lowered, restored, "a setting comes back, always");
        }
        self.blocks.check();
    }

    /// Between two releases.
    pub(crate) fn live_on(&mut self, dice: &mut Dice) {
        if dice.one_in(2) {
            self.owners.let_one_go(dice);
        }
        if dice.one_in(3) {
            // Others may have taken the room; then it sleeps on.
            let _ = self.blocks.pool.wake(Scope::Whole);
            self.blocks.check();
        }
        self.grow(dice);
        if let Asked::Gauge(gauge) = &self.asked {
            gauge.catch_up();
        }
    }

    /// Everybody lets go, and the device has everything back. How many blocks came through a sleep.
    pub(crate) fn end(self) -> u64 {
        self.props.is_over.store(true, SeqCst);
        self.props.releaser.lock().unwrap().take();
        for shelf in &self.shelves {
            shelf.lock().unwrap().clear();
        }
        self.blocks.pool.wake(Scope::Whole).unwrap();
        self.blocks.check();
        self.owners.end();
        drop((self.hands, self.plugged, self.frameworks));
        self.blocks.pool.trim(Bytes::ZERO).unwrap();
        // What the driver refused to take back it is asked to take once more.
        drop(self.props.device.reserve(Bytes::mib(2)).unwrap());
        assert_eq!(self.props.device.leftovers(), 0);
        self.blocks.pool.check();
        assert_eq!(self.blocks.pool.counts().physical, Bytes::ZERO, "nobody has a block");
        assert_eq!(self.props.journal.in_use(), 0, "the device has everything back");
        self.blocks.survived.get()
    }
}

fn releaser(
    dice: &mut Dice,
    device: &Device,
    journal: &Arc<Journal>,
    time: &Time,
    hours: &Arc<Hours>,
) -> (Asked, Releaser) {
    match dice.roll(20) {
        0 => (Asked::Nobody, Releaser::without_device(hours.clone())),
        1..8 => {
            let gauge = Arc::new(Moody::new(Temper::roll(dice), device, journal, time));
            let same = gauge.clone() as Arc<dyn Gauge>;
            (Asked::Gauge(gauge), Releaser::with_gauge(Some(same), hours.clone()))
        }
        _ => (Asked::Device, Releaser::new(device, hours.clone())),
    }
}
