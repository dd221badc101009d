//! Asks objects what they refer to, through their types' traverse slots. This side of the walk is
//! the only one that touches objects.

use std::ffi::{c_int, c_void};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use pyo3::ffi::PyObject;

use super::arrays;
use super::capsules;
use super::kind::Kind;
use super::kinds::{Info, Kinds, class_of};
use super::object::{AHEAD, count_of, first_of, prefetch};
use super::out_of_memory::OutOfMemory;
use super::question::Question;
use super::roots::Roots;
use super::slots::ENDED_MOST;

/// How many objects are asked at a time.
const BATCH: usize = 64;

/// An object, as the other side of the walk needs it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) address: usize,
    /// Its reference count.
    pub(crate) count: u32,
    pub(crate) kind: Kind,
}

/// What some objects refer to.
#[derive(Default)]
pub(crate) struct Batch {
    /// For each of them, its kind by its type, and the end of its references in `shown`.
    pub(crate) holders: Vec<(Kind, usize)>,
    /// The addresses of what they refer to.
    pub(crate) shown: Vec<usize>,
}

/// Asks objects what they refer to.
pub(crate) struct Traverser<'q, 'py> {
    question: &'q Question<'py>,
    kinds: &'q mut Kinds,
    pub(crate) roots: Roots<'py>,
    shown: Shown,
}

/// What traverse slots have shown.
struct Shown {
    objects: Vec<usize>,
    /// Objects without references: they have ended, and wait to be used again.
    ended: usize,
    /// Whether there was no memory for more.
    is_full: bool,
}

impl<'q, 'py> Traverser<'q, 'py> {
    pub(crate) fn new(
        question: &'q Question<'py>,
        kinds: &'q mut Kinds,
        roots: Roots<'py>,
    ) -> Traverser<'q, 'py> {
        kinds.forget();
        let shown = Shown { objects: Vec::with_capacity(4096), ended: 0, is_full: false };
        Traverser { question, kinds, roots, shown }
    }

    /// Returns a live object, or `None` if it refers to nothing and is not asked about.
    pub(crate) fn look(&mut self, address: usize) -> Option<Seen> {
        let object = with_exposed_provenance_mut::<PyObject>(address);
        let info = self.kinds.of(class_of(object));
        let mut kind = info.kind;
        let mut refers = info.traverse.is_some() || kind == Kind::Tensor;
        if info.is_array {
            let has_elements = !arrays::elements(object, &mut self.kinds.layouts).is_empty();
            refers |= has_elements || !arrays::base(object).is_null();
            // Elements can be replaced; the base cannot.
            kind = if has_elements { Kind::Container } else { Kind::Opaque };
        }
        refers |= info.is_row && !arrays::base(object).is_null();
        if info.is_capsule && capsules::tensor(object).is_some() {
            (kind, refers) = (Kind::Tensor, true);
        }
        if !refers && !self.question.is_target(address) {
            return None;
        }
        // What Python reports needs no slot: a greenlet is collected only before and after it runs.
        if kind != Kind::Tensor && !is_collected(info, object) {
            return None;
        }
        let count = count_of(object);
        // What has ended is on a list to be used again, and no object (`slots.rs`).
        (count != 0).then_some(Seen { address, count, kind })
    }

    /// Asks the first of some objects. Memory is prefetched before it is read: the objects, then
    /// what their slots read. What they refer to is not read here.
    pub(crate) fn ask(
        &mut self,
        addresses: &[usize],
        batch: &mut Batch,
    ) -> Result<(), OutOfMemory> {
        let first = &addresses[..addresses.len().min(BATCH)];
        let mut infos = [Info::NOTHING; BATCH];
        for (at, (address, info)) in first.iter().zip(&mut infos).enumerate() {
            if let Some(ahead) = addresses.get(at + AHEAD) {
                expect(*ahead);
            }
            *info = self.expect(*address);
        }
        self.shown.objects.clear();
        batch.holders.clear();
        batch.holders.try_reserve(first.len())?;
        for (address, info) in first.iter().zip(&infos) {
            self.traverse(*address, *info);
            batch.holders.push((info.kind, self.shown.objects.len()));
        }
        if self.shown.is_full {
            return Err(OutOfMemory);
        }
        std::mem::swap(&mut batch.shown, &mut self.shown.objects);
        Ok(())
    }

    /// Returns whether an object of this kind is a frame of our own. A signal handler is given the frame
    /// that it interrupts, which may be one of ours: what that refers to is not held by the program.
    pub(crate) fn is_our_frame(&self, address: usize, kind: Kind) -> bool {
        matches!(kind, Kind::Frame | Kind::Ours) && self.roots.ours.contains(&address)
    }

    /// Returns the kind that an object has because of its holder's kind, if that says more than its
    /// own.
    #[inline]
    pub(crate) fn held_by(&mut self, holder: Kind, kind: Kind, address: usize) -> Option<Kind> {
        match (holder, kind) {
            (Kind::Module, Kind::Dict) => Some(Kind::Namespace),
            (Kind::Class, Kind::Dict) => Some(Kind::ClassDict),
            (Kind::Call, Kind::Dict) => Some(Kind::Arguments),
            (Kind::Foreign, Kind::Dict) => Some(Kind::Immutable),
            (Kind::Function, Kind::Immutable) => {
                self.is_defaults(address).then_some(Kind::Defaults)
            }
            _ => None,
        }
    }

