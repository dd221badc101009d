//! The heap as the walk sees it: numbers for objects, references between them, and how many
//! references to each are explained. This side of the walk touches no object.

use std::collections::HashMap;

use lowtide_heap::{GraphBuilder, Node};

use crate::ask::kind::Kind;
use crate::safety::out_of_memory::{OutOfMemory, zeroed};
use crate::start::roots::Root;
use crate::walk::listing::List;
use crate::walk::object_table::Table;
use crate::walk::pieces::Met;

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
    /// By node: where the collector has the object.
    pub(crate) lists: Vec<List>,
    /// Objects that nothing in the heap leads to, although something refers to them.
    pub(crate) native: Vec<Node>,
    /// Roots of other threads than the one that asks.
    pub(crate) elsewhere: Vec<Node>,
    pub(crate) roots: HashMap<Node, Root>,
    /// How many objects are frozen. Immortal ones count only if the frozen ones were not found.
    pub(crate) frozen_count: usize,
    /// Whether all of them were found.
    pub(crate) frozen_seen: bool,
}

impl Walked {
    /// Creates a heap of these objects, whose pages are in the table.
    pub(crate) fn new(
        addresses: Vec<usize>,
        lists: Vec<List>,
        table: Table,
    ) -> Result<Walked, OutOfMemory> {
        let objects = addresses.len();
        let mut walked = Walked {
            builder: GraphBuilder::default(),
            table,
            addresses,
            kinds: Vec::new(),
            left: zeroed(objects)?,
            tensors: Vec::new(),
            hidden: Vec::new(),
            lists,
            native: Vec::new(),
            elsewhere: Vec::new(),
            roots: HashMap::new(),
            frozen_count: 0,
            frozen_seen: false,
        };
        // Most heaps have some objects that are not listed, and four references to an object.
        let room = objects + objects / 8;
        walked.kinds.try_reserve(room)?;
        walked.builder.try_reserve(room, objects * 4)?;
        walked.builder.nodes(objects);
        Ok(walked)
    }

    /// Marks the nodes that have no mark yet: they were in no list that was read.
    pub(crate) fn mark_rest(&mut self) -> Result<(), OutOfMemory> {
        let more = self.addresses.len().saturating_sub(self.lists.len());
        self.lists.try_reserve(more)?;
        self.lists.resize(self.addresses.len(), List::Unknown);
        Ok(())
    }

    /// Adds an object that was met for the first time and has a node in the graph already.
    pub(crate) fn meet(&mut self, met: &Met) -> Result<u32, OutOfMemory> {
        let node = self.addresses.len() as u32;
        let place = self.table.place(met.seen.address)?;
        self.addresses.try_reserve(1)?;
        self.left.try_reserve(1)?;
        self.table.fill(place, node);
        self.addresses.push(met.seen.address);
        self.left.push(met.left);
        Ok(node)
    }
}
