//! A row of an answer while it is made, and what its makers ask of an object.

use lowtide_heap::{Cut, Node};
use lowtide_types::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::answer::results::Analysed;
use crate::ask::kind::Kind;

/// Paths that are shown for each object.
pub(super) const PATHS_MOST: usize = 4;
/// Objects of which it is looked whether others are held alike.
pub(super) const ALIKE_MOST: usize = 64;
/// Entries of a container that are looked at.
const ENTRIES_MOST: usize = 1_000;

/// Memory that is held by one object that a person knows.
pub(super) struct Group {
    pub(super) node: Node,
    pub(super) bytes: Bytes,
    pub(super) pieces: u64,
    /// Tensors with the same holders, the first of them included; none if `node` has it all.
    pub(super) equal: Vec<Node>,
    /// The cut of all holders of a model.
    pub(super) cut: Option<Cut>,
    /// Objects that are held alike, if there are several.
    pub(super) alike: usize,
    /// Whether the program has all of it by names and attributes.
    pub(super) in_use: bool,
}

impl Group {
    pub(super) fn new(node: Node, bytes: Bytes) -> Group {
        Group { node, bytes, pieces: 0, equal: Vec::new(), cut: None, alike: 1, in_use: true }
    }

    pub(super) fn add(&mut self, other: &Group) {
        self.bytes += other.bytes;
        self.pieces += other.pieces;
        self.in_use &= other.in_use;
    }
}

/// What rows are made from.
pub(super) struct Rows<'r, 'a, 'py> {
    pub(super) found: &'r Analysed<'a, 'py>,
    /// The address of the interpreter's list of calls at exit, or 0: nobody knows it by a name.
    pub(super) at_exit: usize,
}

impl Rows<'_, '_, '_> {
    /// Returns whether a list or dict is no collection of objects that are alike, but has others beside those of
    /// these classes; of none, whether it has several classes.
    pub(super) fn is_record(&self, container: Node, classes: &[usize]) -> bool {
        let Some(object) = self.found.heap.object(self.found.py, container) else { return false };
        let known: Vec<usize> = if let Ok(list) = object.cast_exact::<PyList>() {
            list.iter().take(ENTRIES_MOST).map(|one| one.get_type_ptr().addr()).collect()
        } else if let Ok(dict) = object.cast::<PyDict>() {
            dict.iter().take(ENTRIES_MOST).map(|(_, one)| one.get_type_ptr().addr()).collect()
        } else {
            return false;
        };
        let classes = if classes.is_empty() { &known[..known.len().min(1)] } else { classes };
        known.iter().any(|one| !classes.contains(one))
    }

    /// Returns whether it is a place for names, or for calls at exit, rather than an object that has a name.
    pub(super) fn is_scaffolding(&self, node: Node) -> bool {
        let is_list =
            self.found.heap.nodes.addresses[node.index()] == self.at_exit && self.at_exit != 0;
        let kind = self.found.heap.kind(node);
        // An exception or the program keeps a frame that does not run.
        let is_kept = kind == Kind::Frame && !self.found.heap.nodes.roots.contains_key(&node);
        is_list || (kind.is_scaffolding() && !is_kept)
    }
}
