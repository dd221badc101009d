//! The walk: over the objects that the collector lists, and over all that they and the roots lead to.
//!
//! First, all objects that are known get numbers: some of our own, the roots, and those that the
//! collector lists. Then they are asked what they refer to; objects without a number get the next ones
//! and are asked in turn. At last it is found out what the roots lead to.
//!
//! Several threads number and ask the objects of a large heap (`walk/threads.rs`, `walk/walker.rs`). What they find
//! is put together in the order of the numbers (`walk/pieces.rs`), so the answer does not depend on them.
//! Objects that not every thread may ask are asked by the calling one before (`walk/caller.rs`).

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lowtide_heap::Node;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::ask::kind::Kind;
use crate::ask::object::{class_of, is_being_made, object};
use crate::ask::types::Types;
use crate::safety::own_memory::{OutOfMemory, Reserve, check, reserve};
use crate::safety::own_references::{self, CollectorOff, OwnReferences};
use crate::start::collector::is_tracked;
use crate::start::frozen;
use crate::start::question::{Asked, Question};
use crate::start::roots::{self, RootKind, Roots};
use crate::walk::caller::{Caller, CallerRows, look};
use crate::walk::listing::Listing;
use crate::walk::object_table::ObjectTable;
use crate::walk::pieces::{Found, Met, Pieces};
use crate::walk::threads::{Blocked, threads_for, together};
use crate::walk::walked::{List, Nodes, Walked};
use crate::walk::walker::{WalkRange, Walker, atomics};

/// The most and the fewest nodes that a thread asks before it looks for others.
const PIECE_MOST: usize = 16 << 10;
const PIECE_LEAST: usize = 16;
/// How many pieces there should be for each thread, so that all end at the same time.
const PIECES_EACH: usize = 16;

/// The most objects over which a walk from some objects goes.
const FROM_SOME_MOST: usize = 50_000;

/// Returns how many nodes a thread asks at a time.
fn piece_size(nodes: usize, threads: NonZeroUsize) -> usize {
    (nodes / (threads.get() * PIECES_EACH)).clamp(PIECE_LEAST, PIECE_MOST)
}

/// Returns how many threads walk over so many objects.
fn threads_over(objects: usize, question: &Question<'_>) -> NonZeroUsize {
    let wanted = NonZeroUsize::new(question.collector.interpreter.threads);
    wanted.unwrap_or_else(|| threads_for(objects))
}

struct Walk<'q, 'py> {
    question: &'q Question<'py>,
    caller: Caller<'q, 'py>,
    walked: Walked,
    /// The number of frames of our own. Their nodes are the first.
    our_frames: u32,
    /// Nodes up to here have been asked.
    next: usize,
    /// The walk ends before its aim when it has met more objects than these.
    most: usize,
    /// Nodes that only this thread asks, in order.
    for_caller: Vec<u32>,
    by_caller: CallerRows,
    walker: Walker,
    /// The numbers of the objects that a part of the walk meets for the first time.
    numbers: ObjectTable,
    /// Nodes whose kinds are not known yet, which are of the second kind if they are of the first.
    renames: Vec<(Node, Kind, Kind)>,
    /// For everything that grows without asking.
    room: Reserve,
}

