//! The soak: programs that share memory, sleep and are suspended, while they, their helper, its disk, the clocks and
//! the driver fail at random. Every byte of every living program is checked.
//!
//! Some seconds in the ordinary tests, hours by `cargo xtask soak --minutes N`. The runtime folder is a small file
//! system that can be full, where a mount namespace can be made; elsewhere the helper's journal cannot be written.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};
use std::{env, thread};

use lowtide_proto::helper::Helper;
use lowtide_proto::{Answer, Ask, Request};
use lowtide_testing::double::REFUSALS;
use lowtide_testing::noise::Dice;
use lowtide_types::Bytes;

use crate::MIB;
use crate::program::{Program, Route, World, agent, helper};

/// What happens in a soak; in a long one each, but for the first two.
const KINDS: &str = "fault: call late by a jump, asked for nothing, alloc, free, free while open, virtual memory, \
    virtual memory back, write, check, capture, open, close, slept, woken, suspended, resumed, released, refused, \
    asked while it works, slept by itself, suspended by itself, fault: any killed, fault: exporter killed, \
    fault: importer killed, fault: killed during a suspend, fault: helper killed, fault: disk full, \
    fault: day forwards, fault: day back, fault: time since start forwards, fault: driver of a program, \
    fault: driver of the helper";
const PROGRAMS: usize = 4;
const BLOCKS: u64 = 7;
const CALLS: &str = "cuMemCreate cuMemMap cuMemSetAccess cuMemUnmap cuMemRelease cuMemcpyHtoDAsync_v2 \
    cuMemcpyDtoHAsync_v2 cuEventRecord";

/// A block of a program.
#[derive(Debug, Clone, Copy)]
struct Block {
    kind: Kind,
    bytes: u64,
    /// The memory that is there, of which others may have blocks, too.
    memory: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Virtual,
    /// Memory of another program.
    Open,
}

struct Soak {
    programs: Vec<(Program, BTreeMap<u64, Block>)>,
    /// The seed of the bytes of each memory.
    seeds: Vec<u64>,
    dice: Dice,
    counts: BTreeMap<&'static str, u64>,
    clock: File,
    /// Seconds by which the clock of the day, and the one since the start, are wrong.
    wrong: [i64; 2],
    has_small_disk: bool,
    world: World,
}

#[test]
fn programs_that_share_memory_keep_their_bytes_whatever_dies_or_fails() {
    let is_inside = env::var_os("SOAK_INSIDE").is_some();
    if !is_inside && works(Command::new("unshare").args(["-rm", "true"])) {
        let mut again = Command::new("unshare");
        again.arg("-rm").arg(env::current_exe().expect("this program"));
        again.args(["soak::", "--nocapture"]).env("SOAK_INSIDE", "1");
        let output = again.output().expect("it starts");
        print!("{}", String::from_utf8_lossy(&output.stdout));
        print!("{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}", output.status);
        return;
    }
    let text = |name: &str| env::var(name).ok();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let seed = text("SOAK_SEED").and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(u64::from(now.subsec_nanos()));
    let minutes = text("SOAK_MINUTES").and_then(|minutes| minutes.parse().ok()).unwrap_or(0.1);
    let mut soak = Soak::new(seed, is_inside);
    println!("seed {seed}, {minutes} minutes, a small disk: {}", soak.has_small_disk);
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < 60.0 * minutes {
        soak.step();
    }
    soak.check_all();
    println!("{:9}  programs keep their bytes; seed {seed}, {:?}", "count", began.elapsed());
    for (number, kind) in KINDS.split(", ").enumerate() {
        let count = soak.counts.get(kind).copied().unwrap_or_default();
        println!("{count:9}  {kind}");
        assert!(count > 0 || number < 2 || minutes < 10.0, "never: {kind}");
    }
}

