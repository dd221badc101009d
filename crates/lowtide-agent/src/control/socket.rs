//! The socket on which other processes of this user ask the agent.
//!
//! One connection at a time, one line each way. A client that does not write or read in time is left
//! alone. Another user is refused by the folder, which is open to this user only, and by the kernel's
//! word on who connected.
#![allow(unsafe_code, reason = "asks the kernel who connected")]

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Once;
use std::time::Duration;
use std::{fs, io, thread};

use lowtide_device::private_files::{PrivateFolder, effective_user};
use lowtide_proto::{Answer, Ask, LINE_MOST, Request, socket_name};

use crate::control::worker::{self, Job};
use crate::say::say;
use crate::sleep::{agent, obstacles};

/// The time that a client has to write its line, and to read the answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Opens the socket and starts the thread that serves it, once.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // SAFETY: the function only stores to statics.
        unsafe { libc::pthread_atfork(None, None, Some(agent::after_fork)) };
        let served =
            listen().and_then(|socket| worker::spawn("lowtide-control", move || serve(&socket)));
        if let Err(error) = served {
            say!("nobody can ask this process to sleep: {error}");
        }
    });
}

fn listen() -> io::Result<UnixListener> {
    let folder = PrivateFolder::of_user().map_err(io::Error::other)?;
    let namespace = fs::read_link("/proc/self/ns/pid")?;
    let name = socket_name(&namespace.to_string_lossy(), std::process::id());
    let path = folder.path().join(name);
    // A process of this number that ended has left it.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(path)
}

fn serve(socket: &UnixListener) {
    for client in socket.incoming() {
        match client {
            Ok(client) => {
                if std::panic::catch_unwind(|| answer(client)).is_err() {
                    obstacles::add("a panic of the agent");
                }
            }
            // Too few file descriptors, for example: that may pass.
            Err(_) => thread::sleep(PATIENCE),
        }
    }
}

fn answer(mut client: UnixStream) {
    // A socket of ours takes both.
    let _set = client.set_read_timeout(Some(PATIENCE));
    let _set = client.set_write_timeout(Some(PATIENCE));
    if user_of(&client).is_none_or(|user| user != effective_user() && user != 0) {
        return;
    }
    let Ok(line) = line(&mut client) else { return };
    let answer = match Request::from_line(&line) {
        Ok(Request { ask, .. }) => reply(ask),
        Err(unreadable) => Answer::Refused { reason: unreadable.to_string() },
    };
    // A client that stopped reading has no use for it.
    let _sent = client.write_all(answer.to_line().as_bytes());
}

fn reply(ask: Ask) -> Answer {
    let Some(agent) = agent::get() else {
        return Answer::Refused { reason: "the agent is not ready yet".to_owned() };
    };
    match ask {
        Ask::Status => Answer::Status(agent.status()),
        Ask::Sleep => agent.ask(Job::Sleep),
        Ask::Wake => agent.ask(Job::Wake),
        Ask::Suspend => agent.ask(Job::Suspend),
        Ask::Resume => agent.ask(Job::Resume),
        Ask::Release { to } => agent.ask(Job::Release(to)),
    }
}

/// Reads a line, and no more than a line may have.
fn line(client: &mut UnixStream) -> Result<Vec<u8>, Unread> {
    let mut line = Vec::new();
    let mut part = [0; 512];
    while line.len() <= LINE_MOST {
        let count = client.read(&mut part).map_err(|_| Unread)?;
        if count == 0 {
            break;
        }
        line.extend_from_slice(&part[..count]);
        if line.contains(&b'\n') {
            break;
        }
    }
    Ok(line)
}

/// A client that went away, or wrote nothing in time.
struct Unread;

fn user_of(client: &UnixStream) -> Option<u32> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: writes one structure of the given size.
    let code = unsafe {
        libc::getsockopt(client.as_raw_fd(), level, option, (&raw mut who).cast(), &raw mut size)
    };
    (code == 0).then_some(who.uid)
}
