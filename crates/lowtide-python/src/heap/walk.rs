//! The walk itself: breadth first, in batches, so that the memory it will need is asked for before
//! it is needed. On a heap of millions nothing of it is in a cache.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};
use std::ptr::with_exposed_provenance_mut;

use lowtide_heap::{GraphBuilder, Node};
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::frozen;
use super::kinds::{Kind, Kinds, class_of};
use super::question::Question;
use super::resting::Resting;
use super::roots::{self, Root, Roots};
use super::table::Table;

/// So many objects are traversed before what they refer to is looked at.
const BATCH: usize = 64;
/// So far ahead memory is asked for.
pub(crate) const AHEAD: usize = 12;
/// From this count on an object is immortal, and its count says nothing.
const IMMORTAL: u32 = 1 << 29;

/// The heap as it was walked, still open for what is found out about device memory.
pub(crate) struct Walked {
    pub(crate) builder: GraphBuilder,
    pub(crate) table: Table,
    /// By node: where the object is; 0 where it is no object.
    pub(crate) addresses: Vec<usize>,
    /// By node.
    pub(crate) kinds: Vec<Kind>,
    /// What may hold device memory.
    pub(crate) holders: Vec<Node>,
    /// Nodes with more references than we saw, and how many more; in order.
    pub(crate) hidden: Vec<(Node, u32)>,
    /// The nodes that the collector lists; the others are untracked or frozen.
    pub(crate) listed: Vec<bool>,
    /// Whoever nobody in the heap leads to, though somebody has a reference to it.
    pub(crate) native: Vec<Node>,
    /// Roots of other threads than the one that asks.
    pub(crate) elsewhere: Vec<Node>,
    pub(crate) roots: HashMap<Node, Root>,
    /// How many objects are frozen, says the collector.
    pub(crate) frozen_count: usize,
    /// Whether all of them were found.
    pub(crate) frozen_seen: bool,
    /// How many objects the collector lists.
    pub(crate) tracked: usize,
}

struct Walk<'q, 'py> {
    question: &'q Question<'py>,
    kinds_of: &'q mut Kinds,
    walked: Walked,
    roots: Roots<'py>,
    /// Nodes up to here have been traversed.
    next: usize,
    referents: Vec<usize>,
}

/// Walks the heap. Nothing runs meanwhile but traverse slots, which run no Python code. `held` is what
/// we have a reference to ourselves; what joins it on the way is to be held until the answer is there,
/// and so long the collector has to rest.
pub(crate) fn walk<'py>(
    py: Python<'py>,
    question: &Question<'py>,
    kinds_of: &mut Kinds,
    held: &mut Vec<Bound<'py, PyAny>>,
) -> PyResult<(Walked, Resting<'py>)> {
    let mut roots = roots::find(py, question)?;
    held.append(&mut roots.held);
    let frozen_count = question.interpreter.get_freeze_count.call0()?.extract()?;
    // The last call into Python: an audit hook may run at its beginning, nothing after that.
    let listed = &tracked(question)?;
    let resting = Resting::begin(py);
    kinds_of.forget();
    let room = listed.len() + listed.len() / 8;
    let walked = Walked {
        builder: GraphBuilder::with_capacity(room, listed.len() * 4),
        table: Table::with_room(room),
        addresses: Vec::with_capacity(room),
        kinds: Vec::with_capacity(room),
        holders: Vec::new(),
        hidden: Vec::new(),
        listed: Vec::new(),
        native: Vec::new(),
        elsewhere: Vec::new(),
        roots: HashMap::new(),
        frozen_count,
        frozen_seen: false,
        tracked: listed.len(),
    };
    let referents = Vec::with_capacity(4096);
    let mut walk = Walk { question, kinds_of, walked, roots, next: 0, referents };
    walk.all(listed, held);
    Ok((walk.walked, resting))
}

/// Where every object is that the collector lists. The list itself goes at once: others may be in the
/// middle of making a tuple, and find out that somebody else has it.
pub(crate) fn tracked(question: &Question<'_>) -> PyResult<Vec<usize>> {
    let list = question.interpreter.get_objects.call0()?.cast_into::<PyList>()?;
    let mut addresses = Vec::with_capacity(list.len());
    for at in 0..list.len() {
        // SAFETY: the index is less than the list's length.
        let object = unsafe { ffi::PyList_GetItem(list.as_ptr(), at.cast_signed()) };
        addresses.push(object.expose_provenance());
    }
    Ok(addresses)
}