impl Soak {
    fn new(seed: u64, may_mount: bool) -> Soak {
        let world = World::new();
        let folder = world.folder();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k,nr_inodes=512", "soak"]);
        let has_small_disk = may_mount && works(mount.arg(folder.join("run")));
        let clock = File::create(folder.join("clock")).expect("a file");
        // The helper gets only few variables, so a script gives it the wrong clock, and its faults.
        let script = format!(
            "#!/bin/sh\n. {0}/faults\nexport LD_PRELOAD={1} SOAK_CLOCK={0}/clock\nexec {2} \"$@\"\n",
            folder.display(),
            world.clock().display(),
            helper().display()
        );
        fs::write(folder.join("helper"), script).expect("a script");
        fs::set_permissions(folder.join("helper"), Permissions::from_mode(0o700)).expect("ours");
        let (programs, seeds, counts, dice) = (vec![], vec![], BTreeMap::new(), Dice::new(seed));
        let wrong = [0; 2];
        let mut soak = Soak { programs, seeds, dice, counts, clock, wrong, has_small_disk, world };
        soak.set_wrong();
        soak.set_helper("");
        (0..PROGRAMS).for_each(|_| soak.start());
        soak
    }

    fn count(&mut self, kind: &'static str) {
        assert!(KINDS.split(", ").any(|known| known == kind), "{kind}");
        *self.counts.entry(kind).or_default() += 1;
    }

    fn path(&self, name: &str) -> String {
        self.world.folder().join(name).display().to_string()
    }

    fn start(&mut self) {
        let preload = format!("{}:{}", agent().display(), self.path("clock.so"));
        let settings = format!("idle_ms=3000,locks={}", self.world.folder().display());
        let (helper, clock) = (self.path("helper"), self.path("clock"));
        let idle = self.dice.pick(&["1h", "20ms", "200ms"]);
        let variables = [
            ("LD_PRELOAD", &*preload),
            ("LOWTIDE_HELPER", &settings),
            ("LOWTIDE_HELPER_PROGRAM", &helper),
            ("LOWTIDE_GIVE_WAY", "0"),
            ("LOWTIDE_FREE_ON_IDLE", idle),
            ("LOWTIDE_IDLE_TO", self.dice.pick(&["sleep", "suspend"])),
            ("SOAK_CLOCK", &clock),
        ];
        let route = self.dice.pick(&[Route::Dlsym, Route::Address]);
        let program = self.world.start_with(route, &variables);
        println!("{} starts: {idle}", program.pid());
        self.programs.push((program, BTreeMap::new()));
    }

    fn step(&mut self) {
        let who = self.dice.index(PROGRAMS);
        match (self.dice.roll(40), self.some_block(who)) {
            (0..=9, None) | (0..=5, _) => self.take(who),
            (6..=7, Some(block)) => self.give_back(who, block),
            (8..=12, Some(block)) => self.write(who, block),
            (13..=18, Some(block)) => self.check(who, block),
            (19..=24, _) => self.turn(),
            (25..=28, _) => self.open(who),
            (29, Some(block)) => self.capture(who, block),
            (30, Some(block)) => self.be_idle(who, block),
            (31..=32, _) => self.kill(),
            (33..=34, Some(block)) => self.kill_the_helper(who, block),
            (35, Some(block)) => self.fill_the_disk(who, block),
            (36..=37, Some(block)) => self.jump(who, block),
            (38, Some(block)) => self.fail_the_driver(who, block),
            (39, _) => self.check_all(),
            _ => {}
        }
    }

    /// Tells a program a line. While it works, somebody may ask an agent for something.
    fn text(&mut self, who: usize, line: &str) -> String {
        println!("{}: {line}", self.programs[who].0.pid());
        self.programs[who].0.tell(line);
        if self.dice.one_in(3) {
            self.count("asked while it works");
            self.turn();
        }
        self.programs[who].0.answer()
    }

    fn does(&mut self, who: usize, lines: &str) {
        for line in lines.split("; ") {
            assert_eq!(self.text(who, line), "ok", "{line} in {}", self.programs[who].0.pid());
        }
    }

