//! Asks objects what they refer to, through their types' traverse slots, in the thread that has the
//! interpreter's lock. Most objects can be asked by any thread, and `walk/walker.rs` does that.

use std::ffi::{c_int, c_void};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use pyo3::ffi::PyObject;

use crate::ask::dlpack;
use crate::ask::kind::Kind;
use crate::ask::numpy;
use crate::ask::object::{AHEAD, class_of, count_of, is_immortal};
use crate::ask::prefetch::prefetch;
use crate::ask::references::ENDED_MOST;
use crate::ask::types::{Info, Kinds};
use crate::safety::out_of_memory::OutOfMemory;
use crate::start::question::Question;
use crate::start::roots::Roots;
use crate::walk::pieces::Seen;

/// Returns how many references have to be explained if an object has this reference count. An
/// immortal one has enough of them.
pub(crate) fn left_of(count: u32) -> i32 {
    if is_immortal(count) { i32::MIN / 2 } else { count.cast_signed() }
}

/// Objects that only the calling thread asks, and what they refer to.
#[derive(Default)]
pub(crate) struct Told {
    /// In the order of their nodes.
    pub(crate) holders: Vec<ToldHolder>,
    /// The addresses of what they refer to.
    pub(crate) shown: Vec<usize>,
}

/// An object that only the calling thread asks.
pub(crate) struct ToldHolder {
    pub(crate) node: u32,
    /// Its kind, by its type alone and by what is in it.
    pub(crate) by_type: Kind,
    pub(crate) kind: Kind,
    /// Where its references end in `shown`.
    pub(crate) end: usize,
}

/// Asks objects what they refer to, in the thread that has the interpreter's lock.
pub(crate) struct Traverser<'q, 'py> {
    question: &'q Question<'py>,
    pub(crate) kinds: &'q mut Kinds,
    pub(crate) roots: Roots<'py>,
    shown: Shown,
}

/// What traverse slots have shown.
pub(crate) struct Shown {
    pub(crate) objects: Vec<usize>,
    /// Objects without references: they have ended, and wait to be used again.
    ended: usize,
    /// Whether there was no memory for more.
    pub(crate) is_full: bool,
}

impl Shown {
    pub(crate) fn new() -> Shown {
        Shown { objects: Vec::with_capacity(4096), ended: 0, is_full: false }
    }
}

impl<'q, 'py> Traverser<'q, 'py> {
    pub(crate) fn new(
        question: &'q Question<'py>,
        kinds: &'q mut Kinds,
        roots: Roots<'py>,
    ) -> Traverser<'q, 'py> {
        Traverser { question, kinds, roots, shown: Shown::new() }
    }

    /// Returns a live object, or `None` if it refers to nothing and is not asked about.
    pub(crate) fn look(&mut self, address: usize) -> Option<Seen> {
        look(self.question, self.kinds, address)
    }

    /// Asks some nodes, which are in order.
    pub(crate) fn ask(
        &mut self,
        nodes: &[u32],
        addresses: &[usize],
        told: &mut Told,
    ) -> Result<(), OutOfMemory> {
        told.holders.clear();
        told.holders.try_reserve(nodes.len())?;
        self.shown.objects.clear();
        for (at, node) in nodes.iter().enumerate() {
            if let Some(ahead) = nodes.get(at + AHEAD) {
                expect(addresses[*ahead as usize]);
            }
            let address = addresses[*node as usize];
            let info = self.kinds.of(class_of(with_exposed_provenance_mut(address)));
            let kind = self.look(address).map_or(info.kind, |seen| seen.kind);
            self.traverse(address, info);
            let end = self.shown.objects.len();
            told.holders.push(ToldHolder { node: *node, by_type: info.kind, kind, end });
        }
        if self.shown.is_full {
            return Err(OutOfMemory);
        }
        std::mem::swap(&mut told.shown, &mut self.shown.objects);
        Ok(())
    }
}

/// Returns a live object, or `None` if it refers to nothing and is not asked about.
pub(crate) fn look(question: &Question<'_>, kinds: &mut Kinds, address: usize) -> Option<Seen> {
    let object = with_exposed_provenance_mut::<PyObject>(address);
    let info = kinds.of(class_of(object));
    let mut kind = info.kind;
    let mut refers = info.traverse.is_some() || kind == Kind::Tensor;
    if info.is_array {
        let has_elements = !numpy::elements(object, &mut kinds.layouts).is_empty();
        refers |= has_elements || !numpy::base(object).is_null();
        // Elements can be replaced; the base cannot.
        kind = if has_elements { Kind::Container } else { Kind::Opaque };
    }
    refers |= info.is_row && !numpy::base(object).is_null();
    if info.is_capsule && dlpack::tensor(object).is_some() {
        (kind, refers) = (Kind::Tensor, true);
    }
    if !refers && !question.is_target(address) {
        return None;
    }
    // What Python reports needs no slot: a greenlet is collected only before and after it runs.
    if kind != Kind::Tensor && !is_collected(info, object) {
        return None;
    }
    // What has ended is on a list to be used again, and no object (`ask/references.rs`).
    (count_of(object) != 0).then_some(Seen { address, kind })
}

impl Traverser<'_, '_> {
    /// Returns what one object refers to.
    pub(crate) fn referents(&mut self, address: usize) -> &[usize] {
        self.shown.objects.clear();
        let info = self.kinds.of(class_of(with_exposed_provenance_mut(address)));
        self.traverse(address, info);
        &self.shown.objects
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
            let elements = numpy::elements(object, &mut self.kinds.layouts);
            let parts = [numpy::base(object)].into_iter().chain(elements.objects());
            let parts = parts.filter(|part| !part.is_null());
            self.shown.objects.extend(parts.map(<*mut PyObject>::expose_provenance));
        }
        if info.is_row {
            let array = Some(numpy::base(object)).filter(|array| !array.is_null());
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

/// Prefetches the memory that an object's traverse slot will read.
pub(crate) fn expect_beside(object: *mut PyObject, info: Info) {
    for offset in info.beside {
        let place = object.wrapping_byte_offset(offset).cast::<*const u8>();
        // SAFETY: objects of its type have a pointer there, or something else as long.
        let beside = unsafe { place.read() };
        if !beside.is_null() {
            prefetch(beside);
        }
    }
}

/// Prefetches the object at an address.
pub(crate) fn expect(address: usize) {
    prefetch(with_exposed_provenance::<u8>(address));
}

/// Called by a traverse slot for each reference. It does not read the object, which is not in the
/// cache yet.
pub(crate) unsafe extern "C" fn note(object: *mut PyObject, shown: *mut c_void) -> c_int {
    // SAFETY: who calls the slot passed it, and nobody else uses it during the call.
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