    /// Returns whether a tuple of a function has its default arguments. The dict of an object of ctypes
    /// is no tuple, although its kind is the same.
    fn is_defaults(&mut self, address: usize) -> bool {
        let class = class_of(with_exposed_provenance_mut(address));
        self.kinds.of(class).kind == Kind::Immutable && !self.begins_with_cell(address)
    }

    /// Returns whether a tuple is a closure.
    fn begins_with_cell(&mut self, tuple: usize) -> bool {
        first_of(with_exposed_provenance_mut(tuple))
            .is_some_and(|first| self.kinds.of(class_of(first)).kind == Kind::Cell)
    }

    /// Returns what one object refers to.
    pub(crate) fn referents(&mut self, address: usize) -> &[usize] {
        self.shown.objects.clear();
        let info = self.kinds.of(class_of(with_exposed_provenance_mut(address)));
        self.traverse(address, info);
        &self.shown.objects
    }

    /// Returns what is known of an object's type, and prefetches the memory that its slot will
    /// read.
    fn expect(&mut self, address: usize) -> Info {
        let object = with_exposed_provenance_mut::<PyObject>(address);
        let info = self.kinds.of(class_of(object));
        for offset in info.beside {
            let place = object.wrapping_byte_offset(offset).cast::<*const u8>();
            // SAFETY: objects of its type have a pointer there, or something else as long.
            let beside = unsafe { place.read() };
            if !beside.is_null() {
                prefetch(beside);
            }
        }
        info
    }

    /// Adds what an object refers to, to what is `shown`.
    fn traverse(&mut self, address: usize, info: Info) {
        let object = with_exposed_provenance_mut::<PyObject>(address);
        let begin = self.shown.objects.len();
        if let Some(traverse) = info.traverse.filter(|_| is_collected(info, object)) {
            let shown = (&raw mut self.shown).cast::<c_void>();
            // Only the state of a module has lists of objects that have ended.
            let note = if info.kind == Kind::Module { note_live } else { note };
            self.shown.ended = 0;
            // SAFETY: the object is alive and of the type whose slot this is, and it is collected
            // (`is_collected`). The slot calls `note` with what is given here, and nothing else.
            unsafe { traverse(object, note, shown) };
        }
        if info.is_array {
            let elements = arrays::elements(object, &mut self.kinds.layouts);
            let parts = [arrays::base(object)].into_iter().chain(elements.objects());
            let parts = parts.filter(|part| !part.is_null());
            self.shown.objects.extend(parts.map(<*mut PyObject>::expose_provenance));
        }
        if info.is_row {
            let array = Some(arrays::base(object)).filter(|array| !array.is_null());
            self.shown.objects.extend(array.map(<*mut PyObject>::expose_provenance));
        }
        if (info.kind == Kind::Tensor || info.is_capsule)
            && let Some(reported) = self.kinds.reported.get(&address)
        {
            self.shown.objects.extend(reported);
        }
        if info.kind == Kind::Frame
            && !self.question.interpreter.frames_show
            && let Some(locals) = self.roots.locals.get(&address)
        {
            self.shown.objects.extend(locals);
        }
        if info.kind == Kind::Generator {
            self.once(begin);
        }
    }

    /// Removes variables that are counted twice: a running generator may show its variables, and so
    /// does its frame. What the generator shows begins at `begin`.
    fn once(&mut self, begin: usize) {
        let shown = &self.shown.objects[begin..];
        let is_its_frame =
            |frame: &&usize| self.roots.codes.get(*frame).is_some_and(|code| shown.contains(code));
        let frame = shown.iter().find(is_its_frame);
        let Some(locals) = frame.and_then(|frame| self.roots.locals.get(frame)) else { return };
        let mut shown = self.shown.objects.split_off(begin);
        shown.retain(|object| !locals.contains(object));
        self.shown.objects.extend(shown);
    }
}

/// Returns whether the traverse slot of an object may be called: that of a class written in C must
/// not.
fn is_collected(info: Info, object: *mut PyObject) -> bool {
    // SAFETY: the object is alive, and the slot is one of its type.
    info.is_gc.is_none_or(|is_gc| unsafe { is_gc(object) } != 0)
}

/// Prefetches the object at an address.
pub(crate) fn expect(address: usize) {
    prefetch(with_exposed_provenance::<u8>(address));
}

/// Called by a traverse slot for each reference. It does not read the object, which is not in the
/// cache yet.
unsafe extern "C" fn note(object: *mut PyObject, shown: *mut c_void) -> c_int {
    // SAFETY: `Traverser::traverse` passed it, and nobody else uses it during the call.
    let shown = unsafe { &mut *shown.cast::<Shown>() };
    if shown.objects.len() == shown.objects.capacity() && shown.objects.try_reserve(1).is_err() {
        shown.is_full = true;
        return 1;
    }
    shown.objects.push(object.expose_provenance());
    0
}

/// The same for slots that may show objects that have ended, and never stop showing them.
unsafe extern "C" fn note_live(object: *mut PyObject, shown: *mut c_void) -> c_int {
    if count_of(object) == 0 {
        // SAFETY: as in `note`.
        let shown = unsafe { &mut *shown.cast::<Shown>() };
        shown.ended += 1;
        return c_int::from(shown.ended > ENDED_MOST);
    }
    // SAFETY: the arguments are those of this call.
    unsafe { note(object, shown) }
}
