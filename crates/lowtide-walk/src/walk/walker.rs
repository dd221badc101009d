//! A thread that walks over some objects: asks them what they refer to, and looks up the numbers of
//! those.
//!
//! On a heap of millions of objects neither the objects nor the numbers fit a cache. So a batch of
//! objects is prefetched, then asked, then the numbers of what they refer to are prefetched and
//! read. Only what has no number is read itself.
//!
//! A walker asks the objects that any thread may ask (`TypeInfo::reader`). The others were asked
//! before, by the calling thread.

use std::ffi::c_void;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lowtide_heap::Node;
use pyo3::ffi::{PyObject, PyTypeObject};

use crate::ask::kind::Kind;
use crate::ask::object::{class_of, count_of, first_of, is_immortal};
use crate::ask::prefetch::{AHEAD, prefetch};
use crate::ask::references::{Shown, note};
use crate::ask::types::{TypeInfo, Types};
use crate::safety::own_memory::OutOfMemory;
use crate::walk::caller::CallerRows;
use crate::walk::object_table::{ObjectTable, TableIndex};
use crate::walk::pieces::{Look, Piece, Pieces, Rename, Seen, Unknown};

/// How many objects are asked at a time.
const BATCH: usize = 64;
/// How many types each thread has at hand.
const TYPES: usize = 128;
/// How many nodes each thread counts references to before it adds them to those of all.
const COUNTED: usize = 64;

/// What all walkers over a range of nodes share.
pub(crate) struct WalkRange<'a> {
    pub(crate) addresses: &'a [usize],
    pub(crate) table: &'a ObjectTable,
    /// By node: references to it that are not explained yet.
    pub(crate) unexplained: &'a [AtomicI32],
    pub(crate) by_caller: &'a CallerRows,
    pub(crate) types: Mutex<&'a mut Types>,
    /// The addresses of the objects that are asked about, sorted.
    pub(crate) targets: &'a [usize],
    /// Nodes below this one are frames of our own. What refers to them does not count.
    pub(crate) first_of_others: u32,
    /// The range of nodes, and how many of them are a piece.
    pub(crate) begin: usize,
    pub(crate) end: usize,
    pub(crate) piece: usize,
    /// The next piece that nobody has.
    pub(crate) next: AtomicUsize,
    /// Whether there is only one walker.
    pub(crate) alone: bool,
    /// Whether there was too little memory, or time.
    pub(crate) failed: AtomicBool,
    /// The moment at which the walk is given up.
    pub(crate) until: Option<Instant>,
}

impl<'a> WalkRange<'a> {
    /// Walks over pieces of the range until there are none left. Only the calling thread has a
    /// `look`.
    pub(crate) fn walk(&self, walker: &mut Walker, pieces: &Pieces<'_>, look: Option<Look<'_>>) {
        let mut empty = Piece::default();
        while !self.failed.load(Ordering::Relaxed) {
            if self.until.is_some_and(|until| Instant::now() > until) {
                self.failed.store(true, Ordering::Relaxed);
                break;
            }
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let begin = self.begin + number * self.piece;
            if begin >= self.end {
                break;
            }
            empty.clear(number);
            let nodes = begin..self.end.min(begin + self.piece);
            let done = walker
                .piece(self, nodes, &mut empty)
                .and_then(|()| pieces.put(std::mem::take(&mut empty), look));
            match done {
                Ok(next) => empty = next,
                Err(OutOfMemory) => self.failed.store(true, Ordering::Relaxed),
            }
        }
        walker.count_all(self);
    }