    /// Asks an agent for something; there is no answer if it is killed meanwhile.
    fn ask(&mut self, who: usize, ask: Ask) -> Option<Answer> {
        let program = &self.programs[who].0;
        let said = program.say(Request::new(ask).to_line().as_bytes());
        let answer = serde_json::from_str(&said).ok();
        let kind = match &answer {
            Some(Answer::Slept { .. }) => "slept",
            Some(Answer::Woken(_)) => "woken",
            Some(Answer::Suspended { .. }) => "suspended",
            Some(Answer::Resumed(_)) => "resumed",
            Some(Answer::Released { .. }) => "released",
            Some(Answer::Refused { .. }) => "refused",
            _ => "asked for nothing",
        };
        let why = if kind == "refused" { &*said } else { "" };
        println!("{}: {ask:?}: {kind} {why}", program.pid());
        self.count(kind);
        answer
    }

    fn turn(&mut self) {
        let (who, most) = (self.dice.index(PROGRAMS), Some(Bytes::mib(100)));
        let release = Ask::Release { to: self.dice.pick(&[None, most]) };
        let all = [Ask::Sleep, Ask::Wake, Ask::Suspend, Ask::Suspend, Ask::Resume, release];
        let ask = self.dice.pick(&all);
        assert!(self.ask(who, ask).is_some(), "{ask:?}: no answer");
    }

    fn take(&mut self, who: usize) {
        let Some(block) = self.place(who) else { return };
        let is_virtual = self.dice.one_in(3);
        let (kind, bytes) = if is_virtual {
            self.does(who, &format!("create {block} {0}; reserve {block} {0}", 4 * MIB));
            self.does(who, &format!("map {block} {block}; grant {block} 3"));
            (Kind::Virtual, 4 * MIB)
        } else {
            let bytes = self.dice.pick(&[65536, 2 * MIB, 3_000_000, 6 * MIB]);
            self.does(who, &format!("alloc {block} {bytes}"));
            (Kind::Plain, bytes)
        };
        self.count(if is_virtual { "virtual memory" } else { "alloc" });
        self.seeds.push(0);
        self.programs[who].1.insert(block, Block { kind, bytes, memory: self.seeds.len() - 1 });
        self.write(who, block);
    }

    fn give_back(&mut self, who: usize, block: u64) {
        self.check(who, block);
        let Block { kind, memory, .. } = self.programs[who].1[&block];
        let (lines, what) = match kind {
            Kind::Plain if self.is_open(memory) => ("free #", "free while open"),
            Kind::Plain => ("free #", "free"),
            Kind::Open => ("close #", "close"),
            Kind::Virtual => ("unmap #; uncreate #; unreserve #", "virtual memory back"),
        };
        self.does(who, &lines.replace('#', &block.to_string()));
        self.count(what);
        self.programs[who].1.remove(&block);
    }

    fn some_block(&mut self, who: usize) -> Option<u64> {
        let blocks: Vec<u64> = self.programs[who].1.keys().copied().collect();
        (!blocks.is_empty()).then(|| self.dice.pick(&blocks))
    }

    /// Returns a number that no block of a program has.
    fn place(&self, who: usize) -> Option<u64> {
        (0..BLOCKS).find(|block| !self.programs[who].1.contains_key(block))
    }

    fn is_open(&self, memory: usize) -> bool {
        let mut blocks = self.programs.iter().flat_map(|(_, blocks)| blocks.values());
        blocks.any(|block| block.kind == Kind::Open && block.memory == memory)
    }

    fn write(&mut self, who: usize, block: u64) {
        let seed = self.dice.roll(1 << 30);
        self.does(who, &format!("write {block} {seed}"));
        self.seeds[self.programs[who].1[&block].memory] = seed;
        self.count("write");
    }

    /// Compares all bytes of a block.
    fn check(&mut self, who: usize, block: u64) {
        let seed = self.seeds[self.programs[who].1[&block].memory];
        self.does(who, &format!("seed {block} {seed}; check {block}"));
        self.count("check");
    }

    fn check_all(&mut self) {
        for who in 0..PROGRAMS {
            for block in self.programs[who].1.keys().copied().collect::<Vec<_>>() {
                self.check(who, block);
            }
        }
    }

