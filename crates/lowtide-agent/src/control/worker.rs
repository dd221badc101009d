//! The thread that puts the process to sleep and wakes it, when somebody asks or when the program has
//! been idle. It is there before the first sleep.

use std::panic::catch_unwind;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, OnceLock, PoisonError};

use lowtide_proto::{Answer, Ask};
use lowtide_release::Ticket;

use crate::control::idle::Watch;
use crate::say::say;
use crate::sleep::Way;
use crate::sleep::agent::{self, Agent};
use crate::{gate, obstacles, settings, threads};

/// The way to the worker; empty where its thread could not be started.
static JOBS: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();

/// A question to the worker.
struct Job {
    ask: Ask,
    way: Option<Way>,
    reply: Sender<Answer>,
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
    if let Some(jobs) = JOBS.get() {
        let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
        // Where the worker is gone, so is the receiver of its answer.
        let _sent = jobs.send(Job { ask, way, reply });
    } else {
        drop(reply);
    }
    let gone = |_| Answer::Refused { reason: "the agent's worker has ended".to_owned() };
    answer.recv().unwrap_or_else(gone)
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
            Ok(Job { ask, way, reply }) => {
                let answer = run(agent, ask, way);
                let was_woken = matches!(answer, Answer::Woken(_) | Answer::Resumed(_));
                // The asker may have stopped waiting.
                let _sent = reply.send(answer);
                was_woken
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
    catch_unwind(std::panic::AssertUnwindSafe(|| agent.run(ask, way))).unwrap_or_else(|_| {
        obstacles::add_panic();
        Answer::Refused { reason: "the agent panicked; it does not sleep any more".to_owned() }
    })
}
