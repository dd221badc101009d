//! Allocations of this process that others may open.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lowtide_device::process_tree;
use lowtide_proto::descriptors::{apart, send};
use lowtide_proto::line::LineReader;
use lowtide_proto::{LINE_MOST, ShareAnswer, ShareAsk};
use lowtide_types::{Bytes, DeviceId};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

use super::handle::{MemoryHandle, Place, ProcessName};
use super::link;
use crate::driver::calls;
use crate::driver::codes::{INVALID_VALUE, UNKNOWN};
use crate::gate;
use crate::memory::allocations::Memory;
use crate::memory::chunks::RetainedChunk;
use crate::say::say;
use crate::settings;

/// The time that a client has to write a line, and to read the answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(10);

/// Allocations of this process that others may open.
#[derive(Default)]
pub(crate) struct Exports {
    token: OnceLock<[u64; 2]>,
    place: OnceLock<Place>,
    open: Mutex<Open>,
    connections: AtomicU64,
}

/// What is open.
#[derive(Default)]
struct Open {
    /// By the allocation's number and that of the connection.
    table: BTreeMap<(u64, u64), Opened>,
    /// Whether the memory leaves the devices, or is off them. Nothing is opened then.
    is_closed: bool,
}

/// The process that has an allocation open, and how often.
struct Opened {
    pid: u32,
    /// Whether it closes it when it sleeps: a process of the same run.
    is_kin: bool,
    count: u32,
}

/// An allocation that is being opened: its chunks that have not been given yet.
struct Opening {
    allocation: u64,
    bytes: Bytes,
    chunks: Vec<RetainedChunk>,
    is_kin: bool,
}

impl Exports {
    /// Returns the handle of the allocation that an address is in; `None` if it is not memory that can sleep.
    pub(crate) fn handle_at(&self, memory: &Memory, at: u64) -> Option<[u8; 64]> {
        let found = memory.around(at)?;
        let DeviceId::Cuda(ordinal) = found.context.device.id() else { return None };
        let token = *self.token.get_or_init(|| {
            say!("memory of this process can be opened by processes under `lowtide run` only");
            random()
        });
        let (process, uuid) = (ProcessName::current(), calls::uuid(ordinal)?);
        let place = self.place.get().copied().unwrap_or_default();
        Some(MemoryHandle { process, token, allocation: found.id, uuid, place }.to_bytes())
    }

    /// Opens the socket whose number is in the handles.
    pub(crate) fn listen(&self) -> io::Result<UnixListener> {
        let place = Place(random()[0] as u32);
        let address = SocketAddr::from_abstract_name(place.name())?;
        let listener = apart(UnixListener::bind_addr(&address)?)?;
        self.place.get_or_init(|| place);
        Ok(listener)
    }

    /// Returns whether a handle is one of this process.
    pub(crate) fn made(&self, handle: &MemoryHandle) -> bool {
        self.token.get() == Some(&handle.token)
    }

    /// Returns why the process cannot sleep, alone or with its family: who has memory of it open that it has not freed.
    pub(crate) fn obstacles(&self, memory: &Memory, is_with_family: bool) -> Vec<String> {
        obstacles(&self.open(), memory, is_with_family)
    }

    /// Gives no more memory to other processes, if none has some open.
    ///
    /// # Errors
    /// Who has some open.
    pub(crate) fn close(&self, memory: &Memory) -> Result<(), String> {
        let mut open = self.open();
        let names = obstacles(&open, memory, false);
        open.is_closed = names.is_empty();
        if open.is_closed { Ok(()) } else { Err(names.join(", ")) }
    }

    /// Gives memory to other processes again: all of it is on the devices.
    pub(crate) fn reopen(&self) {
        self.open().is_closed = false;
    }

    /// Serves an agent that opens memory of this process, until its connection or its process ends. Its children may
    /// have the connection too, and live longer.
    pub(crate) fn serve(&self, memory: &Memory, client: &UnixStream) {
        let connection = self.connections.fetch_add(1, Relaxed);
        let Ok(peer) = rustix::net::sockopt::socket_peercred(client) else { return };
        let pid = peer.pid.as_raw_nonzero().get().cast_unsigned();
        let process = process_tree::open(pid).and_then(|process| apart(process).ok());
        let answered = self.answer_all(memory, client, process.as_ref(), (connection, pid));
        if answered.is_err() {
            // It cannot ask any more, and may still have memory open.
            let _ended = wait(client, PollFlags::HUP, process.as_ref());
        }
        self.open().table.retain(|(_, of), _| *of != connection);
    }

