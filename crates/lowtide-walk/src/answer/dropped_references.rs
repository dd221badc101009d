//! Decides which references a shutdown drops.
//!
//! What only the owner holds goes with the owner's reference to it. A dict, a list or a namespace
//! stays, and only the entries that lead to device memory go: it may have others. What somebody
//! else holds too, such as a configuration, is left as it is, except for entries of its containers
//! that belong to the owner: the same objects that the owner also reaches without it. A
//! configuration owns no memory, so that all that its containers lead to counts as the owner's.

use std::collections::{HashMap, HashSet};

use lowtide_heap::{Analysis, Edge, Node};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFrozenSet, PyList, PySet, PyTuple, PyType};

use crate::ask::kind::Kind;
use crate::memory::heap::{self, Heap};

/// How often it is looked again, because entries that go make more the owner's alone.
const SEARCHES_MOST: usize = 4;

/// What a shutdown does with an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Device memory, or a model, which is known as one thing.
    Memory,
    /// Entries can be removed from it.
    Container,
    /// A `SimpleNamespace` or a `UserDict`: its attributes are entries, if nobody else has it.
    Namespace,
    /// A tuple or a frozenset.
    Immutable,
    Object,
}

/// A reference that a shutdown drops.
pub(crate) struct Dropped {
    pub(crate) edge: Edge,
    /// The object that has it. The edge may begin at the dict with its attributes.
    pub(crate) holder: Node,
    /// Whether the holder is somebody else's as well.
    is_shared: bool,
}

/// What a shutdown drops.
pub(crate) struct DroppedReferences {
    pub(crate) dropped: Vec<Dropped>,
    /// By object: the object through which it was found.
    pub(crate) found_in: HashMap<Node, Node>,
    /// What the owners reach without anything that somebody else holds too, except memory.
    pub(crate) own: HashSet<Node>,
    /// Containers of the owners that somebody else has too.
    pub(crate) kept: Vec<Node>,
}

/// The objects that are shut down, each with the dicts in which it keeps what it has.
pub(crate) struct Owners<'a, 'py> {
    /// By an object or dict: the object whose it is.
    pub(crate) owner_of: HashMap<Node, Node>,
    /// The same, in the order in which they are looked at: the object that is shut down comes last. It drops
    /// a part as a whole, and what an object beside it has too would stay with that one: so the entries of
    /// such a part are found first.
    pub(crate) all: Vec<(Node, Node)>,
    /// By object: the addresses of the values that count, if not all do.
    pub(crate) only_of: HashMap<Node, HashSet<usize>>,
    /// The object that is shut down; the others only belong to it.
    pub(crate) first: Node,
    /// Values of the first that are called a configuration.
    pub(crate) configurations: HashSet<Node>,
    /// Types whose objects are a [`Shape::Namespace`].
    pub(crate) namespaces: &'a [Bound<'py, PyType>],
}

pub(crate) struct DropSearch<'a, 'py> {
    py: Python<'py>,
    heap: &'a Heap<'py>,
    owners: &'a Owners<'a, 'py>,
    /// The nodes that lead to device memory.
    leading: HashSet<Node>,
    /// What is lost if the owners lose all that they have.
    lost: HashSet<Node>,
    /// What the owners reach without anything that somebody else holds too, except memory.
    own: HashSet<Node>,
    visited: HashSet<Node>,
    /// By object: the object through which it was found.
    found_in: HashMap<Node, Node>,
    dropped: Vec<Dropped>,
    kept: Vec<Node>,
}

impl<'a, 'py> DropSearch<'a, 'py> {
    pub(crate) fn new(
        py: Python<'py>,
        heap: &'a Heap<'py>,
        analysis: &Analysis<'_>,
        owners: &'a Owners<'a, 'py>,
    ) -> DropSearch<'a, 'py> {
        let mut search = DropSearch {
            py,
            heap,
            owners,
            leading: leading(heap, owners),
            lost: HashSet::new(),
            own: HashSet::new(),
            visited: HashSet::new(),
            found_in: HashMap::new(),
            dropped: Vec::new(),
            kept: Vec::new(),
        };
        search.lose(analysis, &[]);
        search
    }

    /// Finds out what is lost if the owners lose all that they have, and these references go, too.
    /// Returns whether that is more than before.
    fn lose(&mut self, analysis: &Analysis<'_>, shared: &[Edge]) -> bool {
        let owned: Vec<Edge> = self.owned().into_iter().map(|(_, edge)| edge).collect();
        let all: Vec<Edge> = owned.iter().chain(shared).copied().collect();
        let mut lost: HashSet<Node> = analysis.lost_by(&all).into_iter().collect();
        // An object that is about to end has only us: nobody else holds what no root reaches.
        lost.extend(self.leading.iter().copied().filter(|node| !analysis.is_reached(*node)));
        let is_more = lost.len() > self.lost.len();
        self.lost = lost;
        self.own = self.reached_alone(&owned);
        is_more
    }