impl Walk<'_, '_> {
    fn all(&mut self, listed: &[usize], held: &[Bound<'_, PyAny>]) {
        for root in std::mem::take(&mut self.roots.all) {
            let Some(node) = self.meet(root.address, false) else { continue };
            if root.kind == "modules" {
                self.walked.kinds[node.index()] = Kind::Modules;
            }
            if root.is_here {
                self.walked.builder.root(node);
            } else {
                self.walked.elsewhere.push(node);
            }
            self.walked.roots.entry(node).or_insert(root);
        }
        self.on();
        let reached = self.walked.addresses.len();
        let ours = std::mem::take(&mut self.roots.ours);
        for address in ours.iter().chain([&self.question.asked]) {
            self.ours(*address);
        }
        self.on();
        self.list(listed);
        self.on();
        self.walked.listed.resize(self.walked.addresses.len(), false);
        if self.walked.frozen_count > 0 && self.question.finds_frozen {
            let frozen = frozen::find(&self.walked, self.question.immortal).unwrap_or_default();
            self.walked.frozen_seen = !frozen.is_empty();
            if self.walked.frozen_seen {
                self.walked.frozen_count = frozen::mortals(&frozen);
            }
            for address in frozen {
                self.meet(address, false);
            }
            self.on();
        }
        self.walked.listed.resize(self.walked.addresses.len(), false);
        for object in held.iter().chain([&self.question.probe, &self.question.autograd]) {
            if let (place, Some(_)) = self.walked.table.place(object.as_ptr().addr()) {
                self.walked.table.explain(place);
            }
        }
        self.count(reached, &ours);
    }

    /// Something of ours: its references are seen, and hold nothing.
    fn ours(&mut self, address: usize) {
        let known = self.walked.table.get(address).is_some();
        if let Some(node) = self.meet(address, false)
            && !known
        {
            self.walked.kinds[node.index()] = Kind::Ours;
        }
    }

    /// Meets whatever the collector lists, and remembers that it does.
    fn list(&mut self, listed: &[usize]) {
        self.walked.listed.resize(self.walked.addresses.len(), false);
        for (at, address) in listed.iter().enumerate() {
            if let Some(ahead) = listed.get(at + AHEAD) {
                self.walked.table.prefetch(*ahead);
            }
            if let Some(node) = self.walked.table.get(*address) {
                self.walked.listed[node as usize] = true;
            } else if self.meet(*address, false).is_some() {
                self.walked.listed.push(true);
            }
        }
    }

    /// Traverses whatever has been met and not been traversed.
    fn on(&mut self) {
        while self.next < self.walked.addresses.len() {
            let batch = self.next..self.walked.addresses.len().min(self.next + BATCH);
            self.next = batch.end;
            self.referents.clear();
            let mut ends = [0; BATCH];
            for (end, node) in ends.iter_mut().zip(batch.clone()) {
                if let Some(ahead) = self.walked.addresses.get(node + AHEAD) {
                    prefetch(with_exposed_provenance_mut::<u8>(*ahead));
                }
                self.traverse(node);
                *end = self.referents.len();
            }
            let mut begin = 0;
            for (end, node) in ends.into_iter().zip(batch) {
                for at in begin..end {
                    self.refer(Node(node as u32), at);
                }
                begin = end;
            }
        }
    }

    /// Asks an object what it refers to.
    fn traverse(&mut self, node: usize) {
        let address = self.walked.addresses[node];
        let object = with_exposed_provenance_mut::<PyObject>(address);
        let info = self.kinds_of.of(class_of(object));
        let begin = self.referents.len();
        if let Some(traverse) = info.traverse {
            let list = (&raw mut self.referents).cast::<c_void>();
            // SAFETY: the object is alive and of the type whose slot this is, and it is collected
            // (`meet` let it in). The slot calls `note` with our list, and nothing else.
            unsafe { traverse(object, note, list) };
        }
        if info.kind == Kind::Frame
            && !self.question.frames_show
            && let Some(locals) = self.roots.locals.get(&address)
        {
            self.referents.extend(locals);
        }
        if info.kind == Kind::Generator {
            self.once(begin);
        }
    }

    /// A generator that is running may show its variables, and its frame has them in its own: they are
    /// one reference each. What the generator shows begins here.
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

    /// A node refers to what stands in the list at this place.
    fn refer(&mut self, from: Node, at: usize) {
        if let Some(ahead) = self.referents.get(at + 2 * AHEAD) {
            prefetch(with_exposed_provenance_mut::<u8>(*ahead));
        }
        if let Some(ahead) = self.referents.get(at + AHEAD) {
            self.walked.table.prefetch(*ahead);
        }
        let Some(to) = self.meet(self.referents[at], true) else { return };
        self.walked.builder.edge(from, to);
        match (self.walked.kinds[from.index()], self.walked.kinds[to.index()]) {
            (Kind::Module, Kind::Dict) => self.walked.kinds[to.index()] = Kind::Namespace,
            (Kind::Function, Kind::Sealed) if !self.begins_with_cell(self.referents[at]) => {
                self.walked.kinds[to.index()] = Kind::Defaults;
            }
            _ => {}
        }
    }

    /// Whether a tuple is a closure.
    fn begins_with_cell(&mut self, tuple: usize) -> bool {
        first_of(with_exposed_provenance_mut(tuple))
            .is_some_and(|first| self.kinds_of.of(class_of(first)).kind == Kind::Cell)
    }

    /// The node of an object, made where it is met for the first time. None where it refers to nobody
    /// and is not asked about. `by_reference`: somebody refers to it, which explains one of its counts.
    fn meet(&mut self, address: usize, by_reference: bool) -> Option<Node> {
        let object = with_exposed_provenance_mut::<PyObject>(address);
        let info = self.kinds_of.of(class_of(object));
        if info.traverse.is_none() && !self.question.is_target(address) {
            return None;
        }
        let (place, known) = self.walked.table.place(address);
        let number = if let Some(number) = known {
            number
        } else {
            // SAFETY: the object is alive, and the slot is one of its type.
            if info.is_gc.is_some_and(|is_gc| unsafe { is_gc(object) } == 0) {
                return None;
            }
            let node = self.walked.builder.node();
            let count = count_of(object);
            let left = if count < IMMORTAL { count.cast_signed() } else { i32::MIN / 2 };
            self.walked.table.fill(place, address, node.0, left);
            self.walked.addresses.push(address);
            self.walked.kinds.push(info.kind);
            if info.kind == Kind::Holder {
                self.walked.holders.push(node);
            }
            node.0
        };
        if by_reference {
            self.walked.table.explain(place);
        }
        Some(Node(number))
    }

    /// Who has more references than we saw. Those that nobody leads to are held by native code.
    ///
    /// What our own functions have in their variables may be on their way into a call, too, and is not.
    fn count(&mut self, reached: usize, ours: &[usize]) {
        let ours = ours.iter().filter_map(|frame| self.roots.locals.get(frame)).flatten();
        let ours: HashSet<usize> = ours.copied().collect();
        let mut hidden: Vec<(Node, u32)> =
            self.walked.table.unexplained().map(|(node, left)| (Node(node), left)).collect();
        hidden.sort_unstable();
        hidden.retain(|(node, _)| self.walked.kinds[node.index()] != Kind::Ours);
        for (node, _) in hidden.iter().filter(|(node, _)| node.index() >= reached) {
            let address = self.walked.addresses[node.index()];
            if ours.contains(&address) || is_being_made(with_exposed_provenance_mut(address)) {
                continue;
            }
            match self.running(*node) {
                Some(frame) => self.walked.builder.late_edge(frame, *node),
                None => self.walked.native.push(*node),
            }
        }
        self.walked.hidden = hidden;
    }

    /// The frame in which a function is running: it holds the function and shows it to nobody.
    fn running(&mut self, node: Node) -> Option<Node> {
        if self.walked.kinds[node.index()] != Kind::Function {
            return None;
        }
        // Its code is one of those it refers to. (To read `__code__` would run audit hooks.)
        self.referents.clear();
        self.traverse(node.index());
        let frame = self.referents.iter().find_map(|code| self.roots.running.get(code))?;
        self.walked.table.get(*frame).map(Node)
    }
}

/// The first element of a tuple; `None` where it has none, or is no tuple.
fn first_of(tuple: *mut PyObject) -> Option<*mut PyObject> {
    // SAFETY: it is alive.
    let is_tuple = unsafe { ffi::PyTuple_Check(tuple) } != 0;
    // SAFETY: it is a tuple.
    if !is_tuple || unsafe { ffi::PyTuple_Size(tuple) } == 0 {
        return None;
    }
    // SAFETY: it is a tuple with at least one element. One that is being made may lack it.
    let first = unsafe { ffi::PyTuple_GetItem(tuple, 0) };
    (!first.is_null()).then_some(first)
}

/// Whether somebody is still filling a tuple. It holds what it has for a moment only, and is not to be
/// shown to Python: whoever reads a place that is empty ends the process.
fn is_being_made(tuple: *mut PyObject) -> bool {
    // SAFETY: it is alive.
    if unsafe { ffi::PyTuple_Check(tuple) } == 0 {
        return false;
    }
    // SAFETY: it is a tuple.
    let size = unsafe { ffi::PyTuple_Size(tuple) };
    // SAFETY: it is a tuple, and the place is less than its size.
    (0..size).any(|at| unsafe { ffi::PyTuple_GetItem(tuple, at) }.is_null())
}

/// What a traverse slot calls for each reference.
unsafe extern "C" fn note(object: *mut PyObject, list: *mut c_void) -> c_int {
    // SAFETY: `Walk::traverse` passed its list, which nobody else uses during the call.
    let list = unsafe { &mut *list.cast::<Vec<usize>>() };
    list.push(object.expose_provenance());
    0
}

/// How many references to a live object there are. Newer interpreters keep flags above the lower half.
pub(crate) fn count_of(object: *mut PyObject) -> u32 {
    // SAFETY: the object is alive, and a count is the first thing in it.
    unsafe { object.cast::<u32>().read() }
}

/// Whether a live object never ends.
pub(crate) fn is_immortal(object: usize) -> bool {
    count_of(with_exposed_provenance_mut(object)) >= IMMORTAL
}

/// Asks for the cache line at an address.
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: this is a hint; it reads nothing, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