    /// Returns what is known of types.
    pub(crate) fn types(&self) -> MutexGuard<'_, &'a mut Types> {
        self.types.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn is_target(&self, address: usize) -> bool {
        // Nearly all objects are outside of this range.
        let (Some(first), Some(last)) = (self.targets.first(), self.targets.last()) else {
            return false;
        };
        (*first..=*last).contains(&address) && self.targets.binary_search(&address).is_ok()
    }

    fn explain(&self, node: u32, references: i32) {
        let unexplained = &self.unexplained[node as usize];
        if self.alone {
            unexplained.store(unexplained.load(Ordering::Relaxed) - references, Ordering::Relaxed);
        } else {
            unexplained.fetch_sub(references, Ordering::Relaxed);
        }
    }
}

/// Returns how many references have to be explained if an object has this reference count. An
/// immortal one has enough of them.
fn references_of(count: u32) -> i32 {
    if is_immortal(count) { i32::MIN / 2 } else { count.cast_signed() }
}

/// Returns counts that only this caller has, to be changed by several threads.
pub(crate) fn atomics(counts: &mut [i32]) -> &[AtomicI32] {
    let counts: *mut [i32] = counts;
    // SAFETY: both types have the same layout, and for as long as this exists nobody uses the
    // counts otherwise.
    unsafe { &*(counts as *const [AtomicI32]) }
}

/// A thread that walks over objects.
pub(crate) struct Walker {
    types: [(usize, TypeInfo); TYPES],
    shown: Shown,
    /// For each object of a batch, its kind by its type, and the end of its references in `shown`.
    holders: Vec<(Kind, usize)>,
    indices: Vec<Option<TableIndex>>,
    /// References to some nodes that were not added to those of all threads yet. Many objects refer
    /// to the same few, their classes above all: threads would wait for each other there.
    counted: [(u32, i32); COUNTED],
}

impl Walker {
    pub(crate) fn new() -> Walker {
        Walker {
            types: [(0, TypeInfo::NOTHING); TYPES],
            shown: Shown::with_room(),
            holders: Vec::with_capacity(BATCH),
            indices: Vec::with_capacity(4096),
            counted: [(0, 0); COUNTED],
        }
    }

    /// Walks over some nodes.
    fn piece(
        &mut self,
        range: &WalkRange<'_>,
        nodes: std::ops::Range<usize>,
        piece: &mut Piece,
    ) -> Result<(), OutOfMemory> {
        piece.kinds.try_reserve(nodes.len())?;
        piece.ends.try_reserve(nodes.len())?;
        let rows = &range.by_caller.rows;
        let mut row = rows.partition_point(|holder| (holder.node as usize) < nodes.start);
        let mut begin = nodes.start;
        while begin < nodes.end {
            let end = nodes.end.min(begin + BATCH);
            self.ask(range, begin..end, &mut row, piece);
            if self.shown.is_full {
                return Err(OutOfMemory);
            }
            self.indices.clear();
            self.indices.try_reserve(self.shown.objects.len())?;
            let indices = self.shown.objects.iter().map(|address| range.table.expect(*address));
            self.indices.extend(indices);
            self.take_in(range, piece)?;
            begin = end;
        }
        Ok(())
    }

    /// Asks a batch of objects. Memory is prefetched before it is read: the objects, then what
    /// their slots read. What they refer to is not read here.
    fn ask(
        &mut self,
        range: &WalkRange<'_>,
        nodes: std::ops::Range<usize>,
        row: &mut usize,
        piece: &mut Piece,
    ) {
        let mut infos = [TypeInfo::NOTHING; BATCH];
        for (at, info) in nodes.clone().zip(&mut infos) {
            if let Some(ahead) = range.addresses.get(at + AHEAD) {
                prefetch(*ahead);
            }
            let object = with_exposed_provenance_mut::<PyObject>(range.addresses[at]);
            *info = self.of(range, class_of(object));
            info.prefetch_beside(object);
        }
        self.shown.objects.clear();
        self.holders.clear();
        for (at, info) in nodes.zip(&infos) {
            let object = with_exposed_provenance_mut::<PyObject>(range.addresses[at]);
            range.explain(at as u32, -references_of(count_of(object)));
            let (mut by_type, mut kind) = (info.kind, info.kind);
            match range.by_caller.rows.get(*row).filter(|holder| holder.node as usize == at) {
                Some(holder) => {
                    let before = row.checked_sub(1).map_or(0, |at| range.by_caller.rows[at].end);
                    let shown = &range.by_caller.objects[before..holder.end];
                    (by_type, kind) = (holder.by_type, holder.kind);
                    *row += 1;
                    if self.shown.objects.try_reserve(shown.len()).is_err() {
                        self.shown.is_full = true;
                        return;
                    }
                    self.shown.objects.extend_from_slice(shown);
                }
                None => self.traverse(object, *info),
            }
            piece.kinds.push(kind);
            self.holders.push((by_type, self.shown.objects.len()));
        }
    }

    /// Adds what an object refers to, to what is `shown`.
    fn traverse(&mut self, object: *mut PyObject, info: TypeInfo) {
        let Some(traverse) = info.reader else { return };
        let shown = (&raw mut self.shown).cast::<c_void>();
        // SAFETY: the object is alive and of the type whose slot this is, and any thread may call
        // it. The slot calls `note` with what is given here, and nothing else.
        unsafe { traverse(object, note, shown) };
    }

