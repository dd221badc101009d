//! Streams and events.

use super::code::{INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use super::entry::entry;
use super::objects::{ContextId, Current, Event, Stream, Work};
use super::pointers::Out;
use super::tables;
use super::{capture_rules, queue};

/// The flag `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// Handles of streams look like addresses, as the driver's do.
const FIRST_HANDLE: u64 = 0x5712_0000;

entry! {
    fn cuStreamCreate(handle: Out<u64>, flags: u32) {
        let mut state = tables::lock();
        let Current { context, .. } = state.healthy()?;
        if flags > NON_BLOCKING {
            return Err(INVALID_VALUE);
        }
        let id = state.new_id();
        let given = state.stream_handles.pop().unwrap_or(FIRST_HANDLE + 16 * id);
        state.streams.insert(given, Stream::new(id, context, flags != NON_BLOCKING));
        handle.put(given)
    }

    // Its queued work still runs.
    fn cuStreamDestroy_v2(handle: u64) {
        let mut state = tables::lock();
        state.healthy()?;
        state.streams.remove(&handle).ok_or(INVALID_HANDLE)?;
        state.stream_handles.push(handle);
        Ok(())
    }

    fn cuStreamSynchronize(handle: u64) {
        let mut state = tables::lock();
        let Current { context, .. } = state.healthy()?;
        capture_rules::forbid_own(&mut state, context, handle)?;
        let last_op = state.stream(context, handle)?.last_op;
        queue::settle(state, &[last_op]).healthy().map(drop)
    }

    fn cuStreamQuery(handle: u64) {
        let mut state = tables::lock();
        let Current { context, .. } = state.healthy()?;
        capture_rules::forbid_own(&mut state, context, handle)?;
        let last_op = state.stream(context, handle)?.last_op;
        if state.ops.contains_key(&last_op) { Err(NOT_READY) } else { Ok(()) }
    }

    fn cuStreamGetId(handle: u64, id: Out<u64>) {
        let mut state = tables::lock();
        let Current { context, .. } = state.healthy()?;
        capture_rules::forbid_own(&mut state, context, handle)?;
        id.put(state.stream(context, handle)?.id)
    }

    fn cuEventCreate(handle: Out<u64>, flags: u32) {
        let mut state = tables::lock();
        let Current { context, .. } = state.healthy()?;
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        let id = state.new_id();
        state.events.insert(id, Event { context, ops: Vec::new() });
        handle.put(id)
    }

    fn cuEventDestroy_v2(event: u64) {
        let mut state = tables::lock();
        state.healthy()?;
        state.events.remove(&event).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuEventRecord(event: u64, handle: u64) {
        let mut state = tables::lock();
        let current = state.healthy()?;
        capture_rules::forbid_own(&mut state, current.context, handle)?;
        if state.event(event)?.context != current.context {
            return Err(INVALID_HANDLE);
        }
        let op = state.submit(current, handle, Work::Nothing)?;
        state.event(event)?.ops = Vec::from_iter(op);
        Ok(())
    }

    // Done when everything is that was submitted in the context so far, on any stream.
    fn cuCtxRecordEvent(context: u64, event: u64) {
        let (id, mut state) = (ContextId(context), tables::lock());
        state.healthy()?;
        state.contexts.get(&id).ok_or(INVALID_CONTEXT)?;
        capture_rules::forbid_any(&mut state, id)?;
        if state.event(event)?.context != id {
            return Err(INVALID_HANDLE);
        }
        let all = state.ops.iter().filter(|(_, op)| op.current.context == id);
        let all: Vec<u64> = all.map(|(id, _)| *id).collect();
        state.event(event)?.ops = all;
        Ok(())
    }

    fn cuEventQuery(event: u64) {
        let mut state = tables::lock();
        state.healthy()?;
        let ops = state.event(event)?.ops.clone();
        if ops.iter().any(|op| state.ops.contains_key(op)) { Err(NOT_READY) } else { Ok(()) }
    }

    fn cuEventSynchronize(event: u64) {
        let mut state = tables::lock();
        state.healthy()?;
        let ops = state.event(event)?.ops.clone();
        queue::settle(state, &ops).healthy().map(drop)
    }
}
