//! Streams and events: work that runs late, on threads, in the order it must.
//!
//! An operation never runs at the call that submits it. It starts once everything
//! it comes after is done and, unless somebody waits for it, only after a delay
//! (`late_us`): code that forgot to wait sees memory as it was. Each stream has a
//! thread. Order is a list of operations that come before: the stream's last one and,
//! between the legacy stream and blocking streams, each other's.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use super::capture::{self, Capture};
use super::code::{INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use super::copy::Work;
use super::entry::{Out, Outcome, entry};
use super::state::{self, CHANGED, Locked, State};
use super::{faults, machine};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_LEGACY`, another name of the null stream.
const LEGACY: u64 = 1;
/// Handles of streams look like addresses, as the driver's do.
const FIRST_HANDLE: u64 = 0x5712_0000;

pub(super) struct Stream {
    /// Never given again, unlike the handle.
    id: u64,
    pub(super) device: usize,
    pub(super) is_blocking: bool,
    /// The operation submitted last, done or not.
    last_op: u64,
    worker: Sender<u64>,
    pub(super) capture: Option<Capture>,
}

/// An operation that is not done.
pub(super) struct Op {
    device: usize,
    /// Taken by the worker that runs it.
    work: Option<Work>,
    after: Vec<u64>,
    due: Instant,
    is_awaited: bool,
}

pub(super) struct Event {
    pub(super) device: usize,
    /// The operation that records it, once there was one.
    op: Option<u64>,
}

impl Stream {
    /// A stream and its thread, which ends when the stream is gone and its work done.
    pub(super) fn new(id: u64, device: usize, is_blocking: bool) -> Stream {
        let (worker, work) = mpsc::channel();
        let name = format!("double-stream-{id}");
        let thread = std::thread::Builder::new().name(name).spawn(move || run_stream(&work));
        thread.expect("a thread for a stream");
        Stream { id, device, is_blocking, last_op: 0, worker, capture: None }
    }
}

fn run_stream(work: &Receiver<u64>) {
    for id in work {
        let mut state = wait_for_start(state::lock(), id);
        let Some(op) = state.ops.get_mut(&id) else { continue };
        let (device, work) = (op.device, op.work.take());
        let is_lost = state.lost.is_some();
        drop(state);
        // After an error nothing more runs, but everything ends.
        let result = match &work {
            Some(work) if !is_lost => work.run(device),
            _ => Ok(()),
        };
        let mut state = state::lock();
        if let Err(error) = result {
            state.lost.get_or_insert(error);
        }
        state.ops.remove(&id);
        if let Some(mine) = machine::get().mine() {
            mine.busy.fetch_sub(1, SeqCst);
        }
        CHANGED.notify_all();
    }
}

fn wait_for_start(mut state: Locked, id: u64) -> Locked {
    loop {
        let Some(op) = state.ops.get(&id) else { return state };
        let is_free = !op.after.iter().any(|before| state.ops.contains_key(before));
        let early = op.due.saturating_duration_since(Instant::now());
        if is_free && (op.is_awaited || early.is_zero()) {
            return state;
        }
        let pause = if is_free { early } else { Duration::MAX };
        let woken = CHANGED.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner);
        state = woken.0;
    }
}

impl State {
    /// The stream behind a handle of the current context.
    pub(super) fn stream(&mut self, device: usize, handle: u64) -> Outcome<&mut Stream> {
        let stream = match handle {
            0 | LEGACY => self.contexts[device].legacy.as_mut(),
            _ => self.streams.get_mut(&handle),
        };
        stream.filter(|stream| stream.device == device).ok_or(INVALID_HANDLE)
    }

    /// Puts work on a stream, or into the capture that the stream is in. Gives the
    /// operation, if there is one.
    pub(super) fn submit(
        &mut self,
        device: usize,
        handle: u64,
        work: Work,
    ) -> Outcome<Option<u64>> {
        let stream = self.stream(device, handle)?;
        if let Some(capture) = &mut stream.capture {
            return capture.record(work).map(|()| None);
        }
        let is_legacy = handle <= LEGACY;
        let mut after = vec![stream.last_op];
        if is_legacy {
            capture::forbid_implicit(self, device)?;
            let blocking = self.streams.values().filter(|s| s.device == device && s.is_blocking);
            after.extend(blocking.map(|stream| stream.last_op));
        } else if stream.is_blocking {
            after.push(self.stream(device, 0)?.last_op);
        }
        after.retain(|before| self.ops.contains_key(before));

        let id = self.new_id();
        let due = Instant::now() + Duration::from_micros(faults::settings().late_us);
        self.ops.insert(id, Op { device, work: Some(work), after, due, is_awaited: false });
        if let Some(mine) = machine::get().mine() {
            mine.busy.fetch_add(1, SeqCst);
        }
        let stream = self.stream(device, handle)?;
        stream.last_op = id;
        stream.worker.send(id).expect("the worker lives as long as its stream");
        Ok(Some(id))
    }

    /// Lets these operations, and what they come after, start without delay.
    fn hasten(&mut self, mut ids: Vec<u64>) {
        while let Some(id) = ids.pop() {
            if let Some(op) = self.ops.get_mut(&id).filter(|op| !op.is_awaited) {
                op.is_awaited = true;
                ids.extend(&op.after);
            }
        }
        CHANGED.notify_all();
    }

    fn event(&mut self, handle: u64) -> Outcome<&mut Event> {
        self.events.get_mut(&handle).ok_or(INVALID_HANDLE)
    }
}

/// Waits until these operations are done.
pub(super) fn settle(mut state: Locked, ids: &[u64]) -> Locked {
    state.hasten(ids.to_vec());
    while ids.iter().any(|id| state.ops.contains_key(id)) {
        state = state::wait(state);
    }
    state
}

/// Waits until everything submitted to the device so far is done.
pub(super) fn settle_device(state: Locked, device: usize) -> Locked {
    let all = state.ops.iter().filter(|(_, op)| op.device == device);
    let ids: Vec<u64> = all.map(|(id, _)| *id).collect();
    settle(state, &ids)
}

entry! {
    fn cuStreamCreate(handle: Out<u64>, flags: u32) {
        let mut state = state::lock();
        let device = state.healthy()?;
        if flags > NON_BLOCKING {
            return Err(INVALID_VALUE);
        }
        let id = state.new_id();
        let given = state.stream_handles.pop().unwrap_or(FIRST_HANDLE + 16 * id);
        state.streams.insert(given, Stream::new(id, device, flags != NON_BLOCKING));
        handle.put(given)
    }

    // Its queued work still runs.
    fn cuStreamDestroy_v2(handle: u64) {
        let mut state = state::lock();
        state.healthy()?;
        state.streams.remove(&handle).ok_or(INVALID_HANDLE)?;
        state.stream_handles.push(handle);
        Ok(())
    }

    fn cuStreamSynchronize(handle: u64) {
        let mut state = state::lock();
        let device = state.healthy()?;
        capture::forbid_own(&mut state, device, handle)?;
        let last_op = state.stream(device, handle)?.last_op;
        settle(state, &[last_op]).healthy().map(drop)
    }

    fn cuStreamQuery(handle: u64) {
        let mut state = state::lock();
        let device = state.healthy()?;
        capture::forbid_own(&mut state, device, handle)?;
        let last_op = state.stream(device, handle)?.last_op;
        if state.ops.contains_key(&last_op) { Err(NOT_READY) } else { Ok(()) }
    }

    fn cuStreamGetId(handle: u64, id: Out<u64>) {
        let mut state = state::lock();
        let device = state.healthy()?;
        capture::forbid_own(&mut state, device, handle)?;
        id.put(state.stream(device, handle)?.id)
    }

    fn cuEventCreate(handle: Out<u64>, flags: u32) {
        let mut state = state::lock();
        let device = state.healthy()?;
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        let id = state.new_id();
        state.events.insert(id, Event { device, op: None });
        handle.put(id)
    }

    fn cuEventDestroy_v2(event: u64) {
        let mut state = state::lock();
        state.healthy()?;
        state.events.remove(&event).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuEventRecord(event: u64, handle: u64) {
        let mut state = state::lock();
        let device = state.healthy()?;
        capture::forbid_own(&mut state, device, handle)?;
        if state.event(event)?.device != device {
            return Err(INVALID_HANDLE);
        }
        let op = state.submit(device, handle, Work::Nothing)?;
        state.event(event)?.op = op;
        Ok(())
    }

    fn cuEventQuery(event: u64) {
        let mut state = state::lock();
        state.healthy()?;
        let op = state.event(event)?.op;
        if op.is_some_and(|op| state.ops.contains_key(&op)) { Err(NOT_READY) } else { Ok(()) }
    }

    fn cuEventSynchronize(event: u64) {
        let mut state = state::lock();
        state.healthy()?;
        let op = state.event(event)?.op;
        settle(state, op.as_slice()).healthy().map(drop)
    }
}