/// Walks the heap. Nothing runs meanwhile but traverse slots, which run no Python code. The
/// references that are returned have to be kept until the answer is made, and so long the collector
/// is off. `before` has the addresses of most objects in the order in which they will be listed.
pub(crate) fn walk<'py>(
    py: Python<'py>,
    question: &Question<'py>,
    types: &mut Types,
    before: Vec<usize>,
) -> PyResult<(Walked, OwnReferences<'py>, CollectorOff<'py>)> {
    let room = reserve(0)?;
    types.forget();
    let mut frames: Vec<usize> = types.reported.values().flatten().copied().collect();
    frames.retain(|one| types.of(class_of(with_exposed_provenance_mut(*one))).kind == Kind::Frame);
    let roots = roots::find(py, question, frames.into_iter().map(|one| object(py, one)))?;
    let reported = question.collector.reported_frozen()?;
    types.forget();
    // Frames of our own, then roots, then what else is ours.
    let mut first = roots.ours.clone();
    let our_frames = first.len() as u32;
    let others = roots.all.iter().map(|root| root.address);
    let others = others.chain([question.address]).chain(own_references::lists());
    first.extend(others.filter(|address| look(question, types, *address).is_some()));
    // The last call into Python. An audit hook may run at its beginning, and nothing after that.
    let (mut walked, for_caller) = Listing::new(types, first, before)?.all(&question.collector)?;
    let off = CollectorOff::begin(py);
    if let Some(count) = reported {
        walked.nodes.frozen_seen |= count == 0;
        walked.nodes.frozen_count = count;
    }
    let caller = Caller::new(question, types, roots, false);
    let mut walk = Walk::new(question, caller, (walked, for_caller), room)?;
    walk.our_frames = our_frames;
    walk.all()?;
    Ok((walk.walked, walk.caller.roots.held, off))
}

/// Walks from some objects, over what is their own, and not over the whole heap. Returns `None` if that is
/// very much. Who else has an object has references to it that were not seen.
pub(crate) fn walk_from<'py>(
    py: Python<'py>,
    question: &Question<'py>,
    types: &mut Types,
    first: &[usize],
) -> PyResult<Option<(Walked, OwnReferences<'py>, CollectorOff<'py>)>> {
    let room = reserve(0)?;
    let roots = Roots::none(py, question)?;
    let off = CollectorOff::begin(py);
    types.forget();
    // What our lists hold is held by nobody else for that.
    let known = first.iter().copied().chain(own_references::lists());
    let listed = Listing::new(types, known, Vec::new())?.known()?;
    let caller = Caller::new(question, types, roots, true);
    let mut walk = Walk::new(question, caller, listed, room)?;
    walk.most = FROM_SOME_MOST;
    let is_done = walk.from(first)?;
    Ok(is_done.then_some((walk.walked, walk.caller.roots.held, off)))
}

impl<'q, 'py> Walk<'q, 'py> {
    fn new(
        question: &'q Question<'py>,
        caller: Caller<'q, 'py>,
        (walked, for_caller): (Walked, Vec<u32>),
        room: Reserve,
    ) -> Result<Walk<'q, 'py>, OutOfMemory> {
        Ok(Walk {
            question,
            our_frames: 0,
            caller,
            walked,
            next: 0,
            most: usize::MAX,
            for_caller,
            by_caller: CallerRows::default(),
            walker: Walker::new(),
            numbers: ObjectTable::new()?,
            renames: Vec::new(),
            room,
        })
    }

    /// Walks from some objects. Returns whether it came to an end.
    fn from(&mut self, first: &[usize]) -> Result<bool, OutOfMemory> {
        self.number()?;
        self.on(&[])?;
        self.walked.mark_rest()?;
        for list in own_references::lists() {
            if let Some(node) = self.walked.table.get(list) {
                self.walked.nodes.kinds[node as usize] = Kind::Ours;
            }
        }
        for node in first.iter().filter_map(|one| self.walked.table.get(*one)) {
            self.walked.builder.root(Node(node));
        }
        let left = (0..).map(Node).zip(&self.walked.unexplained).filter(|(_, left)| **left != 0);
        let left = left.filter(|(node, _)| self.walked.nodes.kinds[node.index()] != Kind::Ours);
        // Of an immortal one nobody can tell.
        let hidden = left.map(|(node, left)| (node, u32::try_from(*left).unwrap_or(u32::MAX)));
        self.walked.nodes.hidden = hidden.collect();
        check(&self.room)?;
        Ok(self.next == self.walked.nodes.addresses.len())
    }

