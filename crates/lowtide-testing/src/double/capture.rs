//! Captures: recording a stream's work into a graph, and what must not happen
//! meanwhile.
//!
//! A call that is unsafe during a capture answers 900 *and* invalidates the
//! capture, even from another thread: the trap that anything which sleeps or trims
//! in the background has to avoid. [`UNSAFE`] is the H200's list. A capture is of one
//! stream: recording or awaiting an event in it, which would fork it, is refused.

use std::cell::Cell;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use super::code::{
    CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD,
    ILLEGAL_STATE, INVALID_HANDLE, INVALID_VALUE,
};
use super::copy::Work;
use super::entry::{Out, Outcome, entry};
use super::state::{self, State};
use super::stream::Stream;

/// Calls that are unsafe during a capture.
const UNSAFE: &[&str] = &[
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuModuleUnload",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuEventQuery",
    "cuEventSynchronize",
];

const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;

thread_local! {
    /// What this thread asked for by `cuThreadExchangeStreamCaptureMode`.
    static THREAD_MODE: Cell<i32> = const { Cell::new(GLOBAL) };
}

/// A capture in progress, of the stream that holds it.
pub(super) struct Capture {
    mode: i32,
    thread: ThreadId,
    is_invalid: bool,
    work: Vec<Work>,
}

/// A graph, instantiated or not.
pub(super) struct Graph {
    pub(super) device: usize,
    is_executable: bool,
    work: Arc<[Work]>,
}

impl Capture {
    /// Adds work to the graph-to-be.
    pub(super) fn record(&mut self, work: Work) -> Outcome {
        if self.is_invalid {
            return Err(CAPTURE_INVALIDATED);
        }
        self.work.push(work);
        Ok(())
    }

    fn forbids_unsafe_calls(&self) -> bool {
        let is_ours = self.thread == thread::current().id();
        match (self.mode, THREAD_MODE.get()) {
            (RELAXED, _) | (_, RELAXED) => false,
            (GLOBAL, GLOBAL) => true,
            _ => is_ours,
        }
    }
}

/// Invalidates the captures that `hit` picks; an error if there was one.
fn invalidate(state: &mut State, error: i32, hit: impl Fn(&Stream, &Capture) -> bool) -> Outcome {
    let mut outcome = Ok(());
    for stream in state.streams.values_mut() {
        let is_hit = stream.capture.as_ref().is_some_and(|capture| hit(stream, capture));
        if let (true, Some(capture)) = (is_hit, &mut stream.capture) {
            capture.is_invalid = true;
            outcome = Err(error);
        }
    }
    outcome
}

/// The rule for unsafe calls, by name.
pub(super) fn on_call(name: &str) -> Outcome {
    if !UNSAFE.contains(&name) {
        return Ok(());
    }
    invalidate(&mut state::lock(), CAPTURE_UNSUPPORTED, |_, capture| capture.forbids_unsafe_calls())
}

/// The rule for calls that would wait for, or look at, a capturing stream itself.
pub(super) fn forbid_own(state: &mut State, device: usize, handle: u64) -> Outcome {
    match &mut state.stream(device, handle)?.capture {
        Some(capture) => {
            capture.is_invalid = true;
            Err(CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

/// The rule for `cuCtxSynchronize`, which waits for every stream.
pub(super) fn forbid_any(state: &mut State, device: usize) -> Outcome {
    invalidate(state, CAPTURE_UNSUPPORTED, |stream, _| stream.device == device)
}

/// The rule for the legacy stream, which waits for every blocking stream.
pub(super) fn forbid_implicit(state: &mut State, device: usize) -> Outcome {
    invalidate(state, CAPTURE_IMPLICIT, |stream, _| stream.device == device && stream.is_blocking)
}

entry! {
    fn cuStreamBeginCapture_v2(handle: u64, mode: i32) {
        let mut state = state::lock();
        let device = state.healthy()?;
        if !(GLOBAL..=RELAXED).contains(&mode) {
            return Err(INVALID_VALUE);
        }
        if !state.streams.contains_key(&handle) {
            state.stream(device, handle)?;
            return Err(CAPTURE_UNSUPPORTED);
        }
        let stream = state.stream(device, handle)?;
        if stream.capture.is_some() {
            return Err(ILLEGAL_STATE);
        }
        let thread = thread::current().id();
        stream.capture = Some(Capture { mode, thread, is_invalid: false, work: Vec::new() });
        Ok(())
    }

    // It is over, whoever asked.
    fn cuStreamEndCapture(handle: u64, graph: Out<u64>) {
        let mut state = state::lock();
        let device = state.healthy()?;
        let stream = state.stream(device, handle)?;
        let capture = stream.capture.take().ok_or(ILLEGAL_STATE)?;
        if capture.mode != RELAXED && capture.thread != thread::current().id() {
            return Err(CAPTURE_WRONG_THREAD);
        }
        graph.put(0)?;
        if capture.is_invalid {
            return Err(CAPTURE_INVALIDATED);
        }
        let id = state.new_id();
        let work = capture.work.into();
        state.graphs.insert(id, Graph { device, is_executable: false, work });
        graph.put(id)
    }

    fn cuStreamIsCapturing(handle: u64, status: Out<i32>) {
        let mut state = state::lock();
        let device = state.healthy()?;
        status.put(match &state.stream(device, handle)?.capture {
            None => 0,
            Some(capture) if capture.is_invalid => 2,
            Some(_) => 1,
        })
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<i32>) {
        let wanted = mode.get()?;
        if ![GLOBAL, THREAD_LOCAL, RELAXED].contains(&wanted) {
            return Err(INVALID_VALUE);
        }
        mode.put(THREAD_MODE.replace(wanted))
    }

    fn cuGraphInstantiateWithFlags(exec: Out<u64>, graph: u64, _flags: u64) {
        let mut state = state::lock();
        state.healthy()?;
        let source = state.graphs.get(&graph).filter(|graph| !graph.is_executable);
        let source = source.ok_or(INVALID_HANDLE)?;
        let (device, work) = (source.device, Arc::clone(&source.work));
        let id = state.new_id();
        state.graphs.insert(id, Graph { device, is_executable: true, work });
        exec.put(id)
    }

    fn cuGraphDestroy(graph: u64) {
        destroy(graph, false)
    }

    fn cuGraphExecDestroy(exec: u64) {
        destroy(exec, true)
    }

    fn cuGraphLaunch(exec: u64, handle: u64) {
        let mut state = state::lock();
        let device = state.healthy()?;
        let found = state.graphs.get(&exec).filter(|graph| graph.is_executable);
        let work = Work::Graph(Arc::clone(&found.ok_or(INVALID_HANDLE)?.work));
        state.submit(device, handle, work).map(drop)
    }
}

fn destroy(id: u64, is_executable: bool) -> Outcome {
    let mut state = state::lock();
    let kind = state.graphs.get(&id).filter(|graph| graph.is_executable == is_executable);
    kind.ok_or(INVALID_HANDLE)?;
    state.graphs.remove(&id);
    Ok(())
}
