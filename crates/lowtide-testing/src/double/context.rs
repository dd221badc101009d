//! Devices and contexts: what there is, and which one a thread works with.

use std::cell::RefCell;
use std::ffi::c_char;

use super::code::{
    CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, OUT_OF_MEMORY,
};
use super::entry::{Out, Outcome, entry};
use super::machine;
use super::state::{self, RegionKind, State, to_usize};
use super::stream::Stream;
use super::{capture, stream};

/// What the double calls itself wherever a name is asked for.
pub(super) const NAME: &str = "lowtide driver double (a test tool, no GPU)";
/// The CUDA version that the double stands in for.
pub(super) const CUDA_VERSION: i32 = 13_000;
/// The handle of device 0's primary context; the others follow.
const FIRST_CONTEXT: u64 = 0xc0de_0000;

/// A device's primary context.
#[derive(Default)]
pub(super) struct Context {
    pub(super) retained: u32,
    /// The null stream, while the context lives.
    pub(super) legacy: Option<Stream>,
}

thread_local! {
    /// The contexts of this thread, by device; the last is current.
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// How many contexts this thread has stacked.
pub(super) fn stack_depth() -> usize {
    STACK.with_borrow(Vec::len)
}

fn current_device() -> Option<usize> {
    STACK.with_borrow(|stack| stack.last().copied())
}

/// A device's index, if it is one.
pub(super) fn device_index(device: i32) -> Outcome<usize> {
    let index = usize::try_from(device).ok();
    index.filter(|index| *index < machine::get().devices()).ok_or(INVALID_DEVICE)
}

/// Its UUID: the same in every process, as a GPU's is.
pub(super) fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"lowtide-double-0";
    uuid[15] += u8::try_from(device).expect("few devices");
    uuid
}

fn context_of(device: usize) -> u64 {
    FIRST_CONTEXT + device as u64
}

fn device_of(context: u64) -> Outcome<usize> {
    let index = context.checked_sub(FIRST_CONTEXT).ok_or(INVALID_CONTEXT)?;
    let index = usize::try_from(index).ok();
    index.filter(|index| *index < machine::get().devices()).ok_or(INVALID_CONTEXT)
}

impl State {
    /// The device of the current context, which must be alive and not lost.
    pub(super) fn healthy(&self) -> Outcome<usize> {
        let device = current_device().ok_or(INVALID_CONTEXT)?;
        if self.contexts[device].retained == 0 {
            return Err(CONTEXT_IS_DESTROYED);
        }
        self.lost.map_or(Ok(device), Err)
    }

    /// Ends a context whose work is done: all that was made in it goes. Handles,
    /// mappings and reservations are not the context's, and stay.
    fn end_context(&mut self, device: usize) {
        let ended: Vec<u64> =
            self.streams.iter().filter(|(_, s)| s.device == device).map(|(h, _)| *h).collect();
        self.streams.retain(|_, stream| stream.device != device);
        self.stream_handles.extend(ended);
        self.events.retain(|_, event| event.device != device);
        self.modules.retain(|_, module| module.device != device);
        self.graphs.retain(|_, graph| graph.device != device);
        self.host.retain(|_, range| range.device != device);
        let modules = &self.modules;
        self.functions.retain(|_, function| modules.contains_key(&function.module));
        let plain = self.regions.iter().filter(
            |(_, region)| matches!(region.kind, RegionKind::Plain(owner, _) if owner == device),
        );
        for base in plain.map(|(base, _)| *base).collect::<Vec<_>>() {
            self.free_plain(base).expect("a plain allocation");
        }
        self.contexts[device] = Context::default();
        machine::get().locked().give_context(device);
    }
}

entry! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if machine::get().locked().enrol() { Ok(()) } else { Err(OUT_OF_MEMORY) }
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.put(CUDA_VERSION)
    }

    fn cuDeviceGetCount(count: Out<i32>) {
        count.put(i32::try_from(machine::get().devices()).map_err(|_| INVALID_VALUE)?)
    }

    fn cuDeviceGet(device: Out<i32>, index: i32) {
        device_index(index)?;
        device.put(index)
    }

    fn cuDeviceGetName(name: Out<c_char>, room: i32, device: i32) {
        device_index(device)?;
        name.put_text(NAME, usize::try_from(room).unwrap_or(0))
    }

    fn cuDeviceGetUuid_v2(to: Out<[u8; 16]>, device: i32) {
        to.put(uuid(device_index(device)?))
    }

    // As the driver counts, what it reserves is not part of the total.
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        device_index(device)?;
        bytes.put(to_usize(machine::get().total().saturating_sub(machine::get().reserved())))
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) {
        device_index(device)?;
        value.put(match attribute {
            16 => 4,  // multiprocessors
            75 => 9,  // compute capability 9.0
            76 => 0,
            102 => 1, // virtual memory
            _ => return Err(INVALID_VALUE),
        })
    }

    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: i32) {
        let device = device_index(device)?;
        let mut state = state::lock();
        state.lost.map_or(Ok(()), Err)?;
        if state.contexts[device].retained == 0 {
            if !machine::get().locked().take_context(device) {
                return Err(OUT_OF_MEMORY);
            }
            let id = state.new_id();
            state.contexts[device].legacy = Some(Stream::new(id, device, true));
        }
        state.contexts[device].retained += 1;
        context.put(context_of(device))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        let device = device_index(device)?;
        let mut state = state::lock();
        if state.contexts[device].retained == 1 {
            state = stream::settle_device(state, device);
        }
        match state.contexts[device].retained {
            0 => return Err(INVALID_CONTEXT),
            1 => state.end_context(device),
            _ => state.contexts[device].retained -= 1,
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let device = device_index(device)?;
        flags.put(0)?;
        active.put((state::lock().contexts[device].retained > 0).into())
    }

    fn cuCtxGetCurrent(context: Out<u64>) {
        context.put(current_device().map_or(0, context_of))
    }

    fn cuCtxSetCurrent(context: u64) {
        let device = if context == 0 { None } else { Some(device_of(context)?) };
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend(device);
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: u64) {
        let device = device_of(context)?;
        STACK.with_borrow_mut(|stack| stack.push(device));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<u64>) {
        let device = STACK.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        context.put_if_wanted(context_of(device));
        Ok(())
    }

    fn cuCtxSynchronize() {
        let mut state = state::lock();
        let device = state.healthy()?;
        capture::forbid_any(&mut state, device)?;
        stream::settle_device(state, device).healthy().map(drop)
    }
}