    /// Returns what is dropped. A reference that somebody else has too is not, if that would free
    /// nothing.
    pub(crate) fn dropped(mut self, analysis: &Analysis<'_>) -> DroppedReferences {
        let mut dropped = self.search();
        // What was somebody else's by an entry that goes is the owner's alone.
        for _ in 1..SEARCHES_MOST {
            let shared: Vec<Edge> =
                dropped.iter().filter(|one| one.is_shared).map(|one| one.edge).collect();
            if shared.is_empty() || !self.lose(analysis, &shared) {
                break;
            }
            dropped = self.search();
        }
        let edges: Vec<Edge> = dropped.iter().map(|one| one.edge).collect();
        let lost: HashSet<Node> = analysis.lost_by(&edges).into_iter().collect();
        dropped.retain(|one| {
            !one.is_shared || self.memories(one.edge.to).iter().any(|node| lost.contains(node))
        });
        let DropSearch { found_in, own, kept, .. } = self;
        DroppedReferences { dropped, found_in, own, kept }
    }

    fn search(&mut self) -> Vec<Dropped> {
        self.visited.clear();
        self.found_in.clear();
        self.kept.clear();
        for (owner, edge) in self.owned() {
            self.found_in.entry(edge.to).or_insert(owner);
            self.drop_from(owner, edge, owner == self.owners.first);
        }
        std::mem::take(&mut self.dropped)
    }

    /// Returns the references of the owners that lead to memory, each with its owner.
    fn owned(&self) -> Vec<(Node, Edge)> {
        let edges = self.owners.all.iter().flat_map(|(node, owner)| {
            self.heap.graph.references(*node).map(move |edge| (*owner, edge))
        });
        let counts = |owner: &Node, edge: &Edge| {
            let address = self.heap.nodes.addresses[edge.to.index()];
            self.owners.only_of.get(owner).is_none_or(|only| only.contains(&address))
        };
        edges.filter(|(owner, edge)| self.leads(*edge) && counts(owner, edge)).collect()
    }

    /// Drops what a reference of an owner, or of a container that only owners hold, leads to.
    /// `whole` says that a part of it may go as a whole.
    fn drop_from(&mut self, holder: Node, edge: Edge, whole: bool) {
        let (to, is_own) = (edge.to, self.lost.contains(&edge.to));
        let is_given = !whole || self.owners.configurations.contains(&to);
        match self.shape(to) {
            Shape::Memory => self.note(holder, edge, false),
            Shape::Immutable => {
                self.note(holder, edge, false);
                self.look_into(to, false);
            }
            Shape::Container | Shape::Namespace if is_own => {
                if self.visited.insert(to) {
                    for edge in self.children(to) {
                        self.found_in.entry(edge.to).or_insert(to);
                        self.drop_from(to, edge, whole);
                    }
                }
            }
            Shape::Container => {
                self.kept.push(to);
                self.drop_entries(to, is_given);
            }
            Shape::Object if is_own && whole => {
                self.note(holder, edge, false);
                self.look_into(to, false);
            }
            Shape::Object | Shape::Namespace => self.look_into(to, is_given),
        }
    }

    /// Looks for containers in an object that stays, or that goes as a whole. `is_given` says that
    /// whatever memory they lead to belongs to the owner.
    fn look_into(&mut self, object: Node, is_given: bool) {
        let mut next = vec![object];
        while let Some(object) = next.pop() {
            if !self.visited.insert(object) {
                continue;
            }
            for edge in self.children(object) {
                self.found_in.entry(edge.to).or_insert(object);
                match self.shape(edge.to) {
                    // It goes with the part that has it, but may lead to what stays.
                    Shape::Container if !is_given && self.lost.contains(&edge.to) => {
                        next.push(edge.to);
                    }
                    Shape::Container => self.drop_entries(edge.to, is_given),
                    Shape::Object | Shape::Namespace => next.push(edge.to),
                    // Somebody else's attribute stays, unless it is a part of what was given.
                    Shape::Memory | Shape::Immutable => {
                        if is_given && self.lost.contains(&object) {
                            self.note(object, edge, false);
                        }
                    }
                }
            }
        }
    }

    /// Drops the entries of a container that stays.
    fn drop_entries(&mut self, container: Node, is_given: bool) {
        let mut next = vec![container];
        while let Some(container) = next.pop() {
            if !self.visited.insert(container) {
                continue;
            }
            for edge in self.children(container) {
                self.found_in.entry(edge.to).or_insert(container);
                if self.shape(edge.to) == Shape::Container {
                    next.push(edge.to);
                } else if is_given || self.belongs(edge.to) {
                    self.note(container, edge, true);
                }
            }
        }
    }

    fn note(&mut self, holder: Node, edge: Edge, is_shared: bool) {
        self.dropped.push(Dropped { edge, holder, is_shared });
    }

