//! What to cut below an object that the program needs, rather than the object.
//!
//! `del gateway` frees what two waiting tasks hold, and the gateway goes with it. The memory has one
//! holder, but no single reference below it. Where entries of containers, or variables of code that
//! waits, have nearly all of it, they are what a person drops.

use lowtide_heap::{Cut, CutCost, Edge, Node};
use lowtide_types::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::answer::results::Analysed;
use crate::ask::kind::Kind;

/// Pieces of memory that are looked at.
const PIECES_MOST: usize = 64;
/// A cut that frees so many percent of the bytes is enough.
const NEARLY_ALL: u64 = 95;
/// A piece with less than this part of the largest is not looked at.
const SMALL: u64 = 100;

impl Analysed<'_, '_> {
    /// Returns the cuts of entries below an object that free nearly all of the memory that nobody else holds: that
    /// of the object's own entries, then the one with the fewest.
    pub(crate) fn cuts_below(&self, holder: Node) -> Vec<Cut> {
        let is_optimizer = self.is_optimizer(holder);
        let memories = self.heap.memories.iter();
        let own = memories.filter(|one| self.analysis.dominates(holder, one.node));
        // The state of a parameter goes with it.
        let own = own.filter(|one| !is_optimizer || self.is_of_class(one.tensor, "Parameter"));
        let mut own: Vec<(Node, Bytes)> = own.map(|one| (one.node, one.bytes)).collect();
        // No entry goes for a bias that nobody else has.
        let largest = own.iter().map(|one| one.1.0).max().unwrap_or_default();
        own.retain(|one| one.1.0 * SMALL >= largest);
        let least = if is_optimizer { 1 } else { 2 };
        if !(least..=PIECES_MOST).contains(&own.len()) || !self.has_entries(holder) {
            return Vec::new();
        }
        let whole: Bytes = own.iter().map(|one| one.1).sum();
        let mut found: Vec<Cut> = Vec::new();
        for only_own in [true, false] {
            let cost = |edge: Edge| {
                let is_below = if only_own {
                    edge.from == holder
                } else {
                    self.analysis.dominates(holder, edge.from)
                };
                let can = is_below && self.is_entry_of_any(edge);
                if can { CutCost::Cost(1) } else { CutCost::Never }
            };
            let cuts = |nodes: &[Node]| self.analysis.cuts(nodes, PIECES_MOST as u64, cost).ok();
            let some = own.iter().filter(|one| cuts(&[one.0]).is_some());
            let (nodes, sizes): (Vec<Node>, Vec<Bytes>) = some.copied().unzip();
            let bytes: Bytes = sizes.into_iter().sum();
            if bytes.0 * 100 >= whole.0 * NEARLY_ALL {
                let cuts = cuts(&nodes).unwrap_or_default();
                let fewest = cuts.into_iter().min_by_key(|cut| cut.edges.len());
                let is_new = |cut: &Cut| found.iter().all(|one| one.edges != cut.edges);
                found.extend(fewest.map(|cut| self.with_values(&cut)).filter(is_new));
            }
        }
        found
    }

    /// Returns a cut that takes keys from dicts with what stands under those keys.
    fn with_values(&self, cut: &Cut) -> Cut {
        let mut edges = cut.edges.clone();
        for edge in &cut.edges {
            let [dict, key] = [edge.from, edge.to].map(|node| self.heap.object(self.py, node));
            let (Some(Ok(dict)), Some(key)) = (dict.map(Bound::cast_into::<PyDict>), key) else {
                continue;
            };
            let Some((_, value)) = dict.iter().find(|(one, _)| one.is(&key)) else { continue };
            let address = value.as_ptr().addr();
            let values = self.heap.graph.references(edge.from);
            edges.extend(values.filter(|one| self.heap.nodes.addresses[one.to.index()] == address));
        }
        edges.sort_unstable();
        let freed = self.analysis.freed_by(&edges);
        Cut { edges, freed, ..cut.clone() }
    }

    /// Returns whether an object may be more than what it holds: no model or tensor, but an optimizer.
    fn has_entries(&self, node: Node) -> bool {
        let is_simple = matches!(
            self.heap.kind(node),
            Kind::Model | Kind::Tensor | Kind::Memory | Kind::Immutable | Kind::Frame
        );
        !is_simple || self.is_optimizer(node)
    }

    fn is_optimizer(&self, node: Node) -> bool {
        self.heap.kind(node) == Kind::Model && self.is_of_class(node, "Optimizer")
    }

    /// Returns whether an object is of a class of this name, or of one below it.
    pub(crate) fn is_of_class(&self, node: Node, name: &str) -> bool {
        let class = self.heap.object(self.py, node).map(|one| one.get_type());
        class.is_some_and(|class| {
            let mut classes = class.mro().iter();
            classes.any(|one| {
                one.cast::<PyType>().is_ok_and(|one| one.name().is_ok_and(|known| known == name))
            })
        })
    }

    /// Returns whether a reference is an entry of a container or cache, or leads from code that waits.
    fn is_entry_of_any(&self, edge: Edge) -> bool {
        match self.heap.kind(edge.from) {
            Kind::Container | Kind::Generator => true,
            Kind::Dict => !self.has_attributes(edge.from) && !self.are_keyword_defaults(edge.from),
            _ => self.is_entry(edge),
        }
    }
}
