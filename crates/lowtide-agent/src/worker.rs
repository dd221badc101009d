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
use std::time::{Duration, Instant};
use std::{ptr, thread};

use lowtide_proto::Answer;
use lowtide_types::Bytes;

use crate::{agent, gate, obstacles};

/// What the worker is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// Put the process to sleep.
    Sleep,
    /// Wake the process.
    Wake,
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
    pub(crate) fn start(idle: Option<Duration>) -> Worker {
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

fn work(tickets: &Receiver<Ticket>, idle: Option<Duration>) {
    let mut calm = Calm::new();
    loop {
        let ticket = match idle {
            Some(idle) => tickets.recv_timeout(calm.left(idle)),
            None => tickets.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match ticket {
            Ok(Ticket { job, reply }) => {
                let answer = run(job);
                // Who asked may have stopped waiting.
                let _sent = reply.send(answer);
            }
            Err(RecvTimeoutError::Timeout) => {
                if idle.is_some_and(|idle| calm.is_over(idle)) && !gate::is_asleep() {
                    run(Job::Sleep);
                    calm = Calm::new();
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn run(job: Job) -> Answer {
    let done = std::panic::catch_unwind(|| {
        let agent = agent::get()?;
        Some(match job {
            Job::Sleep => agent.sleep(),
            Job::Wake => agent.wake(),
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

/// The time since the last touch, as far as the worker has seen.
struct Calm {
    touches: u64,
    since: Instant,
}

impl Calm {
    fn new() -> Calm {
        Calm { touches: gate::touches(), since: Instant::now() }
    }

    /// Returns how long to wait before the next look.
    fn left(&self, idle: Duration) -> Duration {
        let shortest = Duration::from_millis(1);
        idle.saturating_sub(self.since.elapsed()).max(shortest)
    }

    /// Returns whether there was no touch for so long.
    fn is_over(&mut self, idle: Duration) -> bool {
        let touches = gate::touches();
        if touches != self.touches {
            *self = Calm { touches, since: Instant::now() };
        }
        self.since.elapsed() >= idle
    }
}

/// Starts a thread that no signal of the program interrupts.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills a set of ours.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: reads the set that was filled, and writes the one that was in force.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    // SAFETY: puts back what was in force.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    started.map(drop)
}
