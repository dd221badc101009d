//! The heap as the walk sees it: numbers for objects, references between them, and how many
//! references to each are explained. This side of the walk touches no object.

use std::collections::HashMap;

use lowtide_heap::{GraphBuilder, Node};

use super::kind::Kind;
use super::object::is_immortal;
use super::out_of_memory::OutOfMemory;
use super::roots::Root;
use super::table::{Place, Table};
use super::traverse::{Batch, Seen};

/// The heap as the walk sees it. Device memory is added later.
pub(crate) struct Walked {
    pub(crate) builder: GraphBuilder,
    pub(crate) table: Table,
    /// By node: the address of the object; 0 if it is no object.
    pub(crate) addresses: Vec<usize>,
    /// The kind of each node.
    pub(crate) kinds: Vec<Kind>,
    /// By node: references to it that are not explained yet.
    pub(crate) left: Vec<i32>,
    /// Tensors, and other objects that may hold device memory.
    pub(crate) tensors: Vec<Node>,
    /// Nodes with more references than were seen, and how many more; in order.
    pub(crate) hidden: Vec<(Node, u32)>,
    /// The nodes that the collector lists; the others are untracked or frozen.
    pub(crate) listed: Vec<bool>,
    /// Objects that nothing in the heap leads to, although something refers to them.
    pub(crate) native: Vec<Node>,
    /// Roots of other threads than the one that asks.
    pub(crate) elsewhere: Vec<Node>,
    pub(crate) roots: HashMap<Node, Root>,
    /// How many objects are frozen, as the collector reports it.
    pub(crate) frozen_count: usize,
    /// Whether all of them were found.
    pub(crate) frozen_seen: bool,
    /// The places of a batch; kept to reuse its memory.
    places: Vec<Place>,
}

impl Walked {
    /// Creates an empty heap with room for the objects that the collector lists, and some more.
    pub(crate) fn with_room(tracked: usize, frozen_count: usize) -> Result<Walked, OutOfMemory> {
        let room = tracked + tracked / 8;
        let mut walked = Walked {
            builder: GraphBuilder::default(),
            table: Table::with_room(room)?,
            addresses: Vec::new(),
            kinds: Vec::new(),
            left: Vec::new(),
            tensors: Vec::new(),
            hidden: Vec::new(),
            listed: Vec::new(),
            native: Vec::new(),
            elsewhere: Vec::new(),
            roots: HashMap::new(),
            frozen_count,
            frozen_seen: false,
            places: Vec::new(),
        };
        walked.make_room(room)?;
        walked.builder.try_reserve(room, tracked * 4)?;
        Ok(walked)
    }

    /// Makes room for so many more nodes.
    fn make_room(&mut self, nodes: usize) -> Result<(), OutOfMemory> {
        self.addresses.try_reserve(nodes)?;
        self.kinds.try_reserve(nodes)?;
        self.left.try_reserve(nodes)?;
        Ok(())
    }

    /// Marks all nodes that have no mark yet as not listed.
    pub(crate) fn mark_rest(&mut self) -> Result<(), OutOfMemory> {
        let more = self.addresses.len().saturating_sub(self.listed.len());
        self.listed.try_reserve(more)?;
        self.listed.resize(self.addresses.len(), false);
        Ok(())
    }

    /// Returns the node of an object; adds one if it is met for the first time.
    pub(crate) fn meet(&mut self, seen: Seen) -> Result<Node, OutOfMemory> {
        self.make_room(1)?;
        self.tensors.try_reserve(1)?;
        let place = self.table.place(seen.address)?;
        Ok(self.meet_at(place, seen))
    }

    fn meet_at(&mut self, place: Place, seen: Seen) -> Node {
        if let Some(number) = self.table.number(place) {
            return Node(number);
        }
        let node = self.builder.node();
        let left = if is_immortal(seen.count) { i32::MIN / 2 } else { seen.count.cast_signed() };
        self.table.fill(place, node.0);
        self.addresses.push(seen.address);
        self.left.push(left);
        self.kinds.push(seen.kind);
        if seen.kind == Kind::Tensor {
            self.tensors.push(node);
        }
        node
    }

    /// Adds what some nodes refer to; `first` is the first of these nodes.
    pub(crate) fn take_in(&mut self, first: usize, batch: &Batch) -> Result<(), OutOfMemory> {
        let most = batch.seen.len();
        self.make_room(most)?;
        self.builder.try_reserve(most, most)?;
        if batch.seen.iter().any(|seen| seen.kind == Kind::Tensor) {
            self.tensors.try_reserve(most)?;
        }
        // All places first: by the time the numbers are read, they are in the cache.
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        places.try_reserve(most)?;
        for seen in &batch.seen {
            places.push(self.table.place(seen.address)?);
        }
        let mut references = places.iter().zip(&batch.seen);
        let mut begin = 0;
        for (from, end) in (first as u32..).map(Node).zip(&batch.ends) {
            for (place, seen) in references.by_ref().take((end - begin) as usize) {
                self.refer(from, *place, *seen);
            }
            begin = *end;
        }
        self.places = places;
        Ok(())
    }

    /// Adds a reference, which explains one of the references to the object.
    fn refer(&mut self, from: Node, place: Place, seen: Seen) {
        let to = self.meet_at(place, seen);
        self.left[to.index()] -= 1;
        self.builder.edge(from, to);
        // What it is to this holder says more than its type.
        match seen.kind {
            Kind::Namespace | Kind::Immutable if self.kinds[to.index()] == Kind::Dict => {}
            Kind::Defaults if self.kinds[to.index()] == Kind::Immutable => {}
            _ => return,
        }
        self.kinds[to.index()] = seen.kind;
    }
}