    /// Answers until the client has ended.
    fn answer_all(
        &self,
        memory: &Memory,
        client: &UnixStream,
        process: Option<&OwnedFd>,
        (connection, pid): (u64, u32),
    ) -> io::Result<()> {
        client.set_write_timeout(Some(CLIENT_LIMIT))?;
        send(client, &ShareAnswer::Ready.to_line(), &[])?;
        let mut lines = LineReader::default();
        let (bytes, chunks) = (Bytes::ZERO, Vec::new());
        let mut opening = Opening { allocation: 0, bytes, chunks, is_kin: false };
        loop {
            if !lines.has_line() && wait(client, PollFlags::IN, process)? {
                return Ok(());
            }
            let line = lines.read(client, LINE_MOST, Instant::now() + CLIENT_LIMIT)?;
            let most = match serde_json::from_slice(&line)? {
                ShareAsk::Close { allocation } => {
                    self.closed((allocation, connection));
                    continue;
                }
                ShareAsk::Open { token, allocation, most, family } => {
                    let is_kin = family.is_some() && family == settings::family();
                    let key = (allocation, connection);
                    let opened = |open: &mut Open| {
                        let new = || Opened { pid, is_kin, count: 0 };
                        open.table.entry(key).or_insert_with(new).count += 1;
                    };
                    match self.begin(memory, token, (allocation, is_kin), opened) {
                        Ok(begun) => opening = begun,
                        Err((code, reason)) => {
                            let answer = ShareAnswer::Refused { code, reason };
                            send(client, &answer.to_line(), &[])?;
                            continue;
                        }
                    }
                    most
                }
                ShareAsk::More { most } => most,
            };
            let (answer, descriptors) = opening.next(most);
            if let ShareAnswer::Refused { .. } = answer {
                self.closed((opening.allocation, connection));
            }
            send(client, &answer.to_line(), &descriptors)?;
        }
    }

    /// Wakes the process, and takes a reference to each chunk of an allocation, so that the memory is there whatever
    /// the program does meanwhile. The process cannot fall asleep before `opened` has noted that.
    ///
    /// A process of the same run, which may be waking and be waited for by this one, gets it as soon as it is on the
    /// device.
    fn begin(
        &self,
        memory: &Memory,
        token: [u64; 2],
        (allocation, is_kin): (u64, bool),
        opened: impl FnOnce(&mut Open),
    ) -> Result<Opening, (i32, String)> {
        let gone = || (INVALID_VALUE, "the memory is not there any more".to_owned());
        if self.token.get() != Some(&token) {
            return Err(gone());
        }
        let asleep = |code| (code, "the process that has the memory could not be woken".to_owned());
        let mut open = self.open();
        let _pass = if !is_kin || open.is_closed {
            drop(open);
            let pass = gate::enter().map_err(asleep)?;
            open = self.open();
            Some(pass)
        } else {
            None
        };
        let refused = |error: lowtide_device::Error| (UNKNOWN, error.to_string());
        let found = memory.retain_chunks(allocation).ok_or_else(gone)?;
        let (bytes, mut chunks) = found.map_err(refused)?;
        chunks.reverse();
        opened(&mut open);
        Ok(Opening { allocation, bytes, chunks, is_kin })
    }

    /// Notes that a connection has closed an allocation once.
    fn closed(&self, key: (u64, u64)) {
        if let Entry::Occupied(mut known) = self.open().table.entry(key) {
            known.get_mut().count -= 1;
            if known.get().count == 0 {
                known.remove();
            }
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Opening {
    /// Takes the next chunks, as many as the client and this process may have files open.
    fn next(&mut self, most: usize) -> (ShareAnswer, Vec<OwnedFd>) {
        let (mut chunks, mut descriptors) = (Vec::new(), Vec::new());
        let most = most.min(link::spare_files()).max(1);
        while let Some(chunk) = self.chunks.pop_if(|_| descriptors.len() < most) {
            match chunk.export() {
                Ok(descriptor) => descriptors.push(descriptor),
                Err(error) => {
                    self.chunks.clear();
                    let (code, reason) = (UNKNOWN, error.to_string());
                    return (ShareAnswer::Refused { code, reason }, Vec::new());
                }
            }
            chunks.push(chunk.bytes);
        }
        let left = self.chunks.iter().map(|chunk| chunk.bytes).sum();
        (ShareAnswer::Chunks { bytes: self.bytes, chunks, left, is_kin: self.is_kin }, descriptors)
    }
}

/// Returns who has memory open that the process has not freed; without its family, if it sleeps with that.
fn obstacles(open: &Open, memory: &Memory, is_with_family: bool) -> Vec<String> {
    let mut processes = BTreeMap::<u32, Bytes>::new();
    for ((allocation, _), opened) in &open.table {
        if let Some(found) =
            memory.by_id(*allocation).filter(|_| !(opened.is_kin && is_with_family))
        {
            *processes.entry(opened.pid).or_default() += Bytes(found.bytes);
        }
    }
    let name = |(pid, bytes)| format!("process {pid} has {bytes} open (cuIpcOpenMemHandle)");
    processes.into_iter().map(name).collect()
}

/// Waits for something of a client; true if the client has ended.
fn wait(client: &UnixStream, what: PollFlags, process: Option<&OwnedFd>) -> io::Result<bool> {
    let mut all = vec![PollFd::new(client, what)];
    all.extend(process.map(|process| PollFd::new(process, PollFlags::IN)));
    retry_on_intr(|| poll(&mut all, None))?;
    let is_over = all.get(1).is_some_and(|process| !process.revents().is_empty());
    Ok(is_over || all[0].revents().contains(PollFlags::HUP))
}

/// Returns a secret that no other process guesses.
fn random() -> [u64; 2] {
    let mut bytes = [[0; 8]; 2];
    // The kernel gives random bytes once it has started; a handle without them is one that nobody can open.
    let _filled =
        rustix::rand::getrandom(bytes.as_flattened_mut(), rustix::rand::GetRandomFlags::empty());
    bytes.map(u64::from_ne_bytes)
}
