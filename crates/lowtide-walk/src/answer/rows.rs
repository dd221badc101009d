//! The rows of an answer: for each memory the object that a person would say holds it, and those that are one row.

use std::collections::{HashMap, HashSet};

use lowtide_heap::{Node, Path};
use lowtide_types::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::answer::group::{ALIKE_MOST, Group, PATHS_MOST, Rows};
use crate::answer::in_use::InUse;
use crate::ask::kind::Kind;

/// A part that has this many percent of the whole's bytes is what a person means.
const MOST_OF_IT: u64 = 95;
/// An object with at most so many parts that hold memory is divided into them.
const PARTS_MOST: usize = 6;
/// What has less than this part of all bytes is small.
const SMALL_SHARE: u64 = 200;

impl Rows<'_, '_, '_> {
    /// Returns the objects that hold device memory, largest first; and after them what the program uses, unless
    /// the others are small.
    pub(super) fn groups(&self) -> Vec<Group> {
        let mut in_use = InUse::new(self.found);
        let mut by_node: HashMap<Node, Group> = HashMap::new();
        let mut beside: HashMap<(Node, String), Node> = HashMap::new();
        for memory in &self.found.heap.memories {
            if !self.found.analysis.is_reached(memory.node) {
                continue;
            }
            let attribute = self.beside_model(memory.node);
            let node = attribute.as_ref().map_or_else(|| self.known_as(memory.node), |one| one.0);
            let first = attribute.map(|(_, of, name)| *beside.entry((of, name)).or_insert(node));
            let at = first.unwrap_or(node);
            let group = by_node.entry(at).or_insert_with(|| Group::new(at, Bytes::ZERO));
            group.bytes += memory.bytes;
            group.pieces += 1;
            group.in_use &= in_use.has(memory.node);
            if first.is_some() && !group.equal.contains(&node) {
                group.equal.push(node);
            }
        }
        let mut groups: Vec<Group> = by_node.into_values().collect();
        groups.sort_by_key(|group| (std::cmp::Reverse(group.bytes), group.node));
        let mut groups = self.joined_alike(self.joined(groups));
        self.find_current(&mut groups);
        let all: Bytes = groups.iter().map(|group| group.bytes).sum();
        let is_last = |group: &Group| group.in_use || group.bytes.0 * SMALL_SHARE < all.0;
        groups.sort_by_key(|group| (is_last(group), std::cmp::Reverse(group.bytes), group.node));
        groups
    }

    /// Notes as in use what a collection keeps as well as something else, if the most of the collection is its alone:
    /// the current one of those that have gathered in it.
    fn find_current(&self, groups: &mut [Group]) {
        let is_collection = |group: &&Group| {
            let kind = self.found.heap.kind(group.node);
            let is_one = matches!(kind, Kind::Dict | Kind::Container | Kind::Cache);
            is_one && group.pieces > 1 && !group.in_use
        };
        let collections = groups.iter().filter(is_collection);
        let sizes: HashMap<Node, Bytes> = collections.map(|one| (one.node, one.bytes)).collect();
        let others = groups.iter().enumerate().take(if sizes.is_empty() { 0 } else { ALIKE_MOST });
        let others = others.filter(|(_, one)| !one.in_use && !sizes.contains_key(&one.node));
        let mut found: HashMap<Node, Vec<usize>> = HashMap::new();
        for (at, group) in others {
            let paths = self.found.analysis.paths(group.node, PATHS_MOST);
            let of = |path: &Path| path.nodes().find(|node| sizes.contains_key(node));
            let within = paths.iter().find_map(of);
            if let Some(within) = within.filter(|_| paths.iter().any(|path| of(path).is_none())) {
                found.entry(within).or_default().push(at);
            }
        }
        for (collection, shared) in found {
            let bytes: Bytes = shared.iter().map(|at| groups[*at].bytes).sum();
            let are_few = bytes.0 * 2 <= sizes[&collection].0;
            for at in shared {
                groups[at].in_use |= are_few;
            }
        }
    }

    /// Returns what has this memory, if it is an attribute that the program has put on a parameter of a model; with
    /// the model and the name. Those of all parameters are one thing.
    fn beside_model(&self, memory: Node) -> Option<(Node, Node, String)> {
        let heap = self.found.heap;
        let chain = self.found.analysis.dominators(memory);
        let chain: Vec<Node> = chain.take_while(|node| !self.is_scaffolding(*node)).collect();
        let kind = |at: usize| heap.kind(chain[at]);
        let at =
            (2..chain.len()).find(|at| kind(*at) == Kind::Tensor && kind(*at - 1) == Kind::Dict)?;
        let above = (at + 1..chain.len())
            .take_while(|above| matches!(kind(*above), Kind::Dict | Kind::Model));
        let model = above.filter(|above| kind(*above) == Kind::Model).last()?;
        let [value, names] = [at - 2, at - 1].map(|at| heap.object(self.found.py, chain[at]));
        let (value, names) = (value?, names?.cast_into::<PyDict>().ok()?);
        let name = names.iter().find(|(_, one)| one.is(&value))?.0;
        Some((chain[at - 2], chain[model], name.cast_into_exact::<PyString>().ok()?.to_string()))
    }

    /// Returns the object that a person would say holds this memory: the farthest that holds it
    /// alone, or the part that has most of its bytes, as long as it is no name or frame, and no
    /// part of a model.
    fn known_as(&self, memory: Node) -> Node {
        let chain: Vec<Node> = self
            .found
            .analysis
            .dominators(memory)
            .take_while(|node| !self.is_scaffolding(*node))
            .collect();
        let Some(mut at) = chain.len().checked_sub(1) else { return memory };
        let wholes = self.wholes(&chain);
        while at > 0 && !wholes[at] {
            let [whole, part] =
                [at, at - 1].map(|at| self.found.analysis.retained(chain[at]).bytes);
            if part.0 * 100 < whole.0 * MOST_OF_IT && !self.is_divided(chain[at]) {
                break;
            }
            at -= 1;
        }
        // A person calls the instance by name, not the dict in which it keeps its attributes.
        if let Some(above) = chain.get(at + 1)
            && self.found.heap.keeps_attributes(self.found.py, *above, chain[at])
        {
            at += 1;
        }
        chain[at]
    }

    /// Returns whether the parts of an object are known by their own names, since it is more than they are: a
    /// class, the state of a program, a model with what stands beside it. A few tensors are one thing.
    fn is_divided(&self, node: Node) -> bool {
        let heap = self.found.heap;
        let parts: HashSet<Node> = heap.graph.references(node).map(|edge| edge.to).collect();
        let has_some = |part: &&Node| {
            self.found.analysis.dominator(**part) == Some(node)
                && self.found.analysis.retained(**part).bytes > Bytes::ZERO
        };
        let nodes: Vec<Node> = parts.iter().filter(has_some).copied().collect();
        let parts: Vec<Kind> = nodes.iter().map(|part| heap.kind(*part)).collect();
        let has_few = parts.len() <= PARTS_MOST;
        let is_model = |kind: &Kind| *kind == Kind::Model;
        match heap.kind(node) {
            Kind::Class | Kind::ClassDict | Kind::Tensor => has_few,
            Kind::Instance | Kind::Model => {
                has_few && parts.iter().any(|kind| *kind != Kind::Tensor)
            }
            Kind::Dict if self.found.has_attributes(node) => {
                has_few && parts.iter().any(|kind| *kind != Kind::Tensor)
            }
            Kind::Dict | Kind::Container => {
                let class = |part: &Node| heap.object(self.found.py, *part);
                let classes = nodes.iter().filter_map(class).map(|one| one.get_type_ptr().addr());
                let classes: Vec<usize> = classes.collect();
                let are_models = parts.iter().any(is_model)
                    && (heap.kind(node) == Kind::Dict || !parts.iter().all(is_model));
                has_few && (are_models || self.is_record(node, &classes))
            }
            _ => false,
        }
    }

    /// Returns for each of these, which dominates those before it, whether it is one thing: a
    /// tensor, or a model that has them as its parts. What is attached to a model by a hook is no
    /// part of it.
    fn wholes(&self, chain: &[Node]) -> Vec<bool> {
        let (mut all_tensors, mut all_parts) = (true, true);
        let (mut farther, mut below) = (Kind::Memory, Kind::Memory);
        let (mut is_of_result, mut is_result) = (false, false);
        let is_whole = chain.iter().map(|node| {
            let kind = self.found.heap.kind(*node);
            // The attribute of a parameter is no part of it.
            all_parts &= (below, kind) != (Kind::Dict, Kind::Tensor);
            // Nor is a result among its attributes, with what the graph of that has saved.
            all_parts &= !(is_of_result && kind == Kind::Model);
            is_of_result =
                (farther, below, kind) == (Kind::Tensor, Kind::Tensor, Kind::Dict) && is_result;
            // What a parameter has beside it is its gradient; what native code calls a module has no graph.
            let is_a = |name| kind == Kind::Tensor && self.found.is_of_class(*node, name);
            is_result = is_a("Tensor") && !is_a("Parameter");
            (farther, below) = (below, kind);
            let is_whole = match kind {
                Kind::Tensor => all_tensors,
                Kind::Model => all_parts,
                _ => false,
            };
            all_tensors &= kind == Kind::Tensor;
            all_parts &= matches!(kind, Kind::Dict | Kind::Model | Kind::Tensor);
            is_whole
        });
        is_whole.collect()
    }
}
