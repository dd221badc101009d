//! Work that runs late, on threads, in the order it must.
//!
//! An operation never runs at the call that submits it. It starts once everything it comes after is
//! done and, unless somebody waits for it, only after a delay (`late_us`): code that forgot to wait
//! sees memory as it was. Each stream has a thread. Order is a list of operations that come before:
//! the stream's last one and, between the legacy stream and blocking streams, each other's.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use super::objects::{ContextId, Current, Op, Stream, Work};
use super::pointers::CallResult;
use super::tables::{self, CHANGED, LEGACY, Locked, Tables};
use super::{capture_rules, faults, machine};

impl Stream {
    /// Creates a stream and its thread, which ends when the stream is gone and its work done.
    pub(super) fn new(id: u64, context: ContextId, is_blocking: bool) -> Stream {
        let (worker, work) = mpsc::channel();
        let name = format!("double-stream-{id}");
        let thread = std::thread::Builder::new().name(name).spawn(move || run_stream(&work));
        thread.expect("a thread for a stream");
        Stream { id, context, is_blocking, last_op: 0, worker, capture: None }
    }
}

fn run_stream(work: &Receiver<u64>) {
    for id in work {
        let mut state = wait_for_start(tables::lock(), id);
        let Some(op) = state.ops.get_mut(&id) else { continue };
        let (device, work) = (op.current.device, op.work.take());
        let is_lost = state.lost.is_some();
        drop(state);
        // After an error nothing more runs, but everything ends.
        let result = match &work {
            Some(work) if !is_lost => work.run(device),
            _ => Ok(()),
        };
        let mut state = tables::lock();
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

impl Tables {
    /// Puts work on a stream, or into the capture that the stream is in. Gives the
    /// operation, if there is one.
    pub(super) fn submit(
        &mut self,
        current: Current,
        handle: u64,
        work: Work,
    ) -> CallResult<Option<u64>> {
        let context = current.context;
        let stream = self.stream(context, handle)?;
        if let Some(capture) = &mut stream.capture {
            return capture.record(work).map(|()| None);
        }
        let is_legacy = handle <= LEGACY;
        let mut after = vec![stream.last_op];
        if is_legacy {
            capture_rules::forbid_implicit(self, context)?;
            let blocking = self.streams.values().filter(|s| s.context == context && s.is_blocking);
            after.extend(blocking.map(|stream| stream.last_op));
        } else if stream.is_blocking {
            after.push(self.stream(context, 0)?.last_op);
        }
        after.retain(|before| self.ops.contains_key(before));

        let id = self.new_id();
        let due = Instant::now() + Duration::from_micros(faults::settings().late_us);
        self.ops.insert(id, Op { current, work: Some(work), after, due, is_awaited: false });
        if let Some(mine) = machine::get().mine() {
            mine.busy.fetch_add(1, SeqCst);
        }
        let stream = self.stream(context, handle)?;
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
}

/// Waits until these operations are done.
pub(super) fn settle(mut state: Locked, ids: &[u64]) -> Locked {
    state.hasten(ids.to_vec());
    while ids.iter().any(|id| state.ops.contains_key(id)) {
        state = tables::wait(state);
    }
    state
}

/// Waits until everything submitted in the context so far is done.
pub(super) fn settle_context(state: Locked, context: ContextId) -> Locked {
    let all = state.ops.iter().filter(|(_, op)| op.current.context == context);
    let ids: Vec<u64> = all.map(|(id, _)| *id).collect();
    settle(state, &ids)
}
