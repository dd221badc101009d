//! The thread that puts the process to sleep and wakes it, when somebody asks or when the program has
//! been idle.
//!
//! It is there before the first sleep, and blocks all signals, so that no handler of the program runs on
//! it. The threads that it starts for copies inherit that.
#![allow(unsafe_code, reason = "blocks signals")]

use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::{ptr, thread};

use lowtide_proto::Answer;
use lowtide_release::Idle;
use lowtide_types::Bytes;

use crate::control::idle::Watch;
use crate::gate;
use crate::sleep::agent::Agent;
use crate::sleep::{agent, obstacles, suspend as suspending};

/// What the worker is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// Put the process to sleep.
    Sleep,
    /// Wake the process.
    Wake,
    /// Take the process off its devices.
    Suspend,
    /// Bring the process back to its devices; it sleeps on.
    Resume,
    /// Free memory, down to so much if a number is given.
    Release(Option<Bytes>),
}

/// The way to the worker.
pub(crate) struct Worker {
    /// `None` where the thread could not be started.
    jobs: Option<Mutex<Sender<Ticket>>>,
}

struct Ticket {
    job: Job,
    reply: Sender<Answer>,
}

impl Worker {
    /// Starts the thread.
    pub(crate) fn start(idle: Option<Idle>) -> Worker {
        let (jobs, tickets) = mpsc::channel();
        match spawn("lowtide-worker", move || work(&tickets, idle)) {
            Ok(()) => Worker { jobs: Some(Mutex::new(jobs)) },
            Err(error) => {
                obstacles::add(&format!("no thread could be started: {error}"));
                Worker { jobs: None }
            }
        }
    }

    /// Asks the worker, and waits for its answer.
    pub(crate) fn ask(&self, job: Job) -> Answer {
        let (reply, answer) = mpsc::channel();
        if let Some(jobs) = &self.jobs {
            let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
            // Where the worker is gone, so is the receiver of its answer.
            let _sent = jobs.send(Ticket { job, reply });
        } else {
            drop(reply);
        }
        let gone = |_| Answer::Refused { reason: "the agent's worker has ended".to_owned() };
        answer.recv().unwrap_or_else(gone)
    }
}

fn work(tickets: &Receiver<Ticket>, idle: Option<Idle>) {
    let mut watch = idle.map(Watch::new);
    loop {
        let ticket = match &watch {
            // Nothing is due before somebody wakes the process.
            Some(watch) if !is_away() => tickets.recv_timeout(watch.pause()),
            _ => tickets.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let was_woken = match ticket {
            Ok(Ticket { job, reply }) => {
                let answer = run(job);
                let was_woken = matches!(answer, Answer::Woken(_) | Answer::Resumed(_));
                // Who asked may have stopped waiting.
                let _sent = reply.send(answer);
                was_woken
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if let Some(watch) = &mut watch {
            watch.look(was_woken);
            sleep_if_due(watch);
        }
    }
}

/// Returns whether the process is where idleness takes it.
fn is_away() -> bool {
    if suspending::is_wanted() { gate::is_suspended() } else { gate::is_asleep() }
}

fn sleep_if_due(watch: &Watch) {
    if is_away() {
        return;
    }
    // What is suspended takes its context with it, which there always is.
    let has_memory = || {
        let on_device = |agent: &Agent| suspending::is_wanted() || agent.memory.is_on_device();
        agent::get().is_some_and(on_device)
    };
    let Some(ticket) = watch.due(has_memory) else { return };
    let job = if suspending::is_wanted() { Job::Suspend } else { Job::Sleep };
    if job == Job::Suspend {
        suspending::try_driver();
    }
    match run(job) {
        // A new attempt after another quiet time: work was in the way, or will have gone by then.
        Answer::Refused { .. } => ticket.put_back(),
        _ => ticket.done(),
    }
}

fn run(job: Job) -> Answer {
    let done = std::panic::catch_unwind(|| {
        let agent = agent::get()?;
        Some(match job {
            Job::Sleep => agent.sleep(),
            Job::Wake => agent.wake(),
            Job::Suspend => agent.suspend(),
            Job::Resume => agent.resume(),
            Job::Release(to) => agent.release(to),
        })
    });
    match done {
        Ok(Some(answer)) => answer,
        Ok(None) => Answer::Refused { reason: "the agent is not ready yet".to_owned() },
        Err(_) => {
            obstacles::add("a panic of the agent");
            Answer::Refused { reason: "the agent panicked; it does not sleep any more".to_owned() }
        }
    }
}

/// Starts a thread that no signal of the program interrupts.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let builder = thread::Builder::new().name(name.to_owned());
    without_signals(|| builder.spawn(work)).map(drop)
}

/// Blocks all signals while something starts a thread, which inherits that.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills a set of ours.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: reads the set that was filled, and writes the one that was in force.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let started = start();
    // SAFETY: puts back what was in force.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    started
}