    /// Opens memory of another program, which may sleep or be suspended.
    fn open(&mut self, who: usize) {
        let from = (who + 1 + self.dice.index(PROGRAMS - 1)) % PROGRAMS;
        let (Some(block), Some(source)) = (self.place(who), self.some_block(from)) else { return };
        let found = self.programs[from].1[&source];
        if found.kind == Kind::Plain && found.bytes >= 2 * MIB {
            let handle = self.text(from, &format!("handle {source} 0"));
            self.does(who, &format!("open {block} {} 1 {handle}", found.bytes));
            self.programs[who].1.insert(block, Block { kind: Kind::Open, ..found });
            self.count("open");
            self.check(who, block);
        }
    }

    fn capture(&mut self, who: usize, block: u64) {
        self.does(who, &format!("capture {block}; end-capture; replay {block}"));
        self.count("capture");
        self.write(who, block);
    }

    fn be_idle(&mut self, who: usize, block: u64) {
        self.check(who, block);
        thread::sleep(Duration::from_millis(400));
        match self.ask(who, Ask::Status) {
            Some(Answer::Status(now)) if now.is_suspended => self.count("suspended by itself"),
            Some(Answer::Status(now)) if now.is_asleep => self.count("slept by itself"),
            _ => {}
        }
    }

    /// Kills a program that has memory of others, or whose memory others have, or any, and starts another one.
    fn kill(&mut self) {
        let kinds = ["fault: exporter killed", "fault: importer killed", "fault: any killed"];
        let which = self.dice.index(3);
        let fits = |block: &Block| match which {
            0 => block.kind == Kind::Plain && self.is_open(block.memory),
            _ => which == 2 || block.kind == Kind::Open,
        };
        let fits = |who: &usize| self.programs[*who].1.values().any(fits);
        let all: Vec<usize> = (0..PROGRAMS).filter(fits).collect();
        if all.is_empty() {
            return;
        }
        let who = self.dice.pick(&all);
        self.count(kinds[which]);
        if self.dice.one_in(2) {
            self.count("fault: killed during a suspend");
            let (pid, delay_ms) = (self.programs[who].0.pid(), self.dice.roll(40));
            let killer = thread::spawn(move || kill(&pid, delay_ms));
            self.ask(who, Ask::Suspend);
            killer.join().expect("no panic");
        } else if let Some(block) = self.some_block(who) {
            self.programs[who].0.tell(&format!("check {block}"));
        }
        println!("{}: {}", self.programs[who].0.pid(), kinds[which]);
        let (program, _) = self.programs.swap_remove(who);
        let socket = program.socket();
        program.kill();
        fs::remove_file(socket).expect("nobody else does");
        self.start();
        self.check_all();
    }

    /// Checks a block, with trouble while the program does it. Returns the answer.
    fn check_in(&mut self, who: usize, block: u64, trouble: impl FnOnce(&mut Soak)) -> String {
        let seed = self.seeds[self.programs[who].1[&block].memory];
        self.does(who, &format!("seed {block} {seed}"));
        self.programs[who].0.tell(&format!("check {block}"));
        trouble(self);
        let answer = self.programs[who].0.answer();
        println!("{}: check {block} in trouble: {answer}", self.programs[who].0.pid());
        answer
    }

    /// Kills the helper while it suspends or resumes a program, which comes back with the next one.
    fn kill_the_helper(&mut self, who: usize, block: u64) {
        self.ask(who, Ask::Suspend);
        let Some(pid) = self.helper() else { return };
        self.count("fault: helper killed");
        println!("the helper {pid} is killed");
        let call = self.dice.pick(&["GetState", "Lock", "Checkpoint", "Restore", "Unlock"]);
        let nth = self.dice.roll(5) + 1;
        if self.dice.one_in(2) {
            self.count("fault: driver of the helper");
            let fault = format!("export LOWTIDE_DOUBLE=fail=cuCheckpointProcess{call}@{nth}:999");
            self.set_helper(&fault);
        }
        let delay_ms = self.dice.roll(40);
        let killer = thread::spawn(move || kill(&pid, delay_ms));
        let answer = self.check_in(who, block, Self::turn);
        killer.join().expect("no panic");
        assert_eq!(answer, "ok");
        self.ask(who, Ask::Suspend);
        self.check(who, block);
        self.set_helper("");
    }

