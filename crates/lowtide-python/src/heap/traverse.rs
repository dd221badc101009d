//! Asks objects what they refer to, through their types' traverse slots. This side of the walk is
//! the only one that touches objects.

use std::ffi::{c_int, c_void};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use pyo3::ffi::PyObject;

use super::kind::Kind;
use super::kinds::{Info, Kinds, class_of};
use super::object::{AHEAD, count_of, first_of, prefetch};
use super::question::Question;
use super::roots::Roots;

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
    /// For each of them, the end of its references in `seen`.
    pub(crate) ends: Vec<u32>,
    pub(crate) seen: Vec<Seen>,
}

/// Asks objects what they refer to.
pub(crate) struct Traverser<'q, 'py> {
    question: &'q Question<'py>,
    kinds: &'q mut Kinds,
    pub(crate) roots: Roots<'py>,
    referents: Vec<usize>,
}

impl<'q, 'py> Traverser<'q, 'py> {
    pub(crate) fn new(
        question: &'q Question<'py>,
        kinds: &'q mut Kinds,
        roots: Roots<'py>,
    ) -> Traverser<'q, 'py> {
        kinds.forget();
        Traverser { question, kinds, roots, referents: Vec::with_capacity(4096) }
    }

    /// Returns a live object, or `None` if it refers to nothing and is not asked about.
    pub(crate) fn look(&mut self, address: usize) -> Option<Seen> {
        let object = with_exposed_provenance_mut::<PyObject>(address);
        let info = self.kinds.of(class_of(object));
        if info.traverse.is_none() && !self.question.is_target(address) {
            return None;
        }
        // SAFETY: the object is alive, and the slot is one of its type.
        if info.is_gc.is_some_and(|is_gc| unsafe { is_gc(object) } == 0) {
            return None;
        }
        Some(Seen { address, count: count_of(object), kind: info.kind })
    }

    /// Asks the first of some objects. Memory is prefetched before it is read: the objects, then
    /// what their slots read, then what they refer to.
    pub(crate) fn ask(&mut self, addresses: &[usize], batch: &mut Batch) {
        let first = &addresses[..addresses.len().min(BATCH)];
        let mut infos = [Info::NOTHING; BATCH];
        for (at, (address, info)) in first.iter().zip(&mut infos).enumerate() {
            prefetch_at(addresses.get(at + AHEAD));
            *info = self.expect(*address);
        }
        let mut ends = [0; BATCH];
        self.referents.clear();
        for ((address, info), end) in first.iter().zip(&infos).zip(&mut ends) {
            self.traverse(*address, *info);
            *end = self.referents.len();
        }
        batch.ends.clear();
        batch.seen.clear();
        let mut begin = 0;
        for (info, end) in infos.iter().zip(ends).take(first.len()) {
            for at in begin..end {
                prefetch_at(self.referents.get(at + AHEAD));
                let seen = self.look(self.referents[at]);
                batch.seen.extend(seen.map(|seen| self.held_by(info.kind, seen)));
            }
            batch.ends.push(batch.seen.len() as u32);
            begin = end;
        }
    }

    /// Returns an object with its kind, which may depend on its holder.
    fn held_by(&mut self, holder: Kind, seen: Seen) -> Seen {
        let kind = match (holder, seen.kind) {
            (Kind::Module, Kind::Dict) => Kind::Namespace,
            (Kind::Class, Kind::Dict) => Kind::ClassDict,
            (Kind::Call, Kind::Dict) => Kind::Arguments,
            (Kind::Function, Kind::Immutable) if !self.begins_with_cell(seen.address) => {
                Kind::Defaults
            }
            _ => seen.kind,
        };
        Seen { kind, ..seen }
    }

    /// Returns whether a tuple is a closure.
    fn begins_with_cell(&mut self, tuple: usize) -> bool {
        first_of(with_exposed_provenance_mut(tuple))
            .is_some_and(|first| self.kinds.of(class_of(first)).kind == Kind::Cell)
    }

    /// Returns what one object refers to.
    pub(crate) fn referents(&mut self, address: usize) -> &[usize] {
        self.referents.clear();
        let info = self.kinds.of(class_of(with_exposed_provenance_mut(address)));
        self.traverse(address, info);
        &self.referents
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

    /// Adds what an object refers to, to `referents`.
    fn traverse(&mut self, address: usize, info: Info) {
        let object = with_exposed_provenance_mut::<PyObject>(address);
        let begin = self.referents.len();
        if let Some(traverse) = info.traverse {
            let list = (&raw mut self.referents).cast::<c_void>();
            // SAFETY: the object is alive and of the type whose slot this is, and it is collected
            // (`look` let it in). The slot calls `note` with our list, and nothing else.
            unsafe { traverse(object, note, list) };
        }
        if info.kind == Kind::Frame
            && !self.question.interpreter.frames_show
            && let Some(locals) = self.roots.locals.get(&address)
        {
            self.referents.extend(locals);
        }
        if info.kind == Kind::Generator {
            self.once(begin);
        }
    }

    /// Removes variables that are counted twice: a running generator may show its variables, and so
    /// does its frame. What the generator shows begins at `begin`.
    fn once(&mut self, begin: usize) {
        let shown = &self.referents[begin..];
        let is_its_frame =
            |frame: &&usize| self.roots.codes.get(*frame).is_some_and(|code| shown.contains(code));
        let frame = shown.iter().find(is_its_frame);
        let Some(locals) = frame.and_then(|frame| self.roots.locals.get(frame)) else { return };
        let mut shown = self.referents.split_off(begin);
        shown.retain(|object| !locals.contains(object));
        self.referents.extend(shown);
    }
}

fn prefetch_at(address: Option<&usize>) {
    if let Some(address) = address {
        prefetch(with_exposed_provenance::<u8>(*address));
    }
}

/// Called by a traverse slot for each reference.
unsafe extern "C" fn note(object: *mut PyObject, list: *mut c_void) -> c_int {
    // SAFETY: `Traverser::traverse` passed its list, which nobody else uses during the call.
    let list = unsafe { &mut *list.cast::<Vec<usize>>() };
    list.push(object.expose_provenance());
    0
}
