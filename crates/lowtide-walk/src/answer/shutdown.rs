//! What a shutdown of an object drops: references that lead to device memory, in an order in which
//! wrappers go first; and what stays because others hold it.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use lowtide_heap::{Analysis, Edge, Node};
use lowtide_types::Bytes;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::answer::dropped_references::{DropSearch, Dropped, DroppedReferences, Owners, reached};
use crate::answer::results::{Analysed, DroppedReference, ShutdownPlan};
use crate::ask::kind::Kind;
use crate::memory::heap::Heap;
use crate::memory::nodes;
use crate::start::question::Question;

/// Returns which references a shutdown drops. `owners` has a list for each object that is shut down:
/// the object, and the dicts in which it keeps what it has. `only` has the ids of the values that
/// count for each, or `None` for all. `configurations` are the ids of
/// values of the first one: a list of the values would hold them. `namespaces` are types such as
/// `SimpleNamespace`. `is_quick` says that the heap is not walked if reference counts prove that nobody else
/// holds any of it: then there is no path.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python gives lists")]
pub fn plan_shutdown<'py>(
    question: &Bound<'py, PyAny>,
    owners: Vec<Vec<Bound<'py, PyAny>>>,
    only: Vec<Option<HashSet<usize>>>,
    configurations: Vec<usize>,
    namespaces: Vec<Bound<'py, PyType>>,
    is_quick: bool,
) -> PyResult<ShutdownPlan> {
    let py = question.py();
    let (question, mut types) = Question::new(question)?;
    let first: Vec<usize> =
        owners.iter().flatten().map(|one| one.as_ptr().expose_provenance()).collect();
    let mut near = None;
    if is_quick
        && only.iter().all(Option::is_none)
        && let Some(heap) = nodes::take_from(py, &question, &mut types, &first)?
    {
        let found = owners_in(&heap, &owners, &only, &configurations, &namespaces)?;
        near = is_alone(&heap, &found).then_some(heap);
    }
    let is_alone = near.is_some();
    let heap = match near {
        Some(heap) => heap,
        None => nodes::take(py, &question, &mut types)?,
    };
    let analysis = Analysis::new(&heap.graph);
    let found = owners_in(&heap, &owners, &only, &configurations, &namespaces)?;
    drop((owners, only, configurations));
    let owners = found;
    let search = DropSearch::new(py, &heap, &analysis, &owners);
    let DroppedReferences { dropped, found_in, own, kept } = search.dropped(&analysis);
    let ways: Vec<Way> = dropped.iter().map(|one| way(&heap, &owners, one, &dropped)).collect();
    // One that leads to most of the others wraps them.
    let mut order: Vec<usize> = (0..ways.len()).collect();
    order.sort_by_key(|at| Reverse(ways[*at].others));
    let bytes = counted_once(&heap, &ways, &order);
    let found = Analysed { py, heap: &heap, analysis: &analysis };
    let drops = order.iter().map(|at| {
        let Dropped { edge, holder, .. } = &dropped[*at];
        let chain = found.objects(chain(*holder, &found_in, &owners))?;
        Py::new(py, DroppedReference { chain, held: found.object(edge.to), bytes: bytes[*at].0 })
    });
    let drops = found.list(drops.collect::<PyResult<_>>()?)?;
    let cut: Vec<Edge> = dropped.iter().map(|one| one.edge).collect();
    let lost: HashSet<Node> = analysis.lost_by(&cut).into_iter().collect();
    let tensors = tensors(&heap, &owners, &dropped, own, kept);
    let stays = |node: &Node| !lost.contains(node) && analysis.is_reached(*node);
    let target = heap.targets.first().filter(|_| !is_alone);
    let path = target.and_then(|target| analysis.path(*target));
    Ok(ShutdownPlan {
        drops,
        freed_bytes: analysis.freed_by(&cut).bytes.0 + dead_bytes(&heap, &analysis, &ways),
        stays: found.objects(tensors.iter().copied().filter(stays))?,
        tensors: found.objects(tensors)?,
        path: path.map(|path| found.path(&path)).transpose()?,
        is_alone,
    })
}

/// Returns whether reference counts prove that nobody but the owners holds the memory that they lead to:
/// all references to it, and to what leads to it, come from the owners' own objects. It is the
/// proof by which Python's collector frees cycles.
fn is_alone(heap: &Heap<'_>, owners: &Owners<'_, '_>) -> bool {
    let held = heap.nodes.hidden.iter().map(|(node, _)| *node);
    let by_others = held.filter(|node| !owners.owner_of.contains_key(node));
    let by_others = reached(heap, owners, by_others, |_| true);
    by_others.iter().all(|node| !matches!(heap.kind(*node), Kind::Tensor | Kind::Memory))
        && heap.memories.iter().all(|memory| memory.native == Some(0))
}

