//! Contexts: the primary ones and those that a program creates.

use super::code::{INVALID_CONTEXT, INVALID_VALUE, OUT_OF_MEMORY};
use super::entry::entry;
use super::objects::{Context, ContextId, Current, RegionKind, Stream};
use super::pointers::{CallResult, Out};
use super::tables::{self, Tables};
use super::{capture_rules, current, device, machine, queue};

impl Tables {
    /// Creates a context, if the device has room for it.
    fn begin_context(&mut self, id: ContextId, device: usize, retained: Option<u32>) -> CallResult {
        if !machine::get().locked().take_context(device) {
            return Err(OUT_OF_MEMORY);
        }
        let legacy = Stream::new(self.new_id(), id, true);
        self.contexts.insert(id, Context { device, retained, legacy });
        Ok(())
    }

    /// Ends a context whose work is done: all that was made in it goes. Handles, mappings and
    /// reservations are not the context's, and stay.
    fn end_context(&mut self, id: ContextId) {
        let Some(ended) = self.contexts.remove(&id) else { return };
        let streams = self.streams.iter().filter(|(_, stream)| stream.context == id);
        let handles: Vec<u64> = streams.map(|(handle, _)| *handle).collect();
        self.streams.retain(|_, stream| stream.context != id);
        self.peers.retain(|(context, _)| *context != id);
        self.stream_handles.extend(handles);
        self.events.retain(|_, event| event.context != id);
        self.modules.retain(|_, module| module.context != id);
        self.graphs.retain(|_, graph| graph.context != id);
        self.host.retain(|_, range| range.context != id);
        let modules = &self.modules;
        self.functions.retain(|_, function| modules.contains_key(&function.module));
        let plain = self.regions.iter().filter(
            |(_, region)| matches!(region.kind, RegionKind::Plain(owner, _) if owner.context == id),
        );
        for base in plain.map(|(base, _)| *base).collect::<Vec<_>>() {
            self.free_plain(base).expect("a plain allocation");
        }
        let imports = self.regions.iter().filter(
            |(_, region)| matches!(&region.kind, RegionKind::Imported(it) if it.owner.context == id),
        );
        for base in imports.map(|(base, _)| *base).collect::<Vec<_>>() {
            self.drop_import(base);
        }
        machine::get().locked().give_context(ended.device);
    }

    /// Returns a context that can be made current. A primary one always can, even when it was released.
    fn known_context(&self, context: u64) -> CallResult<ContextId> {
        let id = ContextId(context);
        let primary = id.primary_of().filter(|device| *device < machine::get().devices());
        let is_known = primary.is_some() || self.contexts.contains_key(&id);
        is_known.then_some(id).ok_or(INVALID_CONTEXT)
    }
}

entry! {
    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: i32) {
        let device = device::index(device)?;
        let (id, mut state) = (current::primary(device), tables::lock());
        state.lost.map_or(Ok(()), Err)?;
        if !state.contexts.contains_key(&id) {
            state.begin_context(id, device, Some(0))?;
        }
        let retained = state.contexts.get_mut(&id).and_then(|context| context.retained.as_mut());
        *retained.ok_or(INVALID_CONTEXT)? += 1;
        context.put(id.0)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        let id = current::primary(device::index(device)?);
        let mut state = tables::lock();
        if state.contexts.get(&id).is_some_and(|context| context.retained == Some(1)) {
            state = queue::settle_context(state, id);
        }
        let retained = state.contexts.get_mut(&id).and_then(|context| context.retained.as_mut());
        let retained = retained.ok_or(INVALID_CONTEXT)?;
        *retained -= 1;
        if *retained == 0 {
            state.end_context(id);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let id = current::primary(device::index(device)?);
        flags.put(0)?;
        active.put(tables::lock().contexts.contains_key(&id).into())
    }

    fn cuCtxCreate_v2(context: Out<u64>, _flags: u32, device: i32) {
        let device = device::index(device)?;
        let mut state = tables::lock();
        state.lost.map_or(Ok(()), Err)?;
        let id = state.new_context_id();
        state.begin_context(id, device, None)?;
        current::push(id);
        context.put(id.0)
    }

    fn cuCtxDestroy_v2(context: u64) {
        let (id, state) = (ContextId(context), tables::lock());
        let created = state.contexts.get(&id).filter(|context| context.retained.is_none());
        created.ok_or(INVALID_CONTEXT)?;
        let mut state = queue::settle_context(state, id);
        state.end_context(id);
        if current::top() == Some(id) {
            current::pop();
        }
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<u64>) {
        context.put(current::top().map_or(0, |id| id.0))
    }

    fn cuCtxSetCurrent(context: u64) {
        let id = if context == 0 { None } else { Some(tables::lock().known_context(context)?) };
        current::pop();
        if let Some(id) = id {
            current::push(id);
        }
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: u64) {
        current::push(tables::lock().known_context(context)?);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<u64>) {
        context.put_if_wanted(current::pop().ok_or(INVALID_CONTEXT)?.0);
        Ok(())
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        let Current { device: index, .. } = tables::lock().healthy()?;
        device.put(i32::try_from(index).map_err(|_| INVALID_VALUE)?)
    }

    fn cuCtxSynchronize() {
        let mut state = tables::lock();
        let Current { context, .. } = state.healthy()?;
        capture_rules::forbid_any(&mut state, context)?;
        queue::settle_context(state, context).healthy().map(drop)
    }
}
