//! The heap after the walk: its graph, the memory that its objects hold, and what is known of each
//! node.

use std::collections::HashSet;

use lowtide_heap::{Edge, Graph, Node};
use lowtide_types::Bytes;
use pyo3::prelude::*;

use crate::ask::kind::Kind;
use crate::ask::object::{has_attributes_in, object};
use crate::safety::own_memory::Reserve;
use crate::safety::own_references::{CollectorOff, OwnReferences};
use crate::walk::walked::{List, Nodes};

/// A piece of device memory.
pub(crate) struct MemoryNode {
    pub(crate) node: Node,
    pub(crate) bytes: Bytes,
    /// Holders in native code beyond those that Python explains; `None` if they are not known.
    pub(crate) native: Option<u32>,
    /// The first tensor that holds it.
    pub(crate) tensor: Node,
}

impl MemoryNode {
    /// Returns whether native code holds the memory.
    pub(crate) fn is_held_natively(&self) -> bool {
        self.native.is_some_and(|holders| holders > 0)
    }
}

/// The heap after the walk.
pub(crate) struct Heap<'py> {
    pub(crate) graph: Graph,
    pub(crate) nodes: Nodes,
    /// Tensors that native code holds for other tensors: the collector does not see those
    /// references.
    pub(crate) explained: HashSet<Node>,
    /// The objects that are asked about.
    pub(crate) targets: Vec<Node>,
    pub(crate) memories: Vec<MemoryNode>,
    /// Memory for the analysis.
    pub(crate) _room: Reserve,
    /// No object is freed by the collector before the answer is made.
    pub(crate) _off: CollectorOff<'py>,
    /// References of our own. They are dropped last: freeing an object may run the program's code,
    /// and freeing a tensor lets other threads run.
    pub(crate) _held: [OwnReferences<'py>; 4],
}

impl Heap<'_> {
    /// Returns what kind of object a node is.
    pub(crate) fn kind(&self, node: Node) -> Kind {
        self.nodes.kinds[node.index()]
    }

    /// Returns the object of a node, or `None` for device memory.
    pub(crate) fn object<'py>(&self, py: Python<'py>, node: Node) -> Option<Bound<'py, PyAny>> {
        let address = self.nodes.addresses[node.index()];
        (address != 0).then(|| object(py, address))
    }

    /// Returns whether a node is an object.
    pub(crate) fn has_object(&self, node: Node) -> bool {
        self.nodes.addresses[node.index()] != 0
    }

    /// Returns how many references to an object were not seen.
    pub(crate) fn hidden(&self, node: Node) -> u32 {
        let hidden = &self.nodes.hidden;
        let found = hidden.binary_search_by_key(&node, |(node, _)| *node);
        found.map_or(0, |at| hidden[at].1)
    }

    /// Returns whether an object is frozen.
    pub(crate) fn is_frozen(&self, node: Node) -> bool {
        self.nodes.lists.get(node.index()) == Some(&List::Frozen)
    }

    /// Returns whether a dict is where an instance keeps its attributes: the instance has nothing
    /// else.
    pub(crate) fn keeps_attributes(&self, py: Python<'_>, instance: Node, dict: Node) -> bool {
        let mut others = self.graph.references(instance);
        self.kind(dict) == Kind::Dict
            && matches!(self.kind(instance), Kind::Instance | Kind::Model)
            && others.all(|edge| edge.to == dict || self.kind(edge.to) == Kind::Class)
            && self.object(py, instance).is_some_and(|instance| {
                let address = self.nodes.addresses[dict.index()];
                has_attributes_in(&instance, std::ptr::with_exposed_provenance_mut(address))
            })
    }

    /// Returns whether a reference leads to what belongs to its holder, rather than to what
    /// everybody uses.
    pub(crate) fn is_own(&self, edge: Edge) -> bool {
        let (from, to) = (self.kind(edge.from), self.kind(edge.to));
        let is_shared = matches!(
            to,
            Kind::Class | Kind::Module | Kind::Modules | Kind::Namespace | Kind::Frame
        );
        !(is_shared || from == Kind::Function && to == Kind::Dict)
    }

    /// Returns which of some sorted nodes are freed by counting references alone, when nothing else refers to
    /// them: no cycle keeps them, and nothing that `is_held`. (Memory keeps the Python object of its storage, which
    /// does not keep the memory then.)
    pub(crate) fn freed_by_counting(
        &self,
        nodes: &[Node],
        is_held: impl Fn(Node) -> bool,
    ) -> Vec<bool> {
        let onwards = |from: usize| {
            let counts = self.kind(nodes[from]) != Kind::Memory;
            let edges = counts.then(|| self.graph.references(nodes[from])).into_iter().flatten();
            edges.filter_map(|edge| nodes.binary_search(&edge.to).ok())
        };
        let mut references = vec![0_u32; nodes.len()];
        (0..nodes.len()).flat_map(onwards).for_each(|to| references[to] += 1);
        let is_free = |at: usize, references: &[u32]| references[at] == 0 && !is_held(nodes[at]);
        let mut next: Vec<usize> =
            (0..nodes.len()).filter(|at| is_free(*at, &references)).collect();
        let mut freed = vec![false; nodes.len()];
        while let Some(at) = next.pop() {
            freed[at] = true;
            for to in onwards(at) {
                references[to] -= 1;
                if is_free(to, &references) {
                    next.push(to);
                }
            }
        }
        freed
    }
}

/// Returns the nodes that some nodes lead to, themselves included.
pub(crate) fn reached<I: IntoIterator<Item = Node>>(
    first: impl IntoIterator<Item = Node>,
    onwards: impl Fn(Node) -> I,
) -> HashSet<Node> {
    let mut seen: HashSet<Node> = first.into_iter().collect();
    let mut next: Vec<Node> = seen.iter().copied().collect();
    while let Some(node) = next.pop() {
        next.extend(onwards(node).into_iter().filter(|node| seen.insert(*node)));
    }
    seen
}
