//! Captures and graphs: recording a stream's work, and launching it again.

use std::sync::Arc;
use std::thread;

use super::capture_rules::{self, GLOBAL, RELAXED, THREAD_LOCAL};
use super::code::{
    CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, ILLEGAL_STATE, INVALID_HANDLE,
    INVALID_VALUE,
};
use super::entry::entry;
use super::objects::{Capture, Current, Graph, Work};
use super::pointers::{CallResult, Out};
use super::tables;

entry! {
    fn cuStreamBeginCapture_v2(handle: u64, mode: i32) {
        let mut state = tables::lock();
        let Current { context, .. } = state.healthy()?;
        if !(GLOBAL..=RELAXED).contains(&mode) {
            return Err(INVALID_VALUE);
        }
        if !state.streams.contains_key(&handle) {
            state.stream(context, handle)?;
            return Err(CAPTURE_UNSUPPORTED);
        }
        let stream = state.stream(context, handle)?;
        if stream.capture.is_some() {
            return Err(ILLEGAL_STATE);
        }
        let thread = thread::current().id();
        stream.capture = Some(Capture { mode, thread, is_invalid: false, work: Vec::new() });
        Ok(())
    }

    // The capture is over, whichever thread ends it.
    fn cuStreamEndCapture(handle: u64, graph: Out<u64>) {
        let mut state = tables::lock();
        let Current { context, .. } = state.healthy()?;
        let stream = state.stream(context, handle)?;
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
        state.graphs.insert(id, Graph { context, is_executable: false, work });
        graph.put(id)
    }

    fn cuStreamIsCapturing(handle: u64, status: Out<i32>) {
        let mut state = tables::lock();
        let Current { context, .. } = state.healthy()?;
        status.put(match &state.stream(context, handle)?.capture {
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
        mode.put(capture_rules::exchange_mode(wanted))
    }

    fn cuGraphInstantiateWithFlags(exec: Out<u64>, graph: u64, _flags: u64) {
        let mut state = tables::lock();
        state.healthy()?;
        let source = state.graphs.get(&graph).filter(|graph| !graph.is_executable);
        let source = source.ok_or(INVALID_HANDLE)?;
        let (context, work) = (source.context, Arc::clone(&source.work));
        let id = state.new_id();
        state.graphs.insert(id, Graph { context, is_executable: true, work });
        exec.put(id)
    }

    fn cuGraphDestroy(graph: u64) {
        destroy(graph, false)
    }

    fn cuGraphExecDestroy(exec: u64) {
        destroy(exec, true)
    }

    fn cuGraphLaunch(exec: u64, handle: u64) {
        let mut state = tables::lock();
        let current = state.healthy()?;
        let found = state.graphs.get(&exec).filter(|graph| graph.is_executable);
        let work = Work::Graph(Arc::clone(&found.ok_or(INVALID_HANDLE)?.work));
        state.submit(current, handle, work).map(drop)
    }
}

fn destroy(id: u64, is_executable: bool) -> CallResult {
    let mut state = tables::lock();
    let kind = state.graphs.get(&id).filter(|graph| graph.is_executable == is_executable);
    kind.ok_or(INVALID_HANDLE)?;
    state.graphs.remove(&id);
    Ok(())
}
