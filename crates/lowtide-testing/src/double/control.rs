//! The double's own entries, for tests: settings in, counts out.
//!
//! They are C functions because a test and the double that it loads are two copies
//! of this crate, and only the loaded one's state counts. They are neither counted
//! nor failed. A text that is handed out is good until the thread asks again.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::catch_unwind;

use serde::{Deserialize, Serialize};

use super::entry::start;
use super::objects::RegionKind;
use super::pointers::Text;
use super::{current, faults, tables};

/// Counts of what a process has at the driver: all zeros when nothing is leaked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Live {
    /// Address ranges by `cuMemAddressReserve`.
    pub reservations: usize,
    /// Handles by `cuMemCreate`, released or not, whose memory is not given back.
    pub handles: usize,
    /// Handles by `cuMemCreate` that are not released.
    pub unreleased_handles: usize,
    /// Mappings made by `cuMemMap`.
    pub mappings: usize,
    /// Allocations made by `cuMemAlloc`.
    pub plain_allocations: usize,
    /// Allocations made by `cuMemHostAlloc`.
    pub host_allocations: usize,
    /// Ranges registered by `cuMemHostRegister`.
    pub registrations: usize,
    /// Streams, without the null stream.
    pub streams: usize,
    /// Events that were not destroyed.
    pub events: usize,
    /// Modules that were not unloaded.
    pub modules: usize,
    /// Graphs, instantiated or not.
    pub graphs: usize,
    /// Captures that have not ended.
    pub captures: usize,
    /// The number of times that primary contexts are retained.
    pub contexts_retained: usize,
    /// Contexts made by `cuCtxCreate`.
    pub contexts_created: usize,
    /// Operations that are not done.
    pub operations: usize,
    /// Contexts stacked by the thread that asks.
    pub stack_depth: usize,
}

fn live() -> Live {
    let state = tables::lock();
    let is_mapped = |kind: &RegionKind| matches!(kind, RegionKind::Mapped(_));
    let mappings = state.regions.values().filter(|region| is_mapped(&region.kind)).count();
    let host_allocations = state.host.values().filter(|range| range.allocated.is_some()).count();
    Live {
        reservations: state.reservations.len(),
        handles: state.handles.len(),
        unreleased_handles: state.handles.values().filter(|handle| handle.references > 0).count(),
        mappings,
        plain_allocations: state.regions.len() - mappings,
        host_allocations,
        registrations: state.host.len() - host_allocations,
        streams: state.streams.len(),
        events: state.events.len(),
        modules: state.modules.len(),
        graphs: state.graphs.len(),
        captures: state.streams.values().filter(|stream| stream.capture.is_some()).count(),
        contexts_retained: state.contexts.values().filter_map(|it| it.retained).sum::<u32>()
            as usize,
        contexts_created: state.contexts.values().filter(|it| it.retained.is_none()).count(),
        operations: state.ops.len(),
        stack_depth: current::depth(),
    }
}

/// Writes the value as JSON and keeps the text for this thread.
fn hand_out(value: &impl Serialize) -> *const c_char {
    thread_local! {
        static TEXT: RefCell<CString> = RefCell::default();
    }
    let json = serde_json::to_string(value).unwrap_or_default();
    TEXT.with_borrow_mut(|text| {
        *text = CString::new(json).unwrap_or_default();
        text.as_ptr()
    })
}

macro_rules! control {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty)?) -> $result:ty, $failed:expr, $body:block)*) => {$(
        $(#[$doc])*
        #[allow(unsafe_code, reason = "exported under its own name")]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type)?) -> $result {
            let run = std::panic::AssertUnwindSafe(|| {
                start();
                $body
            });
            catch_unwind(run).unwrap_or($failed)
        }
    )*};
}

control! {
    /// Applies settings, as in `LOWTIDE_DOUBLE`. 0, or 1 if the text is wrong.
    fn lowtide_double_configure(text: Text) -> i32, 1, {
        let applied = faults::configure(&text.get().unwrap_or_default());
        applied.inspect_err(|why| eprintln!("lowtide driver double: {why}")).is_err().into()
    }

    /// Disarms every injected fault.
    fn lowtide_double_clear_faults() -> (), (), {
        faults::clear_faults();
    }

    /// Starts the tally of calls anew.
    fn lowtide_double_reset_calls() -> (), (), {
        faults::reset_calls();
    }

    /// Returns calls by name, in order of first use: `[["cuInit",1],…]`.
    fn lowtide_double_calls() -> *const c_char, std::ptr::null(), {
        hand_out(&faults::calls())
    }

    /// Returns how many calls have failed because of an injected fault.
    fn lowtide_double_struck() -> *const c_char, std::ptr::null(), {
        hand_out(&faults::struck())
    }

    /// Returns what this process has, as an object of counts.
    fn lowtide_double_live() -> *const c_char, std::ptr::null(), {
        hand_out(&live())
    }
}
