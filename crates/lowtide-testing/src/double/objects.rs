//! The objects that a process can have at the driver, as plain data: contexts, memory, streams,
//! captures, modules.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::ThreadId;
use std::time::Instant;

use lowtide_device::digest::Keys;

use super::memory::{Extent, Reservation};
use super::settings::MAX_DEVICES;

/// The handle of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ContextId(pub(super) u64);

/// The context that a thread works in, and its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Current {
    pub(super) context: ContextId,
    pub(super) device: usize,
}

/// A context that lives.
pub(super) struct Context {
    pub(super) device: usize,
    /// The number of retains; `None` for a context by `cuCtxCreate`.
    pub(super) retained: Option<u32>,
    /// The null stream of the context.
    pub(super) legacy: Stream,
}

/// `CUmemAllocationProp`, with plain numbers where C may put any.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(dead_code, reason = "handed back as it came")]
pub(super) struct AllocationProp {
    pub(super) kind: u32,
    pub(super) handle_types: u32,
    pub(super) location: Location,
    pub(super) windows_data: usize,
    pub(super) flags: [u8; 8],
}

impl AllocationProp {
    /// Returns the properties of pinned memory on a device that cannot be exported.
    pub(super) fn on(device: usize) -> AllocationProp {
        let id = i32::try_from(device).expect("few devices");
        let location = Location { kind: ON_DEVICE, id };
        AllocationProp { kind: PINNED, handle_types: 0, location, windows_data: 0, flags: [0; 8] }
    }
}

/// The layout of `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Location {
    pub(super) kind: u32,
    pub(super) id: i32,
}

/// The only kind of memory, and of location, that there is.
pub(super) const PINNED: u32 = 1;
pub(super) const ON_DEVICE: u32 = 1;

/// The memory of one `cuMemCreate`.
pub(super) struct Handle {
    pub(super) device: usize,
    pub(super) bytes: u64,
    pub(super) extent: Arc<Extent>,
    /// What it was made with, as the caller gave it.
    pub(super) properties: AllocationProp,
    /// The creation and each retain, less the releases.
    pub(super) references: u32,
    pub(super) mappings: u32,
    pub(super) is_imported: bool,
}

/// Addresses with memory behind them.
pub(super) struct Region {
    /// The number of the memory, another one each time that it is made or opened.
    pub(super) id: u64,
    pub(super) bytes: u64,
    pub(super) extent: Arc<Extent>,
    /// The rights of each device: 0 for none, [`READ`] or [`READ_WRITE`].
    pub(super) access: [u32; MAX_DEVICES],
    pub(super) kind: RegionKind,
}

pub(super) enum RegionKind {
    /// Mapped by `cuMemMap`, with this handle.
    Mapped(u64),
    /// Allocated by `cuMemAlloc` in this context, at addresses of its own.
    Plain(Current, #[allow(dead_code, reason = "held for its drop")] Reservation),
    /// Opened from a legacy handle of another process.
    Imported(Imported),
}

/// Memory of another process, open in a context.
pub(super) struct Imported {
    pub(super) owner: Current,
    /// The number of the memory on the machine.
    pub(super) serial: u64,
    pub(super) opens: u32,
    #[allow(dead_code, reason = "held for its drop")]
    pub(super) addresses: Reservation,
}

pub(super) const READ: u32 = 1;
pub(super) const READ_WRITE: u32 = 3;

/// Host memory that copies can use directly.
pub(super) struct HostRange {
    pub(super) bytes: usize,
    pub(super) context: ContextId,
    /// The memory of a `cuMemHostAlloc`; registered memory is the caller's.
    pub(super) allocated: Option<Extent>,
}

pub(super) struct Stream {
    /// Never given again, unlike the handle.
    pub(super) id: u64,
    pub(super) context: ContextId,
    pub(super) is_blocking: bool,
    /// The operation submitted last, done or not.
    pub(super) last_op: u64,
    pub(super) worker: Sender<u64>,
    pub(super) capture: Option<Capture>,
}

/// An operation that is not done.
pub(super) struct Op {
    pub(super) current: Current,
    /// Taken by the worker that runs it.
    pub(super) work: Option<Work>,
    pub(super) after: Vec<u64>,
    pub(super) due: Instant,
    pub(super) is_awaited: bool,
}

pub(super) struct Event {
    pub(super) context: ContextId,
    /// The operations that it waits for, since it was recorded.
    pub(super) ops: Vec<u64>,
}

/// The work of one operation.
#[derive(Clone)]
pub(super) enum Work {
    Copy {
        to: CopyEnd,
        from: CopyEnd,
        bytes: u64,
    },
    Fill {
        at: u64,
        byte: u8,
        bytes: u64,
    },
    Launch(Arc<Launch>),
    /// A function of the program.
    Call {
        function: usize,
        data: usize,
    },
    Graph(Arc<[Work]>),
    /// No work, only something to wait for.
    Nothing,
}

/// The memory that a copy reads or writes.
#[derive(Clone)]
pub(super) enum CopyEnd {
    Device(u64),
    /// The caller's memory; if the driver knew it at the call it must when the work runs.
    Host {
        at: usize,
        is_known: bool,
    },
    /// Pageable memory as it was at the call.
    Staged(Arc<[u8]>),
}

/// A kernel of lowtide's, with the arguments as they were at the launch. Where a block works on a
/// quarter of a page, the count follows from the number of blocks.
pub(super) enum Launch {
    Digest { pages: u64, out: u64, count: u64, keys: Box<Keys> },
    CopyIn { from: u64, to: u64, size: u64 },
    Look { pages: u64, out: u64, count: u64 },
    Pack { pages: u64, packed: u64, bases: u64, count: u64 },
    Unpack { packed: u64, pages: u64, count: u64 },
}

/// A capture in progress, of the stream that holds it.
pub(super) struct Capture {
    pub(super) mode: i32,
    pub(super) thread: ThreadId,
    pub(super) is_invalid: bool,
    pub(super) work: Vec<Work>,
}

/// A graph, instantiated or not.
pub(super) struct Graph {
    pub(super) context: ContextId,
    pub(super) is_executable: bool,
    pub(super) work: Arc<[Work]>,
}

pub(super) struct Module {
    pub(super) context: ContextId,
    pub(super) entries: Vec<String>,
}

pub(super) struct Function {
    pub(super) module: u64,
    pub(super) name: String,
}