    fn all(&mut self) -> Result<(), OutOfMemory> {
        self.number()?;
        let mut near = Vec::new();
        let mut modules = Vec::new();
        for root in std::mem::take(&mut self.caller.roots.all) {
            let Some(node) = self.walked.table.get(root.address).map(Node) else { continue };
            if root.kind == RootKind::Modules {
                modules.push(node);
            }
            near.push(node);
            if root.is_here {
                self.walked.builder.root(node);
            } else {
                self.walked.elsewhere.push(node);
            }
            self.walked.nodes.roots.entry(node).or_insert(root);
        }
        self.on(&modules)?;
        self.walked.mark_rest()?;
        if !self.walked.nodes.frozen_seen {
            self.find_frozen()?;
        }
        // What was not seen is counted without asking.
        self.room = reserve(self.walked.nodes.addresses.len() * 16)?;
        let threads = threads_over(self.walked.nodes.addresses.len(), self.question);
        let blocked = Blocked::all();
        let reached = self.walked.builder.reached(near, threads);
        drop(blocked);
        // Of several objects that have the same memory, one that a root leads to says who holds it.
        self.walked.tensors.sort_by_key(|node| !reached[node.index()]);
        let ours = std::mem::take(&mut self.caller.roots.ours);
        for address in ours.iter().chain([&self.question.address]).chain(&own_references::lists()) {
            if let Some(node) = self.walked.table.get(*address)
                && !reached[node as usize]
            {
                self.walked.nodes.kinds[node as usize] = Kind::Ours;
            }
        }
        let Asked { kept, probe, autograd, layout, .. } = &self.question.asked;
        // What is in a list is also held by the interpreter, where no slot shows it.
        let in_lists = kept.iter().filter_map(|kept| kept.cast::<PyList>().ok()).flatten();
        let unseen = kept.iter().chain([probe, autograd, layout]).cloned().chain(in_lists);
        let unseen = unseen.map(|object| (object.as_ptr().addr(), -1));
        let borrowed = self.caller.roots.borrowed.iter().map(|address| (*address, 1));
        for (address, references) in unseen.chain(borrowed) {
            if let Some(node) = self.walked.table.get(address) {
                self.walked.unexplained[node as usize] += references;
            }
        }
        self.count(&reached, &ours);
        check(&self.room)
    }

    /// Finds the frozen objects where they could not be read before the walk, and asks those that nothing
    /// else leads to.
    fn find_frozen(&mut self) -> Result<(), OutOfMemory> {
        if self.question.collector.interpreter.finds_frozen {
            let Nodes { addresses, lists, frozen_count, .. } = &self.walked.nodes;
            let unlisted = addresses.iter().zip(lists).filter(|(_, list)| **list == List::Unknown);
            let tracked = unlisted.map(|(address, _)| *address).filter(|one| is_tracked(*one));
            let tried = tracked.take(frozen::TRIED_MOST).chain([self.question.immortal]);
            if let Some(found) = frozen::from_any(tried, *frozen_count) {
                self.walked.nodes.frozen_seen = true;
                let mortals = found.iter().filter(|one| frozen::is_mortal(**one));
                self.walked.nodes.frozen_count = mortals.count();
                for address in found {
                    self.meet(address)?;
                }
                self.on(&[])?;
            }
        }
        self.walked.mark_rest()?;
        // The collector tracks what is frozen, and does not list it.
        for (address, list) in self.walked.nodes.addresses.iter().zip(&mut self.walked.nodes.lists)
        {
            if *list == List::Unknown && is_tracked(*address) && frozen::is_mortal(*address) {
                *list = List::Frozen;
            }
        }
        Ok(())
    }

