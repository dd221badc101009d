//! The walk: breadth first from the roots, then over the other objects that the collector lists.
//!
//! It has two sides. One asks objects what they refer to (`traverse.rs`), the other numbers them
//! and keeps the references (`walked.rs`). On a heap of millions of objects, neither fits a cache.
//! So they take turns, many objects at a time, and prefetch memory. An object that has a number is
//! not read again. (Two threads were tried and gain nothing: docs/decisions/0008.)

use std::collections::HashSet;
use std::ptr::with_exposed_provenance_mut;

use lowtide_heap::Node;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::frozen;
use super::graph::object;
use super::held::{self, Held};
use super::kind::Kind;
use super::kinds::{Kinds, class_of};
use super::listing;
use super::object::{AHEAD, is_being_made};
use super::out_of_memory::{OutOfMemory, check, reserve};
use super::question::Question;
use super::resting::Resting;
use super::roots::{self, RootKind};
use super::traverse::{Batch, Traverser, expect};
use super::walked::Walked;
use crate::huge::Reserve;

struct Walk<'q, 'py> {
    question: &'q Question<'py>,
    traverser: Traverser<'q, 'py>,
    walked: Walked,
    /// Nodes up to here have been asked.
    next: usize,
    batch: Batch,
    /// For everything that grows without asking.
    room: Reserve,
}

/// Walks the heap. Nothing runs meanwhile but traverse slots, which run no Python code. The
/// references that are returned have to be kept until the answer is made, and so long the collector
/// is off.
pub(crate) fn walk<'py>(
    py: Python<'py>,
    question: &Question<'py>,
    kinds: &mut Kinds,
) -> PyResult<(Walked, Held<'py>, Resting<'py>)> {
    let room = reserve(0)?;
    kinds.forget();
    let mut frames: Vec<usize> = kinds.reported.values().flatten().copied().collect();
    frames.retain(|one| kinds.of(class_of(with_exposed_provenance_mut(*one))).kind == Kind::Frame);
    let roots = roots::find(py, question, frames.into_iter().map(|one| object(py, one)))?;
    let frozen_count = question.interpreter.get_freeze_count.call0()?.extract()?;
    // The last call into Python. An audit hook may run at its beginning, and nothing after that.
    let listed = &listing::addresses(question, frozen_count)?;
    let resting = Resting::begin(py);
    let mut walk = Walk {
        question,
        traverser: Traverser::new(question, kinds, roots),
        walked: Walked::with_room(listed.len(), frozen_count)?,
        next: 0,
        batch: Batch::default(),
        room,
    };
    walk.all(listed)?;
    Ok((walk.walked, walk.traverser.roots.held, resting))
}

impl Walk<'_, '_> {
    fn all(&mut self, listed: &[usize]) -> Result<(), OutOfMemory> {
        for root in std::mem::take(&mut self.traverser.roots.all) {
            let Some(node) = self.meet(root.address)? else { continue };
            if root.kind == RootKind::Modules {
                self.walked.kinds[node.index()] = Kind::Modules;
            }
            if root.is_here {
                self.walked.builder.root(node);
            } else {
                self.walked.elsewhere.push(node);
            }
            self.walked.roots.entry(node).or_insert(root);
        }
        self.on()?;
        let reached = self.walked.addresses.len();
        let ours = std::mem::take(&mut self.traverser.roots.ours);
        for address in ours.iter().chain([&self.question.asked]).chain(&held::lists()) {
            self.ours(*address)?;
        }
        self.on()?;
        self.list(listed)?;
        self.on()?;
        self.walked.mark_rest()?;
        if self.walked.frozen_count > 0 && self.question.interpreter.finds_frozen {
            let frozen = frozen::find(&self.walked, self.question.immortal).unwrap_or_default();
            self.walked.frozen_seen = !frozen.is_empty();
            if self.walked.frozen_seen {
                self.walked.frozen_count = frozen::mortals(&frozen);
            }
            for address in frozen {
                self.meet(address)?;
            }
            self.on()?;
        }
        self.walked.mark_rest()?;
        // What was not seen is counted without asking.
        self.room = reserve(self.walked.addresses.len() * 16)?;
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
        self.count(reached, &ours);
        check(&self.room)
    }