/// What the object that a reference leads to leads to itself.
struct Way {
    memories: Vec<Node>,
    /// How many of the others' objects are among it.
    others: usize,
}

fn way(heap: &Heap<'_>, owners: &Owners<'_, '_>, one: &Dropped, all: &[Dropped]) -> Way {
    let seen = reached(heap, owners, [one.edge.to], |_| true);
    let others: HashSet<Node> = all.iter().map(|other| other.edge.to).collect();
    let others =
        others.iter().filter(|other| **other != one.edge.to && seen.contains(other)).count();
    let memories = seen.into_iter().filter(|node| heap.kind(*node) == Kind::Memory).collect();
    Way { memories, others }
}

/// Returns the memory that no root reaches: an object that is about to end has only us. It goes with
/// the references.
fn dead_bytes(heap: &Heap<'_>, analysis: &Analysis<'_>, ways: &[Way]) -> u64 {
    let memories: HashSet<Node> =
        ways.iter().flat_map(|way| way.memories.iter().copied()).collect();
    let dead = memories.into_iter().filter(|node| !analysis.is_reached(*node));
    dead.map(|node| heap.graph.bytes(node).0).sum()
}

/// Counts each piece of memory once, for the first reference in the order that leads to it.
fn counted_once(heap: &Heap<'_>, ways: &[Way], order: &[usize]) -> Vec<Bytes> {
    let mut counted = HashSet::new();
    let mut bytes = vec![Bytes::ZERO; ways.len()];
    for at in order {
        let new = ways[*at].memories.iter().filter(|node| counted.insert(**node));
        bytes[*at] = new.map(|node| heap.graph.bytes(*node)).sum();
    }
    bytes
}

/// Returns the tensors that a shutdown is about: those of the owners and of their containers, and those
/// that the dropped references lead to. If somebody else holds all that the owners lead to, it is about that.
fn tensors(
    heap: &Heap<'_>,
    owners: &Owners<'_, '_>,
    dropped: &[Dropped],
    own: HashSet<Node>,
    kept: Vec<Node>,
) -> Vec<Node> {
    let is_tensor = |node: &Node| heap.kind(*node) == Kind::Tensor;
    let first = dropped.iter().map(|one| one.edge.to).chain(kept);
    let mut found = reached(heap, owners, first, |_| true);
    found.extend(own);
    found.extend(heap.targets.iter().copied());
    found.retain(is_tensor);
    if found.is_empty() {
        found = reached(heap, owners, owners.owner_of.keys().copied(), |_| true);
        found.retain(is_tensor);
    }
    let mut found: Vec<Node> = found.into_iter().collect();
    found.sort_unstable();
    found
}

/// Returns the objects from an owner to the holder of a reference.
fn chain(holder: Node, found_in: &HashMap<Node, Node>, owners: &Owners<'_, '_>) -> Vec<Node> {
    let mut chain = vec![holder];
    while let Some(next) = found_in.get(&chain[chain.len() - 1]) {
        if owners.owner_of.contains_key(&chain[chain.len() - 1]) || chain.contains(next) {
            break;
        }
        chain.push(*next);
    }
    chain.reverse();
    chain
}

fn owners_in<'a, 'py>(
    heap: &Heap<'_>,
    owners: &[Vec<Bound<'_, PyAny>>],
    only: &[Option<HashSet<usize>>],
    configurations: &[usize],
    namespaces: &'a [Bound<'py, PyType>],
) -> PyResult<Owners<'a, 'py>> {
    let address = |object: &Bound<'_, PyAny>| object.as_ptr().addr();
    let named = owners.iter().flatten().map(address).chain(configurations.iter().copied());
    let wanted: HashSet<usize> = named.collect();
    let known = (0..).map(Node).zip(&heap.nodes.addresses);
    let nodes: HashMap<usize, Node> =
        known.filter(|(_, at)| wanted.contains(at)).map(|(node, at)| (*at, node)).collect();
    let node = |object: &Bound<'_, PyAny>| nodes.get(&address(object)).copied();
    let (mut owner_of, mut all) = (HashMap::new(), Vec::new());
    let mut first = None;
    let mut only_of = HashMap::new();
    for (at, parts) in owners.iter().enumerate().rev() {
        let Some(owner) = parts.first().and_then(node) else { continue };
        if let Some(only) = only.get(at).and_then(Option::as_ref) {
            only_of.insert(owner, only.clone());
        }
        if at == 0 {
            first = Some(owner);
        }
        let parts = parts.iter().filter_map(node).map(|part| (part, owner));
        all.extend(parts.filter(|(part, owner)| owner_of.insert(*part, *owner).is_none()));
    }
    let first = first.ok_or_else(|| {
        PyRuntimeError::new_err("the walk did not meet the object that is to be shut down")
    })?;
    let configurations = configurations.iter().filter_map(|at| nodes.get(at).copied()).collect();
    Ok(Owners { owner_of, all, only_of, first, configurations, namespaces })
}