    /// Numbers the objects that are known so far.
    fn number(&mut self) -> Result<(), OutOfMemory> {
        let Walked { table, nodes: Nodes { addresses, .. }, .. } = &mut self.walked;
        let threads = threads_over(addresses.len(), self.question);
        let numbering = table.add_rows()?;
        let size = piece_size(addresses.len(), threads);
        let next = AtomicUsize::new(0);
        let fill = || loop {
            let begin = next.fetch_add(size, Ordering::Relaxed);
            let Some(rest) = addresses.get(begin..).filter(|rest| !rest.is_empty()) else { break };
            numbering.fill(begin as u32, &rest[..rest.len().min(size)]);
        };
        together(threads, fill, fill);
        Ok(())
    }

    /// Meets an object that may have no number yet.
    fn meet(&mut self, address: usize) -> Result<(), OutOfMemory> {
        if self.walked.table.get(address).is_some() {
            return Ok(());
        }
        let Some(seen) = look(self.question, self.caller.types, address) else { return Ok(()) };
        self.walked.builder.nodes(1);
        self.add(&Met { seen, unexplained: 0 })
    }

    /// Adds an object that has a node in the graph.
    fn add(&mut self, met: &Met) -> Result<(), OutOfMemory> {
        let node = self.walked.meet(met)?;
        let class = class_of(with_exposed_provenance_mut(met.seen.address));
        if self.most < usize::MAX || self.caller.types.of(class).reader.is_none() {
            self.for_caller.try_reserve(1)?;
            self.for_caller.push(node);
        }
        Ok(())
    }

    /// Asks the objects that have not been asked, and those that are met thereby. The nodes
    /// `modules` are tables of modules.
    fn on(&mut self, modules: &[Node]) -> Result<(), OutOfMemory> {
        while self.next < self.walked.nodes.addresses.len()
            && self.walked.nodes.addresses.len() <= self.most
        {
            let found = self.part()?;
            for node in modules {
                self.walked.nodes.kinds[node.index()] = Kind::Modules;
            }
            for met in &found.new {
                self.add(met)?;
            }
            self.renames.try_reserve(found.renames.len())?;
            self.renames.extend(found.renames);
            let kinds = &mut self.walked.nodes.kinds;
            self.renames.retain(|(node, from, to)| {
                let kind = kinds.get_mut(node.index());
                let is_later = kind.is_none();
                // What it is to its holder says more than its type.
                if let Some(kind) = kind.filter(|kind| **kind == *from) {
                    *kind = *to;
                }
                is_later
            });
            check(&self.room)?;
        }
        Ok(())
    }

    /// Asks the objects that have not been asked.
    fn part(&mut self) -> Result<Found, OutOfMemory> {
        let Walk { question, caller, walked, for_caller, by_caller, walker, numbers, next, .. } =
            self;
        let (begin, end) = (*next, walked.nodes.addresses.len());
        let threads = threads_over(end - begin, question);
        caller.ask(for_caller, &walked.nodes.addresses, by_caller)?;
        let tensors = by_caller.rows.iter().filter(|holder| holder.kind == Kind::Tensor);
        for holder in tensors {
            walked.tensors.try_reserve(1)?;
            walked.tensors.push(Node(holder.node));
        }
        for_caller.clear();
        numbers.clear()?;
        let range = WalkRange {
            addresses: &walked.nodes.addresses,
            table: &walked.table,
            unexplained: atomics(&mut walked.unexplained),
            by_caller,
            types: Mutex::new(&mut *caller.types),
            targets: question.sorted_targets(),
            first_of_others: self.our_frames,
            begin,
            end,
            piece: piece_size(end - begin, threads),
            next: AtomicUsize::new(0),
            alone: threads == NonZeroUsize::MIN,
            failed: AtomicBool::new(false),
            until: question.until,
        };
        let pieces =
            Pieces::new(&mut walked.builder, &mut walked.nodes.kinds, numbers, Node(begin as u32));
        let judge = |address| look(question, &mut range.types(), address);
        let help = || range.walk(&mut Walker::new(), &pieces, None);
        together(threads, help, || range.walk(walker, &pieces, Some(&judge)));
        if range.failed.load(Ordering::Relaxed) {
            return Err(OutOfMemory);
        }
        let found = pieces.finish(&judge)?;
        *next = end;
        Ok(found)
    }

