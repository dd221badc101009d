//! The thread that puts the process to sleep and wakes it, when somebody asks or when the program has
//! been idle. It is there before the first sleep.

use std::panic::catch_unwind;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lowtide_device::tallies;
use lowtide_proto::share::{Give, ToArbiter};
use lowtide_proto::{Answer, Ask};
use lowtide_release::Ticket;
use lowtide_types::{Act, Verdict};

use crate::control::idle::Watch;
use crate::room::{self, Room};
use crate::say::say;
use crate::sleep::Way;
use crate::sleep::agent::{self, Agent};
use crate::{gate, obstacles, settings, threads};

/// The way to the worker; empty where its thread could not be started.
static JOBS: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();

/// What failed last, and when.
static FAILED: Mutex<Option<(Instant, String)>> = Mutex::new(None);

/// A question to the worker.
enum Job {
    /// Answered to whoever asks.
    Ask(Ask, Option<Way>, Sender<Answer>),
    /// Answered to the arbiter, over the connection of this number.
    Give(Give, Option<Way>, u64),
    /// Whether the program is idle, which has not used the device for a time.
    Look(Duration, u64),
}

/// Starts the thread, once.
pub(crate) fn start(agent: &'static Agent) {
    let (sender, jobs) = mpsc::channel();
    match threads::spawn("lowtide-worker", move || work(agent, &jobs)) {
        Ok(()) => drop(JOBS.set(Mutex::new(sender))),
        Err(error) => obstacles::add(&format!("no thread could be started: {error}")),
    }
}

/// Asks the worker, and waits for its answer. Connects to the helper first where that is needed, while the worker serves
/// others.
pub(crate) fn ask(ask: Ask) -> Answer {
    let way = match agent::get() {
        Some(agent) if ask == Ask::Suspend => agent.way_to_suspend(),
        _ => Ok(None),
    };
    let way = match way {
        Ok(way) => way,
        Err(reason) => return Answer::Refused { reason },
    };
    let (reply, answer) = mpsc::channel();
    send(Job::Ask(ask, way, reply));
    let gone = |_| Answer::Refused { reason: "the agent's worker has ended".to_owned() };
    answer.recv().unwrap_or_else(gone)
}

/// Has the worker make room for another program, and tell the arbiter. `way` leads off the devices, where that is asked.
pub(crate) fn give_way(give: Give, way: Option<Way>, connection: u64) {
    send(Job::Give(give, way, connection));
}

/// Has the worker look whether the program is idle, and tell the arbiter.
pub(crate) fn look(quiet: Duration, connection: u64) {
    send(Job::Look(quiet, connection));
}

fn send(job: Job) {
    if let Some(jobs) = JOBS.get() {
        let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
        // Where the worker is gone, so is the receiver of its answer.
        let _sent = jobs.send(job);
    }
}

