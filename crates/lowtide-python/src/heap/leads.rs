//! What a shutdown of an object drops: those of its references that lead to device memory, and which
//! of them lead to which others, so that wrappers go first; and what would stay, since others hold it.

use std::collections::HashSet;

use lowtide_device::Bytes;
use lowtide_heap::{Analysis, Edge, Node};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::answer::Answering;
use super::kinds::Kind;
use super::memory::{self, Heap};
use super::question::Question;

/// What the references from some places to some values lead to. The places are the objects that are
/// asked about and the dicts in which they keep what they have. See `_native.pyi`.
#[pyfunction]
pub(crate) fn leads_to<'py>(
    asked: &Bound<'py, PyAny>,
    places: &Bound<'py, PyList>,
    values: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = asked.py();
    let (question, mut kinds) = Question::new(asked)?;
    let heap = memory::take(py, &question, &mut kinds)?;
    let analysis = Analysis::new(&heap.graph);
    let places: HashSet<Node> = nodes(&heap, places).into_iter().flatten().collect();
    let values = nodes(&heap, values);
    let leading = Leading { heap: &heap, places: &places };
    let answer = PyDict::new(py);
    // A tensor has nothing but itself.
    let targets = heap.walked.targets.iter().copied();
    let mut holders: HashSet<Node> =
        targets.filter(|node| heap.kind(*node) == Kind::Holder).collect();
    let mut led = Vec::with_capacity(values.len());
    for value in &values {
        let seen = value.map(|value| leading.seen(value)).unwrap_or_default();
        let memories = seen.iter().filter(|node| heap.kind(**node) == Kind::Memory);
        let bytes: Bytes = memories.clone().map(|node| heap.graph.bytes(*node)).sum();
        let here = seen.iter().filter(|node| heap.kind(**node) == Kind::Holder);
        let pieces = here.clone().count();
        holders.extend(here);
        let others = values.iter().enumerate().filter(|(_, other)| other != &value);
        let others = others.filter(|(_, other)| other.is_some_and(|other| seen.contains(&other)));
        led.push((bytes.0, pieces, others.map(|(at, _)| at).collect::<Vec<_>>()));
    }
    answer.set_item("led", led)?;
    let cut = leading.cut(&values);
    let lost: HashSet<Node> = analysis.lost_by(&cut).into_iter().collect();
    answer.set_item("freed", analysis.freed_by(&cut).bytes.0)?;
    let mut holders: Vec<Node> = holders.into_iter().collect();
    holders.sort_unstable();
    let objects = |nodes: Vec<Node>| -> Vec<Option<Bound<'py, PyAny>>> {
        nodes.into_iter().map(|node| heap.object(py, node)).collect()
    };
    let stay = holders.iter().copied().filter(|node| !lost.contains(node)).collect();
    answer.set_item("stay", objects(stay))?;
    answer.set_item("tensors", objects(holders))?;
    let answering = Answering { py, heap: &heap, analysis: &analysis };
    let path = heap.walked.targets.first().and_then(|target| analysis.path(*target));
    answer.set_item("path", path.map(|path| answering.path(&path)).transpose()?)?;
    Ok(answer)
}

fn nodes(heap: &Heap<'_>, objects: &Bound<'_, PyList>) -> Vec<Option<Node>> {
    let wanted: Vec<usize> = objects.iter().map(|object| object.as_ptr().addr()).collect();
    let mut found = vec![None; wanted.len()];
    for (node, address) in (0..).map(Node).zip(&heap.walked.addresses) {
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
    /// Everything that a value leads to by references of its own, not over those who own it.
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

    /// The references from the places to the values.
    fn cut(&self, values: &[Option<Node>]) -> Vec<Edge> {
        let values: HashSet<Node> = values.iter().copied().flatten().collect();
        let own = self.places.iter().flat_map(|place| self.heap.graph.references(*place));
        own.filter(|edge| values.contains(&edge.to)).collect()
    }
}
