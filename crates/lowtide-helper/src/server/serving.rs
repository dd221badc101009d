//! The socket, and a thread for each connection.
#![allow(
    unsafe_code,
    reason = "waits for connections with a limit, and asks the kernel who connected"
)]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_device::private_files::effective_user;
use lowtide_proto::helper::{
    Answer, Ask, Greeting, LINE_MOST, Refusal, Request, Step, TRIAL_LIMIT, Target,
};

use crate::operation::lock_table::Work;
use crate::operation::service::Office;
use crate::process::readings::Reading;

/// The time for which a connection may be silent.
const SILENCE: Duration = Duration::from_secs(10);
/// The time that a client has to take an answer.
const TAKING: Duration = Duration::from_secs(5);
/// The most connections at a time.
const MOST: usize = 256;
/// The time between two looks at whether this helper is still needed.
const LOOK: Duration = Duration::from_millis(500);
/// The time by which an operation may miss its own limit before its asker is answered without it.
const GRACE: Duration = Duration::from_secs(1);
/// The longest limit that counts.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Serves until nobody has asked for this time, nothing is under way and nobody is suspended, or until the
/// socket is not this helper's any more.
pub(crate) fn serve(listener: &UnixListener, path: &Path, office: &Arc<Office>, idle: Duration) {
    let connections = Arc::new(AtomicUsize::new(0));
    let ours = fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let mut used = Instant::now();
    loop {
        match listener.accept() {
            Ok((client, _)) => {
                used = Instant::now();
                start(client, office, &connections);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(listener, LOOK),
            // Too few file descriptors, for example: that may pass.
            Err(_) => thread::sleep(LOOK),
        }
        let is_busy = connections.load(Ordering::SeqCst) > 0 || !office.desk.is_empty();
        let is_ours = fs::metadata(path).map(|found| (found.dev(), found.ino())).ok() == ours;
        if is_busy {
            used = Instant::now();
        } else if !is_ours {
            // Somebody removed it; the next client starts another helper.
            return;
        } else if used.elapsed() >= idle {
            if !office.has_records() {
                let _removed = fs::remove_file(path);
                return;
            }
            used = Instant::now();
        }
    }
}

fn wait(listener: &UnixListener, limit: Duration) {
    let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure.
    unsafe { libc::poll(&raw mut poll, 1, limit.as_millis() as i32) };
}

fn start(client: UnixStream, office: &Arc<Office>, connections: &Arc<AtomicUsize>) {
    if connections.fetch_add(1, Ordering::SeqCst) >= MOST {
        connections.fetch_sub(1, Ordering::SeqCst);
        return;
    }
    let (office, count) = (Arc::clone(office), Arc::clone(connections));
    let started = thread::Builder::new().name("connection".to_owned()).spawn(move || {
        // The client sees that the connection ends.
        let _broken = catch_unwind(AssertUnwindSafe(|| converse(client, &office)));
        count.fetch_sub(1, Ordering::SeqCst);
    });
    if started.is_err() {
        connections.fetch_sub(1, Ordering::SeqCst);
    }
}

fn converse(mut client: UnixStream, office: &Arc<Office>) {
    let set = client.set_nonblocking(false).and(client.set_write_timeout(Some(TAKING)));
    if set.is_err() || !is_own(&client) {
        return;
    }
    if client.write_all(Greeting::line(std::process::id()).as_bytes()).is_err() {
        return;
    }
    let mut read = Vec::new();
    while let Some(line) = line(&mut client, &mut read) {
        let answer = Request::from_line(&line).and_then(|ask| reply(ask, office));
        let answer = answer.unwrap_or_else(|refusal| Answer::Refused { refusal });
        if client.write_all(answer.to_line().as_bytes()).is_err() {
            return;
        }
    }
}

fn reply(ask: Ask, office: &Arc<Office>) -> Result<Answer, Refusal> {
    match ask {
        Ask::Suspend(ask) => {
            let limit = limit(ask.lock_limit_ms, ask.limit_ms);
            operate(office, ask.target, limit, move |office, work, deadline| {
                office.suspend(&ask, work, deadline).map(Answer::Suspended)
            })
        }
        Ask::Resume(ask) => {
            let limit = limit(ask.wait_ms, ask.limit_ms);
            operate(office, ask.target, limit, move |office, work, deadline| {
                office.resume(&ask, work, deadline).map(Answer::Resumed)
            })
        }
        Ask::State { target } => operate(office, target, SILENCE, move |office, _, _| {
            office.state(target).map(Answer::State)
        }),
        Ask::List => Ok(Answer::List { processes: office.list() }),
        Ask::Try => {
            let this = Target { pid: std::process::id(), start_ticks: 0 };
            operate(office, this, TRIAL_LIMIT, |office, _, deadline| {
                office.try_driver(deadline).map(Answer::Tried)
            })
        }
        Ask::Devices => Ok(Answer::Devices { devices: Reading::now()?.numbers() }),
    }
}

fn limit(one_ms: u64, other_ms: u64) -> Duration {
    Duration::from_millis(one_ms.saturating_add(other_ms)).min(LONGEST)
}

/// Runs an operation in a thread of its own. One past its limit is left alone.
fn operate(
    office: &Arc<Office>,
    target: Target,
    limit: Duration,
    operation: impl FnOnce(&Office, &Arc<Work>, Instant) -> Result<Answer, Refusal> + Send + 'static,
) -> Result<Answer, Refusal> {
    let (work, office, deadline) = (Work::new(target), Arc::clone(office), Instant::now() + limit);
    let (sender, receiver) = mpsc::channel();
    let done = Arc::clone(&work);
    let name = format!("process {}", target.pid);
    let started = thread::Builder::new().name(name).spawn(move || {
        let run = || operation(&office, &done, deadline);
        let answer = catch_unwind(AssertUnwindSafe(run));
        let broken = || Refusal::Broken { why: "an operation panicked".to_owned() };
        // Nobody waits any more if it took too long.
        let _sent = sender.send(answer.unwrap_or_else(|_| Err(broken())));
    });
    started.map_err(|error| Refusal::Broken { why: format!("starting a thread: {error}") })?;
    receiver.recv_timeout(limit + GRACE).unwrap_or_else(|_| {
        work.leave();
        let limit_ms = limit.as_millis() as u64;
        Err(Refusal::Unfinished {
            pid: target.pid,
            step: work.step().unwrap_or(Step::Lock),
            limit_ms,
        })
    })
}

/// Reads a line, and no more than a line may have; `None` at the end of the connection.
fn line(client: &mut UnixStream, read: &mut Vec<u8>) -> Option<Vec<u8>> {
    let (deadline, mut part) = (Instant::now() + SILENCE, [0; 1024]);
    loop {
        if let Some(end) = read.iter().position(|byte| *byte == b'\n') {
            let rest = read.split_off(end + 1);
            return Some(std::mem::replace(read, rest));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || read.len() > LINE_MOST {
            return None;
        }
        client.set_read_timeout(Some(left)).ok()?;
        match client.read(&mut part) {
            Ok(0) => return None,
            Ok(count) => read.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

// Another user is refused by the folder, and by the kernel's word on who connected.
fn is_own(client: &UnixStream) -> bool {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: writes one structure of the given size.
    let code = unsafe {
        libc::getsockopt(client.as_raw_fd(), level, option, (&raw mut who).cast(), &raw mut size)
    };
    code == 0 && (who.uid == effective_user() || who.uid == 0)
}
