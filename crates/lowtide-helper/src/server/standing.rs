//! The arbiter's thread and its standing connections.
//!
//! Each connection has a thread that reads. One thread owns the arbiter, reads the driver's numbers and writes. It
//! waits for nobody: an agent that does not take its lines loses its connection.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_proto::helper::{LINE_MOST, Refusal, Target};
use lowtide_proto::line::LineReader;
use lowtide_proto::share::{Join, Queue, ToAgent, ToArbiter};
use lowtide_proto::socket_name;
use rustix::net::{SendFlags, send, sockopt};

use crate::process::handle::{is_alive, is_stopped};
use crate::process::readings::FreeNumbers;
use crate::share::{Arbiter, Event, MemberId};

/// The time between two decisions while a call waits.
const TICK: Duration = Duration::from_millis(50);
/// The time for which a connection may be silent: an agent that nobody asks says nothing.
const SILENCE: Duration = Duration::from_secs(24 * 3600);
/// The time that programs have to report before the queue is answered without them.
const REPORTS: Duration = Duration::from_millis(200);
/// The time in which the arbiter's thread answers.
const ANSWER: Duration = Duration::from_secs(10);

/// The way to the arbiter's thread.
#[derive(Debug)]
pub(crate) struct Standing {
    sender: Sender<Message>,
    joined: AtomicU64,
}

enum Message {
    Joined(MemberId, Member, Join),
    Heard(MemberId, Event),
    Queue(Sender<Result<Queue, Refusal>>),
    End,
}

/// A process that joined, and the connection to its agent.
struct Member {
    target: Target,
    stream: UnixStream,
}

impl Standing {
    /// Starts the arbiter's thread. The agents whose sockets are in this folder may have shared under another arbiter,
    /// and are waited for.
    pub(crate) fn start(folder: &Path) -> io::Result<Standing> {
        let (sender, messages) = mpsc::channel();
        let expected = agents(folder);
        thread::Builder::new().name("arbiter".to_owned()).spawn(move || {
            let mut expected = Some(expected);
            // After a panic all connections end, and their agents join a new arbiter.
            let mut run = || Thread::new(expected.take().unwrap_or_default()).run(&messages);
            while catch_unwind(AssertUnwindSafe(&mut run)).is_err() {}
        })?;
        Ok(Standing { sender, joined: AtomicU64::new(0) })
    }

    /// Checks that a process can join: it is of this user, and the driver tells how much memory is free.
    pub(crate) fn check(client: &UnixStream) -> Result<Target, Refusal> {
        let unreadable = |why: String| Refusal::Unreadable { why };
        let peer =
            sockopt::socket_peercred(client).map_err(|error| unreadable(error.to_string()))?;
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        let user = rustix::process::geteuid();
        if peer.uid != user {
            let (owner, user) = (peer.uid.as_raw(), user.as_raw());
            return Err(Refusal::OtherUser { pid, owner, user });
        }
        FreeNumbers::default().read(&[])?;
        Target::of(pid).map_err(|_| Refusal::Ended { pid })
    }

    /// Makes a process a member, and hears its agent until the connection ends.
    pub(crate) fn hear(
        &self,
        target: Target,
        join: Join,
        client: &UnixStream,
        mut lines: LineReader,
    ) {
        let Ok(stream) = client.try_clone() else { return };
        let id = MemberId(self.joined.fetch_add(1, Ordering::Relaxed));
        let mut sent = self.sender.send(Message::Joined(id, Member { target, stream }, join));
        while sent.is_ok() {
            let Ok(line) = lines.read(client, LINE_MOST, Instant::now() + SILENCE) else { break };
            let Ok(said) = ToArbiter::from_line(&line) else { break };
            sent = self.sender.send(Message::Heard(id, Event::Said(said)));
        }
        let _closed = client.shutdown(Shutdown::Both);
        let _sent = self.sender.send(Message::Heard(id, Event::Left));
    }

    /// Ends all standing connections, and those that come later: another helper has the place. Returns false.
    pub(crate) fn end(&self) -> bool {
        let _sent = self.sender.send(Message::End);
        false
    }

    /// Returns the queue.
    pub(crate) fn queue(&self) -> Result<Queue, Refusal> {
        let (sender, answer) = mpsc::channel();
        let broken = || Refusal::Broken { why: "the arbiter does not answer".to_owned() };
        self.sender.send(Message::Queue(sender)).map_err(|_| broken())?;
        answer.recv_timeout(ANSWER).map_err(|_| broken())?
    }
}