    /// Returns the node of an object, or `None` if it refers to nothing and is not asked about.
    fn meet(&mut self, address: usize) -> Result<Option<Node>, OutOfMemory> {
        let Some(seen) = self.traverser.look(address) else { return Ok(None) };
        self.walked.meet(seen).map(Some)
    }

    /// Meets an object of our own: its references are counted, but hold nothing.
    fn ours(&mut self, address: usize) -> Result<(), OutOfMemory> {
        let known = self.walked.table.get(address).is_some();
        if let Some(node) = self.meet(address)?
            && !known
        {
            self.walked.kinds[node.index()] = Kind::Ours;
        }
        Ok(())
    }

    /// Meets the objects that the collector lists, and marks them as listed.
    fn list(&mut self, listed: &[usize]) -> Result<(), OutOfMemory> {
        self.walked.mark_rest()?;
        for address in listed {
            if let Some(node) = self.walked.table.get(*address) {
                self.walked.listed[node as usize] = true;
            } else if self.meet(*address)?.is_some() {
                self.walked.listed.try_reserve(1)?;
                self.walked.listed.push(true);
            }
        }
        Ok(())
    }

    /// Asks the objects that were met and have not been asked.
    fn on(&mut self) -> Result<(), OutOfMemory> {
        while self.next < self.walked.addresses.len() {
            self.traverser.ask(&self.walked.addresses[self.next..], &mut self.batch)?;
            self.walked.expect(&self.batch.shown)?;
            self.take_in()?;
            self.next += self.batch.holders.len();
            check(&self.room)?;
        }
        Ok(())
    }

    /// Adds the references of the objects that were asked.
    fn take_in(&mut self) -> Result<(), OutOfMemory> {
        let Walk { traverser, walked, batch, next, .. } = self;
        let mut begin = 0;
        for (from, (holder, end)) in (*next as u32..).map(Node).zip(&batch.holders) {
            for at in begin..*end {
                let ahead = at + AHEAD;
                if ahead < batch.shown.len() && walked.known(ahead).is_none() {
                    expect(batch.shown[ahead]);
                }
                let address = batch.shown[at];
                let to = match walked.known(at) {
                    Some(known) => known,
                    None => match traverser.look(address) {
                        Some(seen) if traverser.is_our_frame(address, seen.kind) => continue,
                        Some(seen) => walked.meet(seen)?,
                        None => continue,
                    },
                };
                let kind = walked.kinds[to.index()];
                if traverser.is_our_frame(address, kind) {
                    continue;
                }
                walked.refer(from, to);
                // What it is to this holder says more than its type.
                if let Some(kind) = traverser.held_by(*holder, kind, address) {
                    walked.kinds[to.index()] = kind;
                }
            }
            begin = *end;
        }
        Ok(())
    }

    /// Finds objects with more references than were seen. Those that nothing leads to are held by
    /// native code.
    ///
    /// Variables of our own functions may be arguments of a call at the same time, and are left
    /// out.
    fn count(&mut self, reached: usize, ours: &[usize]) {
        let ours = ours.iter().filter_map(|frame| self.traverser.roots.locals.get(frame)).flatten();
        let ours: HashSet<usize> = ours.copied().collect();
        let left = (0..).map(Node).zip(&self.walked.left).filter(|(_, left)| **left > 0);
        let left = left.filter(|(node, _)| self.walked.kinds[node.index()] != Kind::Ours);
        let mut hidden: Vec<(Node, u32)> =
            left.map(|(node, left)| (node, left.unsigned_abs())).collect();
        for (node, count) in hidden.iter_mut().filter(|(node, _)| node.index() >= reached) {
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
