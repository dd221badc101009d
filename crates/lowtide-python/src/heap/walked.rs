//! The heap as the walk sees it: numbers for objects, references between them, and how many
//! references to each are explained. This side of the walk touches no object.

use std::collections::HashMap;

use lowtide_heap::{GraphBuilder, Node};

use super::kind::Kind;
use super::object::is_immortal;
use super::out_of_memory::OutOfMemory;
use super::roots::Root;
use super::table::{Place, Table};
use super::traverse::Seen;

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
    /// Where the table has the objects that were expected last.
    places: Vec<Option<Place>>,
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
        let place = self.table.place(seen.address)?;
        if let Some(number) = self.table.number(place) {
            return Ok(Node(number));
        }
        self.make_room(1)?;
        let node = self.builder.node();
        let left = if is_immortal(seen.count) { i32::MIN / 2 } else { seen.count.cast_signed() };
        self.table.fill(place, node.0);
        self.addresses.push(seen.address);
        self.left.push(left);
        self.kinds.push(seen.kind);
        if seen.kind == Kind::Tensor {
            self.tensors.try_reserve(1)?;
            self.tensors.push(node);
        }
        Ok(node)
    }

    /// Makes room for references to some objects, and prefetches what is known of them: by the time they
    /// are asked for ([`known`](Walked::known)), it is in the cache.
    pub(crate) fn expect(&mut self, addresses: &[usize]) -> Result<(), OutOfMemory> {
        self.builder.try_reserve(addresses.len(), addresses.len())?;
        self.places.clear();
        self.places.try_reserve(addresses.len())?;
        self.places.extend(addresses.iter().map(|address| self.table.expect(*address)));
        Ok(())
    }

    /// Returns the node of an object that was expected, by its position. An object that was met since
    /// then may be missing.
    #[inline]
    pub(crate) fn known(&self, at: usize) -> Option<Node> {
        self.places.get(at)?.and_then(|place| self.table.number(place)).map(Node)
    }

    /// Adds a reference, which explains one of the references to the object.
    #[inline]
    pub(crate) fn refer(&mut self, from: Node, to: Node) {
        self.left[to.index()] -= 1;
        self.builder.edge(from, to);
    }
}
