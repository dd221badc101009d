//! The heap as the walk sees it: numbers for objects, references between them, and how many
//! references to each are explained. This side of the walk touches no object.

use std::collections::HashMap;

use lowtide_heap::{GraphBuilder, Node};

use crate::ask::kind::Kind;
use crate::safety::own_memory::{OutOfMemory, zeroed};
use crate::start::roots::Root;
use crate::walk::object_table::ObjectTable;
use crate::walk::pieces::Met;

/// Where the collector has an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    /// In no list, as far as is known.
    Unknown,
    /// In a generation.
    Generation,
    /// Among the frozen objects. An immortal one that is there was not frozen by anybody, and is none.
    Frozen,
}

/// What is known of the nodes.
#[derive(Default)]
pub(crate) struct Nodes {
    /// The address of each object; 0 if the node is no object.
    pub(crate) addresses: Vec<usize>,
    /// The kind of each node.
    pub(crate) kinds: Vec<Kind>,
    /// Nodes with more references than were seen, and how many more; in order.
    pub(crate) hidden: Vec<(Node, u32)>,
    /// Where the collector has each object. The last nodes, which are no objects, are left out.
    pub(crate) lists: Vec<List>,
    /// Objects that nothing in the heap leads to, although something refers to them.
    pub(crate) native: Vec<Node>,
    pub(crate) roots: HashMap<Node, Root>,
    /// How many objects are frozen. Immortal ones count only if the frozen ones were not found.
    pub(crate) frozen_count: usize,
    /// Whether all of them were found.
    pub(crate) frozen_seen: bool,
}

/// The heap as the walk sees it. Device memory is added later.
pub(crate) struct Walked {
    pub(crate) builder: GraphBuilder,
    pub(crate) table: ObjectTable,
    pub(crate) nodes: Nodes,
    /// By node: references to it that are not explained yet.
    pub(crate) unexplained: Vec<i32>,
    /// Tensors, and other objects that may hold device memory.
    pub(crate) tensors: Vec<Node>,
    /// Roots of other threads than the one that asks.
    pub(crate) elsewhere: Vec<Node>,
}

impl Walked {
    /// Creates a heap of these objects, whose pages are in the table.
    pub(crate) fn new(
        addresses: Vec<usize>,
        lists: Vec<List>,
        table: ObjectTable,
    ) -> Result<Walked, OutOfMemory> {
        let objects = addresses.len();
        let mut walked = Walked {
            builder: GraphBuilder::default(),
            table,
            nodes: Nodes { addresses, lists, ..Nodes::default() },
            unexplained: zeroed(objects)?,
            tensors: Vec::new(),
            elsewhere: Vec::new(),
        };
        // Most heaps have some objects that are not listed, and four references to an object.
        let room = objects + objects / 8;
        walked.nodes.kinds.try_reserve(room)?;
        walked.builder.try_reserve(room, objects * 4)?;
        walked.builder.nodes(objects);
        Ok(walked)
    }

    /// Marks the nodes that have no mark yet: they were in no list that was read.
    pub(crate) fn mark_rest(&mut self) -> Result<(), OutOfMemory> {
        let more = self.nodes.addresses.len().saturating_sub(self.nodes.lists.len());
        self.nodes.lists.try_reserve(more)?;
        self.nodes.lists.resize(self.nodes.addresses.len(), List::Unknown);
        Ok(())
    }

    /// Adds an object that was met for the first time and has a node in the graph already.
    pub(crate) fn meet(&mut self, met: &Met) -> Result<u32, OutOfMemory> {
        let node = self.nodes.addresses.len() as u32;
        let index = self.table.index(met.seen.address)?;
        self.nodes.addresses.try_reserve(1)?;
        self.unexplained.try_reserve(1)?;
        self.table.fill(index, node);
        self.nodes.addresses.push(met.seen.address);
        self.unexplained.push(met.unexplained);
        Ok(node)
    }
}
