//! The walk: over the objects that the collector lists, and over all that they and the roots lead to.
//!
//! First, all objects that are known get numbers: some of our own, the roots, and those that the
//! collector lists. Then they are asked what they refer to; objects without a number get the next ones
//! and are asked in turn. At last it is found out what the roots lead to.
//!
//! Several threads number and ask the objects of a large heap (`walk/threads.rs`, `walk/walker.rs`). What they find
//! is put together in the order of the numbers (`walk/pieces.rs`), so the answer does not depend on them.
//! Objects that not every thread may ask are asked by the calling one before (`walk/traverse.rs`).

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
use crate::ask::object::{class_of, is_being_made};
use crate::ask::types::Kinds;
use crate::memory::heap::object;
use crate::safety::collector_off::Resting;
use crate::safety::huge_pages::Reserve;
use crate::safety::out_of_memory::{OutOfMemory, check, reserve};
use crate::safety::own_references::{self, Held};
use crate::start::collector_lists::reported_frozen;
use crate::start::frozen;
use crate::start::question::Question;
use crate::start::roots::{self, RootKind};
use crate::walk::listing::{Listed, Listing};
use crate::walk::object_table::Table;
use crate::walk::pieces::{Found, Met, Pieces};
use crate::walk::threads::{Blocked, threads_for, together};
use crate::walk::traverse::{Told, Traverser, look};
use crate::walk::walked::Walked;
use crate::walk::walker::{Ground, Walker, atomics};

/// The most and the fewest nodes that a thread asks before it looks for others.
const PIECE_MOST: usize = 16 << 10;
const PIECE_LEAST: usize = 16;
/// How many pieces there should be for each thread, so that all end at the same time.
const PIECES_EACH: usize = 16;

/// Returns how many nodes a thread asks at a time.
fn piece_size(nodes: usize, threads: NonZeroUsize) -> usize {
    (nodes / (threads.get() * PIECES_EACH)).clamp(PIECE_LEAST, PIECE_MOST)
}

/// Returns how many threads walk over so many objects.
fn threads_over(objects: usize, question: &Question<'_>) -> NonZeroUsize {
    let wanted = NonZeroUsize::new(question.interpreter.threads);
    wanted.unwrap_or_else(|| threads_for(objects))
}

struct Walk<'q, 'py> {
    question: &'q Question<'py>,
    traverser: Traverser<'q, 'py>,
    walked: Walked,
    /// The number of frames of our own. Their nodes are the first.
    our_frames: u32,
    /// Nodes up to here have been asked.
    next: usize,
    /// Nodes that only this thread asks, in order.
    told: Vec<u32>,
    asked: Told,
    walker: Walker,
    /// The numbers of the objects that a part of the walk meets for the first time.
    numbers: Table,
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
    kinds: &mut Kinds,
    before: Vec<usize>,
) -> PyResult<(Walked, Held<'py>, Resting<'py>)> {
    let room = reserve(0)?;
    kinds.forget();
    let mut frames: Vec<usize> = kinds.reported.values().flatten().copied().collect();
    frames.retain(|one| kinds.of(class_of(with_exposed_provenance_mut(*one))).kind == Kind::Frame);
    let roots = roots::find(py, question, frames.into_iter().map(|one| object(py, one)))?;
    let reported = reported_frozen(&question.interpreter, question.generations.as_ref())?;
    kinds.forget();
    // Frames of our own, then roots, then what else is ours.
    let mut first = roots.ours.clone();
    let our_frames = first.len() as u32;
    let others = roots.all.iter().map(|root| root.address);
    let others = others.chain([question.asked]).chain(own_references::lists());
    first.extend(others.filter(|address| look(question, kinds, *address).is_some()));
    // The last call into Python. An audit hook may run at its beginning, and nothing after that.
    let listed = Listing::new(kinds, first, before)?.all(question)?;
    let resting = Resting::begin(py);
    let Listed { addresses, lists, table, told, frozen } = listed;
    let mut walked = Walked::new(addresses, lists, table)?;
    walked.frozen_seen = frozen.is_some() || reported == Some(0);
    walked.frozen_count = frozen.or(reported).unwrap_or(0);
    let mut walk = Walk {
        question,
        our_frames,
        traverser: Traverser::new(question, kinds, roots),
        walked,
        next: 0,
        told,
        asked: Told::default(),
        walker: Walker::new(),
        numbers: Table::new()?,
        renames: Vec::new(),
        room,
    };
    walk.all()?;
    Ok((walk.walked, walk.traverser.roots.held, resting))
}

