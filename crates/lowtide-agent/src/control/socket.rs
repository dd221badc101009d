//! The sockets on which other processes of this user ask the agent: one in their folder, for commands, and one without a
//! file, for those that have a handle. The first is made again where somebody removed it.
//!
//! One connection at a time, one line each way. A client that does not write or read in time is left
//! alone. Another user is refused by the folder, which is open to this user only, and by the kernel's
//! answer about the client.

use std::io::{ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use lowtide_device::private_files::PrivateFolder;
use lowtide_proto::descriptors::apart;
use lowtide_proto::line::{LineReader, SocketFile, at_socket, is_from_this_user};
use lowtide_proto::{Answer, Ask, LINE_MOST, LimitStatus, Request, socket_name};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::{outside, worker};
use crate::room::limit::{self, Limit};
use crate::say::say;
use crate::sharing::spare_files;
use crate::sleep::agent::{self, Agent};
use crate::{gate, obstacles, threads};

/// The time that a client has to write its line, and to read the answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(1);

/// The time between two looks at whether the socket is still in the folder.
const LOOK: Duration = Duration::from_secs(5);

/// Opens the sockets and starts the thread that serves them.
pub(crate) fn start(agent: &Agent) {
    let named = listen();
    if let Err(error) = &named {
        say!("nobody can ask this process to sleep: {error}");
    }
    // Without it handles lead here by the folder alone.
    let placed = agent.exports.listen().ok();
    let served = threads::spawn("lowtide-control", move || serve(placed.as_ref(), named.ok()));
    if let Err(error) = served {
        say!("nobody can ask this process to sleep: {error}");
    }
}

fn listen() -> io::Result<(UnixListener, SocketFile)> {
    let folder = PrivateFolder::of_user().map_err(io::Error::other)?;
    let namespace = fs::read_link("/proc/thread-self/ns/pid")?;
    let name = socket_name(&namespace.to_string_lossy(), std::process::id());
    sweep(&folder, &name);
    // A process of this number that ended has left it.
    folder.remove(&name).map_err(io::Error::other)?;
    let path = folder.path().join(name);
    let listener = apart(at_socket(&path, |path| UnixListener::bind(path))?)?;
    Ok((listener, SocketFile::of(path)))
}

/// Removes the sockets of processes of this PID namespace that have ended.
fn sweep(folder: &PrivateFolder, own: &str) {
    let namespace = own.trim_end_matches(|letter: char| letter.is_ascii_digit());
    for name in folder.names().unwrap_or_default() {
        let pid = name.to_str().and_then(|name| name.strip_prefix(namespace));
        if pid.is_some_and(|pid| !fs::exists(format!("/proc/{pid}")).unwrap_or(true)) {
            // What cannot be removed stays for the next program.
            let _removed = folder.remove(&name.to_string_lossy());
        }
    }
}

fn serve(placed: Option<&UnixListener>, mut named: Option<(UnixListener, SocketFile)>) {
    loop {
        if !named.as_ref().is_some_and(|(_, file)| file.is_there()) {
            // Somebody cleaned up, or there was no room.
            named = listen().ok();
        }
        let sockets = placed.into_iter().chain(named.as_ref().map(|(listener, _)| listener));
        let sockets: Vec<&UnixListener> = sockets.collect();
        let mut all: Vec<PollFd<'_>> =
            sockets.iter().map(|socket| PollFd::new(*socket, PollFlags::IN)).collect();
        if poll(&mut all, Timespec::try_from(LOOK).ok().as_ref()).is_err() {
            thread::sleep(CLIENT_LIMIT);
        }
        for (socket, polled) in sockets.into_iter().zip(&all) {
            if !polled.revents().is_empty() {
                accept(socket);
            }
        }
    }
}

fn accept(socket: &UnixListener) {
    match socket.accept().and_then(|(client, _)| apart(client)) {
        Ok(client) => {
            if std::panic::catch_unwind(|| answer(client)).is_err() {
                obstacles::add_panic();
            }
        }
        // Too few file descriptors, for example: that may pass.
        Err(_) => thread::sleep(CLIENT_LIMIT),
    }
}

fn answer(mut client: UnixStream) {
    // A socket of ours takes it.
    let _set = client.set_write_timeout(Some(CLIENT_LIMIT));
    if !is_from_this_user(&client) {
        return;
    }
    let mut lines = LineReader::default();
    let line = match lines.read(&client, LINE_MOST, Instant::now() + CLIENT_LIMIT) {
        Ok(line) => line,
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData) => {
            lines.into_rest()
        }
        Err(_) => return,
    };
    let answer = match Request::from_line(&line) {
        Ok(Request { ask: Ask::Share, .. }) if agent::get().is_some() => return share(client),
        Ok(Request { ask, .. }) => with_rest(reply(ask)),
        Err(unreadable) => Answer::Refused { reason: unreadable.to_string() },
    };
    // A client that stopped reading has no use for it.
    let _sent = client.write_all(answer.to_line().as_bytes());
}

/// Gives a connection to a thread of its own, which serves it for as long as memory is open by it. The program keeps
/// some files for itself.
fn share(mut client: UnixStream) {
    if spare_files() == 0 {
        let reason = "too many processes have its memory open for its limit of files".to_owned();
        // A client that stopped reading has no use for it.
        let _sent = client.write_all(Answer::Refused { reason }.to_line().as_bytes());
        return;
    }
    let serve = move || {
        if let Some(agent) = agent::get()
            && std::panic::catch_unwind(AssertUnwindSafe(|| {
                agent.exports.serve(&agent.memory, &client);
            }))
            .is_err()
        {
            obstacles::add_panic();
        }
    };
    if let Err(error) = threads::spawn("lowtide-share", serve) {
        say!("another process cannot open memory of this one: {error}");
    }
}

/// Adds what failed last and the limits of the program's memory to its status.
fn with_rest(mut answer: Answer) -> Answer {
    if let Answer::Status(status) = &mut answer {
        status.failed = worker::last_failure();
    }
    let (Answer::Status(status), Some(agent), Some(limits)) =
        (&mut answer, agent::get(), limit::get())
    else {
        return answer;
    };
    // A suspended process is not asked, and its devices neither.
    let Some(_pass) = gate::try_enter_quietly() else { return answer };
    let mut contexts = agent.memory.contexts();
    contexts.sort_by_key(|one| one.device.id());
    contexts.dedup_by_key(|one| one.device.id());
    status.limits.extend(contexts.iter().filter_map(|one| {
        let (device, free) = (one.device.id(), one.device.usage().ok()?.free);
        let limit = limits.of(device, false)?;
        let Limit { own, kin, cap, life } = limit;
        Some(LimitStatus { device, own, kin, cap, life, told_free: limit.told(free), free })
    }));
    answer
}

fn reply(ask: Ask) -> Answer {
    match (ask, agent::get()) {
        (_, None) => Answer::Refused { reason: "the agent is not ready yet".to_owned() },
        (Ask::Status, Some(agent)) => Answer::Status(agent.status()),
        (Ask::Why, Some(_)) => outside::ask(),
        (ask, Some(_)) => worker::ask(ask),
    }
}