fn work(agent: &'static Agent, jobs: &Receiver<Job>) {
    let mut watch = agent.idle.clone().map(Watch::new);
    loop {
        let job = match &watch {
            // Nothing is due before somebody wakes the process.
            Some(watch) if !is_away() => jobs.recv_timeout(watch.pause()),
            _ => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let was_woken = match job {
            Ok(Job::Ask(ask, way, reply)) => {
                let answer = run(agent, ask, way);
                let was_woken = matches!(answer, Answer::Woken(_) | Answer::Resumed(_));
                // The asker may have stopped waiting.
                let _sent = reply.send(answer);
                was_woken
            }
            Ok(Job::Give(give, way, connection)) => {
                if let Some(room) = room::get() {
                    make_room(agent, room, &give, way, connection);
                }
                false
            }
            Ok(Job::Look(quiet, connection)) => {
                if let Some(room) = room::get() {
                    let idle = caught(|| agent.is_idle()).unwrap_or_default().then_some(quiet);
                    room.say(connection, ToArbiter::Report(room.report_of(agent, idle)));
                }
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if let Some(watch) = &mut watch {
            watch.look(was_woken);
            sleep_if_due(agent, watch);
        }
    }
}

/// Returns whether the process is where idleness takes it.
fn is_away() -> bool {
    if settings::suspends_when_idle() { gate::is_suspended() } else { gate::is_asleep() }
}

fn sleep_if_due(agent: &'static Agent, watch: &Watch) {
    if is_away() {
        return;
    }
    let suspends = settings::suspends_when_idle();
    // What is suspended takes its context with it, which there always is.
    let Some(ticket) = watch.due(|| suspends || agent.memory.is_on_device()) else { return };
    if !suspends {
        return end(ticket, &run(agent, Ask::Sleep, None));
    }
    let touches = gate::touches();
    let suspend = move || {
        agent.suspension.try_driver();
        // The program may have gone on meanwhile.
        if gate::touches() == touches {
            end(ticket, &ask(Ask::Suspend));
        } else {
            ticket.put_back();
        }
    };
    if let Err(error) = threads::spawn("lowtide-idle", suspend) {
        say!("the idle program is not suspended: no thread could be started: {error}");
    }
}

/// Ends an attempt of an idle program.
fn end(ticket: Ticket, answer: &Answer) {
    match answer {
        // A new attempt after another quiet time: work was in the way, or will have gone by then.
        Answer::Refused { .. } => ticket.put_back(),
        _ => ticket.done(),
    }
}

fn run(agent: &Agent, ask: Ask, way: Option<Way>) -> Answer {
    let room = room::get();
    if let (Some(room), Ask::Wake | Ask::Resume) = (room, ask) {
        room.begin_wake();
    }
    let answer = caught(|| agent.run(ask, way)).unwrap_or_else(|| Answer::Refused {
        reason: "the agent panicked; it does not sleep any more".to_owned(),
    });
    if let Some(why) = failure_of(&answer) {
        let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
        *failed = Some((Instant::now(), format!("{}: {why}", word_of(ask))));
    }
    if let (Some(room), true) = (room, ask != Ask::Status) {
        room.end_move(&answer);
    }
    answer
}

/// Returns what failed last, and how long ago.
pub(crate) fn last_failure() -> Option<String> {
    let failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    let (at, why) = failed.as_ref()?;
    Some(format!("{} s ago: {why}", at.elapsed().as_secs()))
}

/// Returns why an answer says that nothing was done, or not all.
fn failure_of(answer: &Answer) -> Option<String> {
    match answer {
        Answer::Refused { reason } => Some(reason.clone()),
        Answer::NoRoom(no_room) => Some(no_room.to_string()),
        Answer::Slept { receipts } | Answer::Released { receipts } => {
            let failed = receipts.iter().find(|receipt| receipt.verdict == Verdict::Failed)?;
            failed.to_string().lines().next().map(str::to_owned)
        }
        _ => None,
    }
}

fn word_of(ask: Ask) -> &'static str {
    match ask {
        Ask::Sleep => "sleep",
        Ask::Wake => "wake",
        Ask::Suspend => "suspend",
        Ask::Resume => "resume",
        Ask::Release { .. } => "release",
        Ask::Status | Ask::Share | Ask::Why => "question",
    }
}

/// Makes room for another program, and tells the arbiter what came of it.
fn make_room(agent: &Agent, room: &Room, give: &Give, way: Option<Way>, connection: u64) {
    let (began, before) = (Instant::now(), room.used(agent));
    let hold = || room.hold(give, connection);
    let given = caught(|| agent.give_way(give, way, &hold));
    let given = given.unwrap_or_else(|| Err("the agent panicked".to_owned()));
    if let Ok(slept) = &given {
        room.gave_in(slept.took);
        tallies::took(Act::GiveWay, slept.took.as_secs_f64());
    }
    room.end_order();
    let order = give.order;
    let said = match given {
        Ok(slept) => {
            let (freed, took_ms) = (room.freed_since(agent, before), slept.took.as_millis() as u64);
            ToArbiter::Gave { order, freed, took_ms }
        }
        Err(reason) => {
            ToArbiter::Refused { order, reason, tried_ms: began.elapsed().as_millis() as u64 }
        }
    };
    room.say(connection, said);
}

/// Runs code of the agent's; `None` if it panicked, after which the process does not sleep.
fn caught<T>(run: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(std::panic::AssertUnwindSafe(run));
    done.inspect_err(|_| obstacles::add_panic()).ok()
}
