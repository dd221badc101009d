//! What a shutdown of an object drops: its references that lead to device memory. Python has to
//! know which of them lead to which others, so that wrappers go first; and what stays because
//! others hold it.

use std::cmp::Reverse;
use std::collections::HashSet;

use lowtide_device::Bytes;
use lowtide_heap::{Analysis, Edge, Node};
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::found::{Lead, Leads};
use super::graph::Heap;
use super::kind::Kind;
use super::lists::list_of;
use super::memory;
use super::paths::path_of;
use super::question::Question;

/// Returns what the references from some places to some values lead to. The places are the objects
/// that are asked about and the dicts in which they keep what they have.
#[pyfunction]
pub(crate) fn leads_to<'py>(
    question: &Bound<'py, PyAny>,
    places: &Bound<'py, PyList>,
    values: &Bound<'py, PyList>,
) -> PyResult<Leads> {
    let py = question.py();
    let (question, mut kinds) = Question::new(question)?;
    let heap = memory::take(py, &question, &mut kinds)?;
    let analysis = Analysis::new(&heap.graph);
    let places: HashSet<Node> = nodes(&heap, places).into_iter().flatten().collect();
    let values = nodes(&heap, values);
    let leading = Leading { heap: &heap, places: &places };
    // A tensor has nothing but itself.
    let targets = heap.known.targets.iter().copied();
    let mut tensors: HashSet<Node> =
        targets.filter(|node| heap.kind(*node) == Kind::Tensor).collect();
    let mut ways = Vec::with_capacity(values.len());
    for value in &values {
        let seen = value.map(|value| leading.seen(value)).unwrap_or_default();
        let here = seen.iter().filter(|node| heap.kind(**node) == Kind::Tensor);
        let count = here.clone().count();
        tensors.extend(here);
        let others = values.iter().filter(|other| *other != value).flatten();
        let others = others.filter(|other| seen.contains(other)).count();
        let memories = seen.into_iter().filter(|node| heap.kind(*node) == Kind::Memory).collect();
        ways.push(Way { memories, tensors: count, values: others });
    }
    let order = wrappers_first(&ways);
    let bytes = counted_once(&heap, &ways, &order);
    let leads = ways.iter().zip(bytes).map(|(way, bytes)| {
        Py::new(py, Lead { bytes: bytes.0, tensors: way.tensors, values: way.values })
    });
    let leads = leads.collect::<PyResult<Vec<_>>>()?;
    let cut = leading.cut(&values);
    let lost: HashSet<Node> = analysis.lost_by(&cut).into_iter().collect();
    let mut tensors: Vec<Node> = tensors.into_iter().collect();
    tensors.sort_unstable();
    let objects = |nodes: Vec<Node>| {
        list_of(py, nodes.into_iter().filter_map(|node| heap.object(py, node))).map(Bound::unbind)
    };
    let stays = tensors.iter().copied().filter(|node| !lost.contains(node)).collect();
    let path = heap.known.targets.first().and_then(|target| analysis.path(*target));
    Ok(Leads {
        by_value: list_of(py, leads.into_iter().map(|lead| lead.into_bound(py)))?.unbind(),
        order,
        freed_bytes: analysis.freed_by(&cut).bytes.0,
        stays: objects(stays)?,
        tensors: objects(tensors)?,
        path: path.map(|path| path_of(py, &heap, &path)).transpose()?,
    })
}

/// What one value leads to.
struct Way {
    memories: Vec<Node>,
    tensors: usize,
    /// How many of the other values it leads to.
    values: usize,
}

/// Returns the order in which values are dropped: one that leads to most of the others wraps them.
fn wrappers_first(ways: &[Way]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..ways.len()).collect();
    order.sort_by_key(|at| Reverse(ways[*at].values));
    order
}

/// Counts each piece of memory once, for the first value in the order that leads to it. Returns the
/// bytes by value.
fn counted_once(heap: &Heap<'_>, ways: &[Way], order: &[usize]) -> Vec<Bytes> {
    let mut counted = HashSet::new();
    let mut bytes = vec![Bytes::ZERO; ways.len()];
    for at in order {
        let new = ways[*at].memories.iter().filter(|node| counted.insert(**node));
        bytes[*at] = new.map(|node| heap.graph.bytes(*node)).sum();
    }
    bytes
}

fn nodes(heap: &Heap<'_>, objects: &Bound<'_, PyList>) -> Vec<Option<Node>> {
    let wanted: Vec<usize> = objects.iter().map(|object| object.as_ptr().addr()).collect();
    let mut found = vec![None; wanted.len()];
    for (node, address) in (0..).map(Node).zip(&heap.known.addresses) {
        for (at, _) in wanted.iter().enumerate().filter(|(_, wanted)| *wanted == address) {
            found[at] = Some(node);
        }
    }
    found
}

struct Leading<'a, 'py> {
    heap: &'a Heap<'py>,
    places: &'a HashSet<Node>,
}

impl Leading<'_, '_> {
    /// Returns everything that a value leads to by references of its own, not through those who own
    /// it.
    fn seen(&self, value: Node) -> HashSet<Node> {
        let mut seen = HashSet::from([value]);
        let mut next = vec![value];
        while let Some(node) = next.pop() {
            for edge in self.heap.graph.references(node) {
                let is_on = self.heap.is_own(edge) && !self.places.contains(&edge.to);
                if is_on && seen.insert(edge.to) {
                    next.push(edge.to);
                }
            }
        }
        seen
    }

    /// Returns the references from the places to the values.
    fn cut(&self, values: &[Option<Node>]) -> Vec<Edge> {
        let values: HashSet<Node> = values.iter().copied().flatten().collect();
        let own = self.places.iter().flat_map(|place| self.heap.graph.references(*place));
        own.filter(|edge| values.contains(&edge.to)).collect()
    }
}
