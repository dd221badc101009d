//! The heap as it was walked: numbers for objects, references between them, and how many references of
//! each are explained. The other side of the walk, which touches no object.

use std::collections::HashMap;

use lowtide_heap::{GraphBuilder, Node};

use super::kind::Kind;
use super::object::is_immortal;
use super::roots::Root;
use super::table::{Place, Table};
use super::traverse::{Batch, Seen};

/// The heap as it was walked, still open for what is found out about device memory.
pub(crate) struct Walked {
    pub(crate) builder: GraphBuilder,
    pub(crate) table: Table,
    /// By node: where the object is; 0 where it is no object.
    pub(crate) addresses: Vec<usize>,
    /// By node.
    pub(crate) kinds: Vec<Kind>,
    /// By node: references to it that nobody has explained yet.
    pub(crate) left: Vec<i32>,
    /// Tensors, and other objects that may hold device memory.
    pub(crate) tensors: Vec<Node>,
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
    /// Room for those of a batch.
    places: Vec<Place>,
}

impl Walked {
    /// Nothing yet, with room for as many objects as the collector lists and some that it does not.
    pub(crate) fn with_room(tracked: usize, frozen_count: usize) -> Walked {
        let room = tracked + tracked / 8;
        Walked {
            builder: GraphBuilder::with_capacity(room, tracked * 4),
            table: Table::with_room(room),
            addresses: Vec::with_capacity(room),
            kinds: Vec::with_capacity(room),
            left: Vec::with_capacity(room),
            tensors: Vec::new(),
            hidden: Vec::new(),
            listed: Vec::new(),
            native: Vec::new(),
            elsewhere: Vec::new(),
            roots: HashMap::new(),
            frozen_count,
            frozen_seen: false,
            places: Vec::new(),
        }
    }

    /// The node of an object, made where it is met for the first time.
    pub(crate) fn meet(&mut self, seen: Seen) -> Node {
        let place = self.table.place(seen.address);
        self.meet_at(place, seen)
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

    /// Takes in what some nodes refer to, the first of which is this one.
    pub(crate) fn take_in(&mut self, first: usize, batch: &Batch) {
        // All places first: when the numbers are read, memory has had time to bring them.
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        places.extend(batch.seen.iter().map(|seen| self.table.place(seen.address)));
        let mut references = places.iter().zip(&batch.seen);
        let mut begin = 0;
        for (from, end) in (first as u32..).map(Node).zip(&batch.ends) {
            for (place, seen) in references.by_ref().take((end - begin) as usize) {
                self.refer(from, *place, *seen);
            }
            begin = *end;
        }
        self.places = places;
    }

    /// A node refers to an object, which explains one of the object's references.
    fn refer(&mut self, from: Node, place: Place, seen: Seen) {
        let to = self.meet_at(place, seen);
        self.left[to.index()] -= 1;
        self.builder.edge(from, to);
        // What it is to this one says more than its type did.
        match seen.kind {
            Kind::Namespace if self.kinds[to.index()] == Kind::Dict => {}
            Kind::Defaults if self.kinds[to.index()] == Kind::Immutable => {}
            _ => return,
        }
        self.kinds[to.index()] = seen.kind;
    }
}