/// Returns the processes of this namespace whose agents listen in a folder.
fn agents(folder: &Path) -> Vec<u32> {
    let namespace = fs::read_link("/proc/thread-self/ns/pid").unwrap_or_default();
    let namespace = namespace.to_string_lossy().into_owned();
    let names = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let pid = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let pid = name.rsplit_once('-')?.1.parse::<u32>().ok()?;
        (name == socket_name(&namespace, pid) && is_alive(pid)).then_some(pid)
    };
    names.filter_map(pid).collect()
}

/// What the arbiter's thread owns.
struct Thread {
    arbiter: Arbiter,
    members: BTreeMap<MemberId, Member>,
    numbers: FreeNumbers,
    /// Those who wait for the queue, and since when.
    askers: Vec<(Duration, Sender<Result<Queue, Refusal>>)>,
    began: Instant,
    is_ended: bool,
}

impl Thread {
    fn new(expected: Vec<u32>) -> Thread {
        Thread {
            arbiter: Arbiter::new(expected),
            members: BTreeMap::new(),
            numbers: FreeNumbers::default(),
            askers: Vec::new(),
            began: Instant::now(),
            is_ended: false,
        }
    }

    /// Serves until nobody can send messages any more.
    fn run(mut self, messages: &Receiver<Message>) {
        loop {
            let is_asked = self.arbiter.is_asked() || !self.askers.is_empty();
            let limit = if is_asked { TICK } else { SILENCE };
            match messages.recv_timeout(limit) {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            for message in messages.try_iter() {
                self.take(message);
            }
            if self.arbiter.is_asked() {
                self.decide();
            }
            self.answer_askers();
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn take(&mut self, message: Message) {
        let now = self.now();
        match message {
            Message::Joined(_, member, _) if self.is_ended => drop(member),
            Message::Joined(id, member, join) => {
                let target = member.target;
                self.members.insert(id, member);
                self.arbiter.hear(now, id, Event::Joined { target, join });
            }
            Message::Heard(id, event) => {
                if event == Event::Left {
                    self.members.remove(&id);
                }
                self.arbiter.hear(now, id, event);
            }
            Message::End => {
                self.is_ended = true;
                self.members.clear();
            }
            Message::Queue(sender) => {
                let looks = self.arbiter.look_at_all(now);
                self.tell(looks);
                self.askers.push((now, sender));
            }
        }
    }

    /// Answers those who asked for the queue, once programs have reported what they have now, or have not.
    fn answer_askers(&mut self) {
        let now = self.now();
        let is_known = |(asked, _): &(Duration, _)| {
            now >= *asked + REPORTS || self.arbiter.has_heard_all_since(*asked)
        };
        let askers = std::mem::take(&mut self.askers).into_iter();
        let (known, early): (Vec<_>, _) = askers.partition(is_known);
        self.askers = early;
        for (_, asker) in known {
            let numbers = self.numbers.read(&self.members.values().map(pid).collect::<Vec<_>>());
            // Whoever asked may be gone.
            let _sent = asker.send(numbers.map(|numbers| self.arbiter.queue(now, &numbers)));
        }
    }

    fn decide(&mut self) {
        for (id, target) in self.arbiter.late(self.now()) {
            let event = Event::Stopped(is_stopped(target.pid));
            self.arbiter.hear(self.now(), id, event);
        }
        // Without numbers nothing is granted; the next look may have some.
        let Ok(numbers) = self.numbers.read(&self.members.values().map(pid).collect::<Vec<_>>())
        else {
            return;
        };
        let told = self.arbiter.decide(self.now(), &numbers);
        self.tell(told);
    }

    fn tell(&self, lines: Vec<(MemberId, ToAgent)>) {
        for (id, line) in lines {
            if let Some(member) = self.members.get(&id) {
                member.tell(&line);
            }
        }
    }
}

fn pid(member: &Member) -> u32 {
    member.target.pid
}

impl Member {
    /// Sends a line. An agent that does not take it, or only a part, loses its connection: it joins again.
    fn tell(&self, line: &ToAgent) {
        let line = line.to_line();
        let sent = send(&self.stream, line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        if sent != Ok(line.len()) {
            let _closed = self.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _closed = self.stream.shutdown(Shutdown::Both);
    }
}
