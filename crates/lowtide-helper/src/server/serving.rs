//! The socket, and a thread for each connection.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_device::tallies;
use lowtide_proto::helper::{
    Answer, Ask, Greeting, LINE_MOST, Refusal, Request, Step, StepTime, TRIAL_LIMIT, Target,
};
use lowtide_proto::line::{LineReader, SocketFile, is_from_this_user};
use lowtide_proto::share::Join;
use lowtide_types::Act;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::operation::lock_table::Operation;
use crate::operation::service::Service;
use crate::process::readings::Reading;
use crate::server::standing::Standing;

/// The time for which a connection may be silent.
const SILENCE: Duration = Duration::from_secs(10);
/// The time that a client has to take an answer.
const TAKING: Duration = Duration::from_secs(5);
/// The most connections at a time. A suspended program keeps one for its way back.
const MOST: usize = 1024;
/// The time between two looks at whether this helper is still needed.
const LOOK: Duration = Duration::from_millis(500);
/// The time by which an operation may miss its own limit before its asker is answered without it.
const GRACE: Duration = Duration::from_secs(1);
/// The longest limit that counts.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The place in the folder of the user, which only one helper has.
pub(crate) struct Place {
    pub(crate) listener: UnixListener,
    pub(crate) file: SocketFile,
    /// Those who share: one place, one arbiter.
    pub(crate) standing: Arc<Standing>,
    pub(crate) _instance: File,
}

/// Serves until nobody has asked for this time, nothing is under way and nobody is suspended. A helper that has lost its
/// place, or never had one, ends as soon as nobody is connected.
pub(crate) fn serve(
    place: Option<&Place>,
    starter: Option<UnixStream>,
    service: &Arc<Service>,
    idle: Duration,
) {
    // Cloned for each connection.
    let connections = Arc::new(());
    if let Some(starter) = starter {
        start(starter, service, place, &connections);
    }
    let mut used = Instant::now();
    loop {
        match place.map(|place| (place, place.listener.accept())) {
            Some((place, Ok((client, _)))) => {
                used = Instant::now();
                start(client, service, Some(place), &connections);
            }
            Some((place, Err(error))) if error.kind() == ErrorKind::WouldBlock => {
                wait(&place.listener, LOOK);
            }
            // Too few file descriptors, for example: that may pass.
            _ => thread::sleep(LOOK),
        }
        service.journal.catch_up();
        let place = place.filter(|place| place.file.is_there() || place.standing.end());
        let is_busy = Arc::strong_count(&connections) > 1 || !service.lock_table.is_empty();
        if is_busy {
            used = Instant::now();
            continue;
        }
        // The next client starts another helper.
        let Some(place) = place else { return };
        if used.elapsed() >= idle {
            if !service.has_records() {
                let _removed = fs::remove_file(place.file.path());
                return;
            }
            used = Instant::now();
        }
    }
}

fn wait(listener: &UnixListener, limit: Duration) {
    let limit = Timespec::try_from(limit).ok();
    let _ready = poll(&mut [PollFd::new(listener, PollFlags::IN)], limit.as_ref());
}

fn start(client: UnixStream, service: &Arc<Service>, place: Option<&Place>, connections: &Arc<()>) {
    if Arc::strong_count(connections) > MOST {
        return;
    }
    let (service, connected) = (Arc::clone(service), Arc::clone(connections));
    let standing = place.map(|place| Arc::clone(&place.standing));
    let conversation = Conversation { service, standing, worker: None };
    // Where no thread can be started, the client sees that the connection ends.
    let _started = thread::Builder::new().name("connection".to_owned()).spawn(move || {
        let _broken = catch_unwind(AssertUnwindSafe(|| converse(client, conversation)));
        drop(connected);
    });
}

fn converse(mut client: UnixStream, mut conversation: Conversation) {
    let set = client.set_nonblocking(false).and(client.set_write_timeout(Some(TAKING)));
    if set.is_err() || !is_from_this_user(&client) {
        return;
    }
    if client.write_all(Greeting::line(std::process::id()).as_bytes()).is_err() {
        return;
    }
    let (mut lines, mut silence) = (LineReader::default(), SILENCE);
    while let Ok(line) = lines.read(&client, LINE_MOST, Instant::now() + silence) {
        let ask = Request::from_line(&line);
        if let Ok(Ask::Join(join)) = ask {
            return conversation.share(join, client, lines);
        }
        let answer = ask.and_then(|ask| conversation.reply(ask));
        let answer = answer.unwrap_or_else(|refusal| Answer::Refused { refusal });
        // Who suspended a process comes back over the same connection: nothing has to be opened for that.
        silence = if let Answer::Suspended(_) = answer { LONGEST } else { SILENCE };
        if client.write_all(answer.to_line().as_bytes()).is_err() {
            return;
        }
    }
}