    /// Finds objects with more references than were seen. Those that nothing leads to are held by
    /// native code.
    ///
    /// Variables of our own functions may be arguments of a call at the same time, and are left
    /// out.
    fn count(&mut self, reached: &[bool], ours: &[usize]) {
        let ours = ours.iter().filter_map(|frame| self.caller.roots.locals.get(frame)).flatten();
        let ours: HashSet<usize> = ours.copied().collect();
        let left = (0..).map(Node).zip(&self.walked.unexplained).filter(|(_, left)| **left > 0);
        let left = left.filter(|(node, _)| self.walked.nodes.kinds[node.index()] != Kind::Ours);
        let mut hidden: Vec<(Node, u32)> =
            left.map(|(node, left)| (node, left.unsigned_abs())).collect();
        for (node, count) in hidden.iter_mut().filter(|(node, _)| !reached[node.index()]) {
            let address = self.walked.nodes.addresses[node.index()];
            let object = with_exposed_provenance_mut(address);
            if ours.contains(&address) || is_being_made(object) {
                continue;
            }
            // Nobody can tell where another examination has what it works with.
            if self.question.is_of_another(class_of(object)) {
                continue;
            }
            let on_stack = self.caller.roots.stacks.get(&address);
            // SAFETY: it is alive.
            let on_stack = on_stack
                .filter(|on| on.is_exact || unsafe { ffi::PyIter_Check(object) } != 0)
                .and_then(|on| self.walked.table.get(on.frame))
                .map(Node);
            let certain = on_stack.or_else(|| self.waiting(*node));
            match certain.or_else(|| self.running(*node)) {
                Some(frame) => {
                    self.walked.builder.late_edge(frame, *node);
                    *count -= u32::from(certain.is_some());
                }
                None => self.walked.nodes.native.push(*node),
            }
        }
        self.walked.nodes.hidden = hidden.into_iter().filter(|(_, count)| *count > 0).collect();
    }

    /// Returns the frame of a suspended greenlet that was called with these arguments: native code
    /// keeps them until the greenlet ends.
    fn waiting(&mut self, node: Node) -> Option<Node> {
        let suspended = std::mem::take(&mut self.caller.roots.suspended);
        let mut frame = None;
        if !suspended.is_empty() && self.walked.nodes.kinds[node.index()] == Kind::Immutable {
            let arguments =
                self.caller.referents(self.walked.nodes.addresses[node.index()]).to_vec();
            frame = suspended.iter().find(|frame| {
                let locals = self.variables(**frame);
                !arguments.is_empty() && arguments.iter().all(|one| locals.contains(one))
            });
        }
        let found = frame.and_then(|frame| self.walked.table.get(*frame)).map(Node);
        self.caller.roots.suspended = suspended;
        found
    }

    /// Returns the variables of a suspended frame. Up to Python 3.10 its slot shows them, and they were
    /// not read before the walk.
    fn variables(&mut self, frame: usize) -> &[usize] {
        if self.caller.roots.locals.contains_key(&frame) {
            return &self.caller.roots.locals[&frame];
        }
        self.caller.referents(frame)
    }

    /// Returns the frame that runs a function: it holds the function without showing it.
    fn running(&mut self, node: Node) -> Option<Node> {
        if self.walked.nodes.kinds[node.index()] != Kind::Function {
            return None;
        }
        // Its code is among the objects that it refers to. (Reading `__code__` would run audit
        // hooks.)
        let referents = self.caller.referents(self.walked.nodes.addresses[node.index()]).to_vec();
        let frame = referents.iter().find_map(|code| self.caller.roots.running.get(code))?;
        self.walked.table.get(*frame).map(Node)
    }
}