    /// Returns whether an owner also has an object, or memory that it leads to, without anybody
    /// else's help.
    fn belongs(&self, node: Node) -> bool {
        self.own.contains(&node) || self.memories(node).iter().any(|node| self.own.contains(node))
    }

    /// Returns the device memory that a node leads to.
    fn memories(&self, node: Node) -> Vec<Node> {
        let seen = reached(self.heap, self.owners, [node], |_| true);
        seen.into_iter().filter(|node| self.heap.kind(*node) == Kind::Memory).collect()
    }

    fn reached_alone(&self, edges: &[Edge]) -> HashSet<Node> {
        let is_through = |node: Node| {
            self.lost.contains(&node)
                || self.heap.kind(node) == Kind::Memory
                || !self.heap.has_object(node)
                || self.shape(node) == Shape::Memory
        };
        let first = edges.iter().map(|edge| edge.to).filter(|node| is_through(*node));
        reached(self.heap, self.owners, first, is_through)
    }

    fn leads(&self, edge: Edge) -> bool {
        self.heap.is_own(edge)
            && self.leading.contains(&edge.to)
            && !self.owners.owner_of.contains_key(&edge.to)
    }

    /// Returns the references of an object that lead to memory, those of its attributes among them.
    fn children(&self, node: Node) -> Vec<Edge> {
        let own = self.heap.graph.references(node).filter(|edge| self.leads(*edge));
        let mut edges: Vec<Edge> = own.collect();
        let Some(dict) = self.attributes(node, &edges) else { return edges };
        edges.retain(|edge| edge.to != dict);
        edges.extend(self.heap.graph.references(dict).filter(|edge| self.leads(*edge)));
        edges
    }

    /// Returns the dict in which an object keeps its attributes, if it is one of these references.
    fn attributes(&self, node: Node, edges: &[Edge]) -> Option<Node> {
        let mut dicts = edges.iter().map(|edge| edge.to);
        if matches!(self.shape(node), Shape::Container | Shape::Immutable) {
            return None;
        }
        let is_dict = |node: &Node| self.heap.kind(*node) == Kind::Dict;
        if !dicts.clone().any(|node| is_dict(&node)) {
            return None;
        }
        let object = self.heap.object(self.py, node)?;
        // SAFETY: the object is alive, and none of the program's code runs.
        let dict = unsafe { ffi::PyObject_GenericGetDict(object.as_ptr(), std::ptr::null_mut()) };
        // SAFETY: it is a new reference, or null with an exception.
        let found = unsafe { Bound::from_owned_ptr_or_err(self.py, dict) };
        let address = found.ok()?.as_ptr().addr();
        dicts.find(|node| self.heap.nodes.addresses[node.index()] == address)
    }

    fn shape(&self, node: Node) -> Shape {
        match self.heap.kind(node) {
            Kind::Tensor | Kind::Model | Kind::Memory => return Shape::Memory,
            Kind::Dict | Kind::Container => return Shape::Container,
            Kind::Immutable | Kind::Defaults => return Shape::Immutable,
            _ => {}
        }
        let Some(object) = self.heap.object(self.py, node) else { return Shape::Object };
        if object.is_instance_of::<PyDict>()
            || object.is_instance_of::<PyList>()
            || object.is_instance_of::<PySet>()
        {
            Shape::Container
        } else if object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyFrozenSet>() {
            Shape::Immutable
        } else if self.owners.namespaces.iter().any(|kind| object.get_type().is(kind)) {
            Shape::Namespace
        } else {
            Shape::Object
        }
    }
}

/// Returns what some nodes lead to by references of their own, not through the owners.
pub(crate) fn reached(
    heap: &Heap<'_>,
    owners: &Owners<'_, '_>,
    first: impl IntoIterator<Item = Node>,
    is_through: impl Fn(Node) -> bool,
) -> HashSet<Node> {
    heap::reached(first, |node| {
        let own = heap.graph.references(node).filter(|edge| heap.is_own(*edge)).map(|edge| edge.to);
        own.filter(|to| !owners.owner_of.contains_key(to) && is_through(*to))
    })
}

/// Returns the nodes below the owners that lead to a tensor.
fn leading(heap: &Heap<'_>, owners: &Owners<'_, '_>) -> HashSet<Node> {
    let below = reached(heap, owners, owners.owner_of.keys().copied(), |_| true);
    let mut holders: HashMap<Node, Vec<Node>> = HashMap::new();
    for node in &below {
        for edge in heap.graph.references(*node).filter(|edge| heap.is_own(*edge)) {
            if below.contains(&edge.to) {
                holders.entry(edge.to).or_default().push(*node);
            }
        }
    }
    let tensors = below.iter().copied().filter(|node| heap.kind(*node) == Kind::Tensor);
    heap::reached(tensors, |node| holders.get(&node).into_iter().flatten().copied())
}