    /// Adds the references of the objects that were asked.
    fn take_in(&mut self, range: &WalkRange<'_>, piece: &mut Piece) -> Result<(), OutOfMemory> {
        let count = self.shown.objects.len();
        piece.targets.try_reserve(count)?;
        let mut begin = 0;
        for holder in 0..self.holders.len() {
            let (kind, end) = self.holders[holder];
            for at in begin..end {
                let ahead = at + AHEAD;
                if ahead < count && self.known(range, ahead).is_none() {
                    prefetch(self.shown.objects[ahead]);
                }
                let (address, position) = (self.shown.objects[at], piece.targets.len() as u32);
                match self.known(range, at) {
                    Some(node) if node < range.first_of_others => continue,
                    Some(node) => {
                        self.count(range, node);
                        piece.targets.push(Node(node));
                    }
                    None => {
                        let Some(object) = self.look(range, address) else { continue };
                        piece.unknown.try_reserve(1)?;
                        piece.unknown.push(Unknown { at: position, object });
                        piece.targets.push(Node(0));
                    }
                }
                if let Some((from, to)) = self.held_by(range, kind, address) {
                    piece.renames.try_reserve(1)?;
                    piece.renames.push(Rename { at: position, from, to });
                }
            }
            begin = end;
            piece.ends.push(piece.targets.len() as u32);
        }
        Ok(())
    }

    /// Returns the number of an object that was shown, by its position.
    #[inline]
    fn known(&self, range: &WalkRange<'_>, at: usize) -> Option<u32> {
        self.indices[at].and_then(|index| range.table.number(index))
    }

    /// Looks at an object that has no number. Returns `None` if it does not count, and its address
    /// alone if only the calling thread can tell.
    fn look(&mut self, range: &WalkRange<'_>, address: usize) -> Option<Result<Seen, usize>> {
        let object = with_exposed_provenance_mut::<PyObject>(address);
        let info = self.of(range, class_of(object));
        if info.reader.is_some() {
            // What has ended is on a list to be used again, and no object (`ask/references.rs`).
            return (count_of(object) != 0).then_some(Ok(Seen { address, kind: info.kind }));
        }
        let counts = !info.refers_to_nothing() || range.is_target(address);
        counts.then_some(Err(address))
    }

    /// Returns the kind that an object has by its type and the kind that it has because of its
    /// holder's, if that says more.
    #[inline]
    fn held_by(
        &mut self,
        range: &WalkRange<'_>,
        holder: Kind,
        address: usize,
    ) -> Option<(Kind, Kind)> {
        let to = match holder {
            Kind::Module => Kind::Namespace,
            Kind::Class => Kind::ClassDict,
            Kind::Call => Kind::Arguments,
            Kind::Foreign => Kind::Immutable,
            Kind::Function => Kind::Defaults,
            _ => return None,
        };
        let object = with_exposed_provenance_mut::<PyObject>(address);
        let from = self.of(range, class_of(object)).kind;
        match from {
            Kind::Dict if to != Kind::Defaults => Some((from, to)),
            Kind::Immutable if to == Kind::Defaults => {
                // A tuple of cells is the closure.
                let is_closure = first_of(object)
                    .is_some_and(|first| self.of(range, class_of(first)).kind == Kind::Cell);
                (!is_closure).then_some((from, to))
            }
            _ => None,
        }
    }

    /// Counts a reference to a node.
    #[inline]
    fn count(&mut self, range: &WalkRange<'_>, node: u32) {
        if range.alone {
            return range.explain(node, 1);
        }
        let (counted, references) = &mut self.counted[node as usize % COUNTED];
        if *counted == node {
            *references += 1;
            return;
        }
        let before = (std::mem::replace(counted, node), std::mem::replace(references, 1));
        range.explain(before.0, before.1);
    }

    /// Adds the references that were counted to those of all threads.
    fn count_all(&mut self, range: &WalkRange<'_>) {
        for (node, references) in &mut self.counted {
            range.explain(*node, std::mem::take(references));
        }
    }

    /// Returns what is known of a type.
    #[inline]
    fn of(&mut self, range: &WalkRange<'_>, class: *mut PyTypeObject) -> TypeInfo {
        let at = (class.addr() >> 4 ^ class.addr() >> 11) % TYPES;
        let (known, info) = self.types[at];
        if known == class.addr() {
            return info;
        }
        let info = range.types().of(class);
        self.types[at] = (class.addr(), info);
        info
    }
}