impl Walk<'_, '_> {
    fn all(&mut self) -> Result<(), OutOfMemory> {
        self.number()?;
        let mut near = Vec::new();
        let mut modules = Vec::new();
        for root in std::mem::take(&mut self.traverser.roots.all) {
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
            self.walked.roots.entry(node).or_insert(root);
        }
        self.on(&modules)?;
        self.walked.mark_rest()?;
        if !self.walked.frozen_seen {
            self.find_frozen()?;
        }
        // What was not seen is counted without asking.
        self.room = reserve(self.walked.addresses.len() * 16)?;
        let threads = threads_over(self.walked.addresses.len(), self.question);
        let blocked = Blocked::all();
        let reached = self.walked.builder.reached(near, threads);
        drop(blocked);
        // Of several objects that have the same memory, one that a root leads to says who holds it.
        self.walked.tensors.sort_by_key(|node| !reached[node.index()]);
        let ours = std::mem::take(&mut self.traverser.roots.ours);
        for address in ours.iter().chain([&self.question.asked]).chain(&own_references::lists()) {
            if let Some(node) = self.walked.table.get(*address)
                && !reached[node as usize]
            {
                self.walked.kinds[node as usize] = Kind::Ours;
            }
        }
        let kept = self.question.kept.iter();
        let told = [&self.question.probe, &self.question.autograd, &self.question.layout];
        for object in kept.chain(told) {
            if let Some(node) = self.walked.table.get(object.as_ptr().addr()) {
                self.walked.left[node as usize] -= 1;
            }
        }
        // What is in a list is also held by the interpreter, where no slot shows it.
        let lists = self.question.kept.iter().filter_map(|kept| kept.cast::<PyList>().ok());
        for value in lists.flatten() {
            if let Some(node) = self.walked.table.get(value.as_ptr().addr()) {
                self.walked.left[node as usize] -= 1;
            }
        }
        for address in &self.traverser.roots.borrowed {
            if let Some(node) = self.walked.table.get(*address) {
                self.walked.left[node as usize] += 1;
            }
        }
        self.count(&reached, &ours);
        check(&self.room)
    }

    /// Finds the frozen objects where they could not be read before the walk, and asks those that nothing
    /// else leads to.
    fn find_frozen(&mut self) -> Result<(), OutOfMemory> {
        let is_known = self.question.interpreter.finds_frozen;
        let found = is_known.then(|| frozen::find(&self.walked, self.question.immortal));
        if let Some(frozen) = found.flatten() {
            self.walked.frozen_seen = true;
            self.walked.frozen_count = frozen::mortals(&frozen);
            for address in frozen {
                self.meet(address)?;
            }
            self.on(&[])?;
        }
        self.walked.mark_rest()?;
        frozen::mark(&mut self.walked);
        Ok(())
    }

    /// Numbers the objects that are known so far.
    fn number(&mut self) -> Result<(), OutOfMemory> {
        let Walked { table, addresses, .. } = &mut self.walked;
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
        let Some(seen) = self.traverser.look(address) else { return Ok(()) };
        self.walked.builder.nodes(1);
        self.add(&Met { seen, left: 0 })
    }

    /// Adds an object that has a node in the graph.
    fn add(&mut self, met: &Met) -> Result<(), OutOfMemory> {
        let node = self.walked.meet(met)?;
        let class = class_of(with_exposed_provenance_mut(met.seen.address));
        if self.traverser.kinds.of(class).reader.is_none() {
            self.told.try_reserve(1)?;
            self.told.push(node);
        }
        Ok(())
    }