/// Counts an operation by the driver's steps. One that found its work done had none.
fn count(act: Act, steps: &[StepTime]) {
    if !steps.is_empty() {
        tallies::took(act, steps.iter().map(|time| time.took_s).sum());
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// What a connection has asked for.
struct Conversation {
    service: Arc<Service>,
    /// Those who share; `None` where this helper has no place in the folder.
    standing: Option<Arc<Standing>>,
    /// The thread of its operations. It stays for the next one, which may lead back to running.
    worker: Option<mpsc::Sender<Job>>,
}

impl Conversation {
    fn reply(&mut self, ask: Ask) -> Result<Answer, Refusal> {
        match ask {
            Ask::Suspend(ask) => {
                let limit = limit(ask.lock_limit_ms, ask.limit_ms);
                self.operate(ask.target, limit, move |service, operation, deadline| {
                    let done = service.suspend(&ask, operation, deadline)?;
                    count(Act::Suspend, &done.steps);
                    Ok(Answer::Suspended(done))
                })
            }
            Ask::Resume(ask) => {
                let limit = limit(ask.wait_ms, ask.limit_ms);
                self.operate(ask.target, limit, move |service, operation, deadline| {
                    let done = service.resume(&ask, operation, deadline)?;
                    count(Act::Resume, &done.steps);
                    Ok(Answer::Resumed(done))
                })
            }
            Ask::State { target } => self.operate(target, SILENCE, move |service, _, _| {
                service.state(target).map(Answer::State)
            }),
            Ask::List => Ok(Answer::List { processes: self.service.list() }),
            Ask::Try => {
                let this = Target { pid: std::process::id(), start_ticks: 0 };
                self.operate(this, TRIAL_LIMIT, |service, _, deadline| {
                    service.try_driver(deadline).map(Answer::Tried)
                })
            }
            Ask::Devices => Ok(Answer::Devices { devices: Reading::now()?.numbers() }),
            Ask::Join(_) => {
                Err(Refusal::Broken { why: "a connection joins, not a question".to_owned() })
            }
            Ask::Queue => self.standing()?.queue().map(Answer::Queue),
        }
    }

    fn standing(&self) -> Result<&Standing, Refusal> {
        let why =
            || "this helper is not the one that others find, so nobody shares here".to_owned();
        self.standing.as_deref().ok_or_else(|| Refusal::Broken { why: why() })
    }

    /// Makes the process a member of those who share, and hears its agent until the connection ends.
    fn share(&self, join: Join, mut client: UnixStream, lines: LineReader) {
        let checked =
            self.standing().and_then(|standing| Ok((standing, Standing::check(&client)?)));
        let answer = match &checked {
            Ok(_) => Answer::Joined,
            Err(refusal) => Answer::Refused { refusal: refusal.clone() },
        };
        let written = client.write_all(answer.to_line().as_bytes());
        if let (Ok((standing, target)), Ok(())) = (checked, written) {
            standing.hear(target, join, &client, lines);
        }
    }

    /// Runs an operation in the thread of this connection. One past its limit is left alone, with the thread.
    fn operate(
        &mut self,
        target: Target,
        limit: Duration,
        run: impl FnOnce(&Service, &Arc<Operation>, Instant) -> Result<Answer, Refusal> + Send + 'static,
    ) -> Result<Answer, Refusal> {
        let (operation, deadline) = (Operation::new(target), Instant::now() + limit);
        let (service, own) = (Arc::clone(&self.service), Arc::clone(&operation));
        let (sender, receiver) = mpsc::channel();
        let job = Box::new(move || {
            let answer = catch_unwind(AssertUnwindSafe(|| run(&service, &own, deadline)));
            let broken = || Refusal::Broken { why: "an operation panicked".to_owned() };
            // Nobody waits any more if it took too long.
            let _sent = sender.send(answer.unwrap_or_else(|_| Err(broken())));
        });
        let worker = self.worker.take().map_or_else(start_worker, Ok)?;
        // It ends with this connection, and not before.
        let _sent = worker.send(job);
        if let Ok(answer) = receiver.recv_timeout(limit + GRACE) {
            self.worker = Some(worker);
            return answer;
        }
        operation.leave();
        let (pid, limit_ms) = (target.pid, limit.as_millis() as u64);
        Err(Refusal::Unfinished { pid, step: operation.step().unwrap_or(Step::Lock), limit_ms })
    }
}

fn start_worker() -> Result<mpsc::Sender<Job>, Refusal> {
    let (sender, jobs) = mpsc::channel::<Job>();
    let thread = thread::Builder::new().name("operation".to_owned());
    let started = thread.spawn(move || jobs.into_iter().for_each(|job| job()));
    started.map_err(|error| Refusal::Broken { why: format!("starting a thread: {error}") })?;
    Ok(sender)
}

fn limit(one_ms: u64, other_ms: u64) -> Duration {
    Duration::from_millis(one_ms.saturating_add(other_ms)).min(LONGEST)
}