    /// Returns the helper's process, if it runs.
    fn helper(&self) -> Option<String> {
        let folder = self.world.folder().join("run/lowtide");
        Some(Helper::new(&folder, helper()).running().ok()??.pid().to_string())
    }

    /// Sets what the next helper gets in its environment.
    fn set_helper(&self, line: &str) {
        fs::write(self.path("faults.new"), line).expect("a file");
        fs::rename(self.path("faults.new"), self.path("faults")).expect("a file");
    }

    /// Fills the runtime folder for a moment, for a helper that lives or for the next one. A program waits for it,
    /// and no call of it fails.
    fn fill_the_disk(&mut self, who: usize, block: u64) {
        self.count("fault: disk full");
        let (helper, delay_ms) = (self.helper(), self.dice.roll(400));
        let mut filled = vec![self.path("run/filled")];
        if self.has_small_disk {
            let mut file = File::create(&filled[0]).expect("there is room");
            while file.write_all(&[7; 4096]).is_ok() {}
            let numbers = 0..self.dice.roll(2) * 512;
            let names = numbers.map(|number| self.path(&format!("run/{number}")));
            filled.extend(names.take_while(|name| File::create(name).is_ok()));
        } else {
            self.set_helper("export LOWTIDE_HELPER=$LOWTIDE_HELPER,full=1+2+3+4+5+6+7+8+9");
        }
        println!("the disk is full, {} files", filled.len());
        if let Some(pid) = helper.filter(|_| !self.has_small_disk || self.dice.one_in(2)) {
            kill(&pid, 0);
        }
        let ends = thread::spawn(move || {
            thread::sleep(Duration::from_millis(delay_ms));
            filled.iter().map(fs::remove_file).for_each(drop);
        });
        let answer = self.check_in(who, block, |soak| {
            soak.turn();
            ends.join().expect("no panic");
            soak.set_helper("");
        });
        assert_eq!(answer, "ok");
    }

    /// Has a clock jump by hours while a program works. A call that waits for a wake may find its time over.
    fn jump(&mut self, who: usize, block: u64) {
        let kinds = ["fault: day forwards", "fault: day back", "fault: time since start forwards"];
        let which = self.dice.index(3);
        let seconds = 1 + self.dice.roll(5 * 3600).cast_signed();
        println!("{}, {seconds} s", kinds[which]);
        self.count(kinds[which]);
        self.wrong[which / 2] += if which == 1 { -seconds } else { seconds };
        let answer = self.check_in(who, block, |soak| {
            thread::sleep(Duration::from_micros(soak.dice.roll(5000)));
            soak.set_wrong();
            soak.turn();
        });
        if answer != "ok" {
            assert!(which == 2 && answer != "error -2", "{answer}");
            self.count("fault: call late by a jump");
        }
        self.check(who, block);
    }

    fn set_wrong(&self) {
        let bytes = self.wrong.map(i64::to_ne_bytes).concat();
        self.clock.write_all_at(&bytes, 0).expect("a file");
    }

    /// Has a call of the driver fail once, in a program that sleeps, wakes or works.
    fn fail_the_driver(&mut self, who: usize, block: u64) {
        let call = self.dice.pick(&CALLS.split(' ').collect::<Vec<_>>());
        let (nth, code) = (1 + self.dice.roll(3), self.dice.pick(&REFUSALS));
        self.does(who, &format!("fault fail={call}@{nth}:{code}"));
        let ask = self.dice.pick(&[Ask::Sleep, Ask::Suspend, Ask::Wake]);
        self.ask(who, ask);
        self.check(who, block);
        if self.text(who, "struck") != "0" {
            self.count("fault: driver of a program");
        }
        self.does(who, "clear-faults");
    }
}

/// Kills a process after some milliseconds.
fn kill(pid: &str, delay_ms: u64) {
    thread::sleep(Duration::from_millis(delay_ms));
    works(Command::new("kill").args(["-9", pid]));
}

/// Returns whether a command succeeds.
fn works(command: &mut Command) -> bool {
    command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