    /// Asks the objects that have not been asked, and those that are met thereby. The nodes
    /// `modules` are tables of modules.
    fn on(&mut self, modules: &[Node]) -> Result<(), OutOfMemory> {
        while self.next < self.walked.addresses.len() {
            let found = self.part()?;
            for node in modules {
                self.walked.kinds[node.index()] = Kind::Modules;
            }
            for met in &found.new {
                self.add(met)?;
            }
            self.renames.try_reserve(found.renames.len())?;
            self.renames.extend(found.renames);
            let kinds = &mut self.walked.kinds;
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
        let Walk { question, traverser, walked, told, asked, walker, numbers, next, .. } = self;
        let (begin, end) = (*next, walked.addresses.len());
        let threads = threads_over(end - begin, question);
        traverser.ask(told, &walked.addresses, asked)?;
        let tensors = asked.holders.iter().filter(|holder| holder.kind == Kind::Tensor);
        for holder in tensors {
            walked.tensors.try_reserve(1)?;
            walked.tensors.push(Node(holder.node));
        }
        told.clear();
        numbers.clear()?;
        let ground = Ground {
            addresses: &walked.addresses,
            table: &walked.table,
            left: atomics(&mut walked.left),
            told: asked,
            kinds: Mutex::new(&mut *traverser.kinds),
            targets: question.sorted_targets(),
            first_of_others: self.our_frames,
            begin,
            end,
            piece: piece_size(end - begin, threads),
            next: AtomicUsize::new(0),
            alone: threads == NonZeroUsize::MIN,
            failed: AtomicBool::new(false),
        };
        let pieces =
            Pieces::new(&mut walked.builder, &mut walked.kinds, numbers, Node(begin as u32));
        let judge = |address| look(question, &mut ground.kinds(), address);
        let help = || ground.walk(&mut Walker::new(), &pieces, None);
        together(threads, help, || ground.walk(walker, &pieces, Some(&judge)));
        if ground.failed.load(Ordering::Relaxed) {
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
        let ours = ours.iter().filter_map(|frame| self.traverser.roots.locals.get(frame)).flatten();
        let ours: HashSet<usize> = ours.copied().collect();
        let left = (0..).map(Node).zip(&self.walked.left).filter(|(_, left)| **left > 0);
        let left = left.filter(|(node, _)| self.walked.kinds[node.index()] != Kind::Ours);
        let mut hidden: Vec<(Node, u32)> =
            left.map(|(node, left)| (node, left.unsigned_abs())).collect();
        for (node, count) in hidden.iter_mut().filter(|(node, _)| !reached[node.index()]) {
            let address = self.walked.addresses[node.index()];
            let object = with_exposed_provenance_mut(address);
            if ours.contains(&address) || is_being_made(object) {
                continue;
            }
            // Nobody can tell where another examination has what it works with.
            if self.question.is_of_another(class_of(object)) {
                continue;
            }
            let on_stack = self.traverser.roots.stacks.get(&address);
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
                None => self.walked.native.push(*node),
            }
        }
        self.walked.hidden = hidden.into_iter().filter(|(_, count)| *count > 0).collect();
    }

    /// Returns the frame of a suspended greenlet that was called with these arguments: native code
    /// keeps them until the greenlet ends.
    fn waiting(&mut self, node: Node) -> Option<Node> {
        let suspended = std::mem::take(&mut self.traverser.roots.suspended);
        let mut frame = None;
        if !suspended.is_empty() && self.walked.kinds[node.index()] == Kind::Immutable {
            let arguments = self.traverser.referents(self.walked.addresses[node.index()]).to_vec();
            frame = suspended.iter().find(|frame| {
                let locals = self.variables(**frame);
                !arguments.is_empty() && arguments.iter().all(|one| locals.contains(one))
            });
        }
        let found = frame.and_then(|frame| self.walked.table.get(*frame)).map(Node);
        self.traverser.roots.suspended = suspended;
        found
    }

    /// Returns the variables of a suspended frame. Up to Python 3.10 its slot shows them, and they were
    /// not read before the walk.
    fn variables(&mut self, frame: usize) -> &[usize] {
        if self.traverser.roots.locals.contains_key(&frame) {
            return &self.traverser.roots.locals[&frame];
        }
        self.traverser.referents(frame)
    }

    /// Returns the frame that runs a function: it holds the function without showing it.
    fn running(&mut self, node: Node) -> Option<Node> {
        if self.walked.kinds[node.index()] != Kind::Function {
            return None;
        }
        // Its code is among the objects that it refers to. (Reading `__code__` would run audit
        // hooks.)
        let referents = self.traverser.referents(self.walked.addresses[node.index()]).to_vec();
        let frame = referents.iter().find_map(|code| self.traverser.roots.running.get(code))?;
        self.walked.table.get(*frame).map(Node)
    }
}
