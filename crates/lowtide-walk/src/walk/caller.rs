//! Asks objects what they refer to in the thread that has the interpreter's lock. Most objects can be
//! asked by any thread, and `walk/walker.rs` does that.

use std::ffi::c_void;
use std::ptr::with_exposed_provenance_mut;

use pyo3::ffi::PyObject;

use crate::ask::kind::Kind;
use crate::ask::object::{class_of, count_of};
use crate::ask::prefetch::{AHEAD, prefetch};
use crate::ask::references::{Shown, note};
use crate::ask::types::{TypeInfo, Types};
use crate::ask::{dlpack, numpy};
use crate::safety::own_memory::OutOfMemory;
use crate::start::question::Question;
use crate::start::roots::Roots;
use crate::walk::pieces::Seen;

/// Objects that only the calling thread asks, and what they refer to.
#[derive(Default)]
pub(crate) struct CallerRows {
    /// In the order of their nodes.
    pub(crate) rows: Vec<CallerRow>,
    /// The addresses of what they refer to.
    pub(crate) objects: Vec<usize>,
}

/// An object that only the calling thread asks.
pub(crate) struct CallerRow {
    pub(crate) node: u32,
    /// Its kind, by its type alone and by what is in it.
    pub(crate) by_type: Kind,
    pub(crate) kind: Kind,
    /// Where its references end in `objects`.
    pub(crate) end: usize,
}

/// Asks objects what they refer to, in the thread that has the interpreter's lock.
pub(crate) struct Caller<'q, 'py> {
    question: &'q Question<'py>,
    pub(crate) types: &'q mut Types,
    pub(crate) roots: Roots<'py>,
    shown: Shown,
    /// Whether what everybody uses is not asked: classes, modules, frames, the names of a function.
    is_narrow: bool,
}

impl<'q, 'py> Caller<'q, 'py> {
    pub(crate) fn new(
        question: &'q Question<'py>,
        types: &'q mut Types,
        roots: Roots<'py>,
        is_narrow: bool,
    ) -> Caller<'q, 'py> {
        Caller { question, types, roots, shown: Shown::with_room(), is_narrow }
    }

    /// Asks some nodes, which are in order.
    pub(crate) fn ask(
        &mut self,
        nodes: &[u32],
        addresses: &[usize],
        asked: &mut CallerRows,
    ) -> Result<(), OutOfMemory> {
        asked.rows.clear();
        asked.rows.try_reserve(nodes.len())?;
        self.shown.objects.clear();
        for (at, node) in nodes.iter().enumerate() {
            if let Some(ahead) = nodes.get(at + AHEAD) {
                prefetch(addresses[*ahead as usize]);
            }
            let address = addresses[*node as usize];
            let info = self.types.of(class_of(with_exposed_provenance_mut(address)));
            let kind = look(self.question, self.types, address).map_or(info.kind, |seen| seen.kind);
            if self.is_narrow {
                self.traverse_narrowly(address, info, kind);
            } else {
                self.traverse(address, info);
            }
            let end = self.shown.objects.len();
            asked.rows.push(CallerRow { node: *node, by_type: info.kind, kind, end });
        }
        if self.shown.is_full {
            return Err(OutOfMemory);
        }
        std::mem::swap(&mut asked.objects, &mut self.shown.objects);
        Ok(())
    }

    /// Adds what is an object's own (`Heap::is_own`) of what it refers to.
    fn traverse_narrowly(&mut self, address: usize, info: TypeInfo, kind: Kind) {
        if kind == Kind::Class || kind.is_scaffolding() {
            return;
        }
        let begin = self.shown.objects.len();
        self.traverse(address, info);
        if kind == Kind::Function {
            let mut shown = self.shown.objects.split_off(begin);
            let class = |address: &usize| class_of(with_exposed_provenance_mut(*address));
            shown.retain(|one| self.types.of(class(one)).kind != Kind::Dict);
            self.shown.objects.extend(shown);
        }
    }

    /// Returns what one object refers to.
    pub(crate) fn referents(&mut self, address: usize) -> &[usize] {
        self.shown.objects.clear();
        let info = self.types.of(class_of(with_exposed_provenance_mut(address)));
        self.traverse(address, info);
        &self.shown.objects
    }

    /// Adds what an object refers to, to what is `shown`.
    fn traverse(&mut self, address: usize, info: TypeInfo) {
        let object = with_exposed_provenance_mut::<PyObject>(address);
        let begin = self.shown.objects.len();
        if info.kind == Kind::Module {
            // Only the state of a module has lists of objects that have ended.
            self.shown.add(object);
        } else if let Some(traverse) = info.traverse.filter(|_| info.is_collected(object)) {
            let shown = (&raw mut self.shown).cast::<c_void>();
            // SAFETY: the object is alive and of the type whose slot this is, and it is collected
            // (`is_collected`). The slot calls `note` with what is given here, and nothing else.
            unsafe { traverse(object, note, shown) };
        }
        let base = (info.is_array || info.is_row).then(|| numpy::base(object));
        let elements = info.is_array.then(|| numpy::elements(object, &mut self.types.layouts));
        let elements = elements.iter().flat_map(numpy::Elements::objects);
        let parts = base.into_iter().chain(elements).filter(|part| !part.is_null());
        self.shown.objects.extend(parts.map(<*mut PyObject>::expose_provenance));
        if info.is_array {
            self.shown.objects.extend(asked_dtype(self.types, object));
        }
        if (info.kind == Kind::Tensor || info.is_capsule)
            && let Some(reported) = self.types.reported.get(&address)
        {
            self.shown.objects.extend(reported);
        }
        if info.kind == Kind::Frame
            && !self.question.collector.interpreter.frames_show
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

/// Returns the address of the dtype of an array, if dtypes are asked for what they have.
fn asked_dtype(types: &mut Types, array: *mut PyObject) -> Option<usize> {
    let dtype = numpy::dtype(array);
    let is_asked = !dtype.is_null() && types.of(class_of(dtype)).kind == Kind::Tensor;
    is_asked.then(|| dtype.expose_provenance())
}

/// Returns a live object, or `None` if it refers to nothing and is not asked about.
pub(crate) fn look(question: &Question<'_>, types: &mut Types, address: usize) -> Option<Seen> {
    let object = with_exposed_provenance_mut::<PyObject>(address);
    let info = types.of(class_of(object));
    let mut kind = info.kind;
    let mut refers = info.traverse.is_some() || kind == Kind::Tensor;
    if info.is_array {
        let has_elements = !numpy::elements(object, &mut types.layouts).is_empty();
        refers |= has_elements || !numpy::base(object).is_null();
        refers |= asked_dtype(types, object).is_some();
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
    if kind != Kind::Tensor && !info.is_collected(object) {
        return None;
    }
    // What has ended is on a list to be used again, and no object (`ask/references.rs`).
    (count_of(object) != 0).then_some(Seen { address, kind })
}
