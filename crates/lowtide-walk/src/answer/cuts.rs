//! Cuts: which references a person can remove, and what goes and stays when they are gone.

use lowtide_heap::{Cut, CutCost, Edge, NoCut, Node};
use lowtide_types::Bytes;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::answer::results::{Analysed, CutEdge, HeapCut, RetainedSize};
use crate::ask::kind::Kind;
use crate::memory::heap::reached;

/// Paths to an object that refers to another: one of them can be written in Python.
const WAYS_MOST: usize = 4;
/// How many tuples may stand between a function and the container in which it is registered.
const TUPLES_DEEP: usize = 3;
/// References that a cut may have.
const CUT_MOST: u64 = 16;
/// References of caches that a cut may have.
const CACHED_MOST: u64 = 64;

/// A way to choose references to cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Only where caches are cleared: what several of them hold, and nothing else, goes with all of
    /// their entries.
    Caches,
    /// Where something was registered: no function loses a part without which it fails.
    Gentle,
    /// The same, and nothing that code holds which has begun to run. A statement for such a
    /// reference cannot always be written.
    Plain,
    /// As near to the object as possible.
    Rough,
    /// Only entries of dicts and lists, and names of modules: what else an object of another
    /// library has may have no name.
    Outer,
    /// Only elements of lists, and names of modules. To look at an instance may create the dict of
    /// its attributes; such a cut stays the same.
    Names,
}

impl Manner {
    /// All of them, in the order in which cuts are offered.
    const ALL: [Manner; 6] = [
        Manner::Caches,
        Manner::Gentle,
        Manner::Plain,
        Manner::Rough,
        Manner::Outer,
        Manner::Names,
    ];

    /// Returns how many references a cut may have. One statement cuts all references of a cache, and
    /// several lead to each entry.
    fn most(self) -> u64 {
        if self == Manner::Caches { CACHED_MOST } else { CUT_MOST }
    }
}

impl Analysed<'_, '_> {
    /// Returns the cuts that free some nodes, or why there is none. A cache that has `cached` bytes is cleared first,
    /// if that frees as many. A cut that is `known` is the only one.
    pub(crate) fn cuts(
        &self,
        nodes: &[Node],
        cached: Option<Bytes>,
        known: Option<&Cut>,
    ) -> PyResult<(Vec<Py<HeapCut>>, Option<NoCut>)> {
        let (mut all, node) = (Vec::new(), nodes[0]);
        if let Some(bytes) = cached.filter(|_| self.heap.kind(node) == Kind::Cache) {
            all.extend(self.clearing(node, bytes)?);
        }
        match known.map_or_else(|| self.chosen_cuts(nodes), |cut| Ok(vec![cut.clone()])) {
            Err(why) => Ok((all, Some(why))),
            Ok(cuts) => {
                for cut in cuts {
                    all.push(self.told(&cut, node)?);
                }
                Ok((all, None))
            }
        }
    }

    /// Returns a cut that frees a node, for Python.
    pub(crate) fn told(&self, cut: &Cut, node: Node) -> PyResult<Py<HeapCut>> {
        let mut ends: Vec<(Node, Node)> =
            cut.edges.iter().map(|edge| (edge.from, edge.to)).collect();
        ends.dedup();
        let lost = self.lost_by(&cut.edges);
        self.cut(&ends, &lost, node, cut.freed.into(), cut.collateral.into())
    }

    /// Returns the cuts that free some nodes, in every manner.
    pub(crate) fn chosen_cuts(&self, nodes: &[Node]) -> Result<Vec<Cut>, NoCut> {
        let mut found: Vec<Cut> = Vec::new();
        let mut why_not = None;
        for manner in Manner::ALL {
            let cost = |edge: Edge| {
                let can = match manner {
                    Manner::Caches => self.is_entry(edge),
                    Manner::Gentle if self.is_of_registered(edge.from) => false,
                    Manner::Gentle if self.is_wrapped_method(edge) => true,
                    _ => self.can_cut(edge, manner),
                };
                if can { CutCost::Cost(1) } else { CutCost::Never }
            };
            match self.analysis.cuts(nodes, manner.most() + nodes.len() as u64 - 1, cost) {
                Ok(cuts) => {
                    for cut in cuts {
                        if found.iter().all(|other| other.edges != cut.edges) {
                            found.push(cut);
                        }
                    }
                }
                Err(why) => why_not = Some(why),
            }
        }
        match why_not {
            Some(why) if found.is_empty() => Err(why),
            _ => Ok(found),
        }
    }

    /// Returns whether a person can cut a reference, and does so in this way.
    fn can_cut(&self, edge: Edge, manner: Manner) -> bool {
        let kinds = (self.heap.kind(edge.from), self.heap.kind(edge.to));
        match kinds {
            (Kind::ClassDict, Kind::Function) | (Kind::Cell, _) if manner != Manner::Rough => false,
            (Kind::Generator | Kind::Frame | Kind::Defaults, _) if manner == Manner::Plain => false,
            (Kind::Dict | Kind::ClassDict, _) if manner == Manner::Names => false,
            (Kind::Dict, _) if manner == Manner::Outer && self.has_attributes(edge.from) => false,
            (Kind::Dict | Kind::Namespace | Kind::ClassDict | Kind::Container, _) => true,
            _ if matches!(manner, Manner::Outer | Manner::Names) => false,
            (Kind::Instance | Kind::Model, Kind::Dict) => {
                !self.heap.keeps_attributes(self.py, edge.from, edge.to)
            }
            // What an object is made of, not what it has.
            (_, Kind::Class | Kind::Module | Kind::Namespace | Kind::Memory) => false,
            (
                Kind::Instance
                | Kind::Model
                | Kind::Cell
                | Kind::Frame
                | Kind::Generator
                | Kind::Exception
                | Kind::Defaults
                | Kind::Cache,
                _,
            ) => true,
            // Hooks and attributes of a tensor, frames of a greenlet; not what a graph keeps, and
            // not the array of an iterator.
            (Kind::Tensor, to) => !matches!(to, Kind::Tensor | Kind::Opaque),
            _ => false,
        }
    }

    /// Returns the cut that clears a cache and keeps its function, if that frees so many bytes.
    fn clearing(&self, cache: Node, bytes: Bytes) -> PyResult<Option<Py<HeapCut>>> {
        let entries = self.heap.graph.references(cache).filter(|edge| self.is_entry(*edge));
        let entries: Vec<Edge> = entries.collect();
        let Some(first) = entries.first() else { return Ok(None) };
        let lost = self.lost_by(&entries);
        let freed: Bytes = lost.iter().map(|node| self.heap.graph.bytes(*node)).sum();
        if freed < bytes {
            return Ok(None);
        }
        let freed = RetainedSize { objects: lost.len() as u64, bytes: freed.0 };
        let beside = RetainedSize { objects: 0, bytes: 0 };
        self.cut(&[(first.from, first.to)], &lost, cache, freed, beside).map(Some)
    }

    /// Returns the nodes that are lost without some references, sorted.
    pub(crate) fn lost_by(&self, edges: &[Edge]) -> Vec<Node> {
        let mut lost = self.analysis.lost_by(edges);
        lost.sort_unstable();
        lost
    }

    /// Returns the cut of some references, for Python.
    fn cut(
        &self,
        ends: &[(Node, Node)],
        lost: &[Node],
        target: Node,
        freed: RetainedSize,
        beside: RetainedSize,
    ) -> PyResult<Py<HeapCut>> {
        let edges = ends.iter().map(|(from, to)| {
            let paths = self.paths(*from, WAYS_MOST)?;
            Py::new(self.py, CutEdge { held: self.object(*to), paths })
        });
        let edges = self.list(edges.collect::<PyResult<Vec<_>>>()?)?;
        let memories = self.heap.memories.iter().enumerate();
        let pieces = memories.filter(|(_, one)| lost.binary_search(&one.node).is_ok());
        let pieces = pieces.map(|(at, _)| at).collect();
        let (kept, hidden) = self.kept(lost, target);
        let (collects, unfreezes) = self.in_cycle(lost, target);
        let cut = HeapCut {
            edges,
            freed,
            beside,
            kept_bytes: kept.0,
            hidden,
            collects,
            unfreezes,
            pieces,
        };
        Py::new(self.py, cut)
    }

    /// Returns whether a reference leads to what a cache loses when it is cleared: not its function,
    /// and not its attributes.
    pub(crate) fn is_entry(&self, edge: Edge) -> bool {
        if self.heap.kind(edge.from) != Kind::Cache {
            return false;
        }
        let [cache, held] = [edge.from, edge.to].map(|node| self.heap.object(self.py, node));
        let (Some(cache), Some(held)) = (cache, held) else { return false };
        // Caches are exactly of the interpreter's own type: none of the program's code runs.
        let is = |name| cache.getattr(name).is_ok_and(|part| part.is(&held));
        !matches!(self.heap.kind(edge.to), Kind::Function | Kind::Class)
            && !is(intern!(self.py, "__dict__"))
            && !is(intern!(self.py, "__wrapped__"))
    }

    /// Returns whether a dict has the attributes of an instance.
    pub(crate) fn has_attributes(&self, dict: Node) -> bool {
        let mut holders = self.analysis.referrers(dict);
        holders.any(|holder| self.heap.keeps_attributes(self.py, holder, dict))
    }

    /// Returns whether a node has the default arguments of functions that are only registered
    /// somewhere, as hooks and callbacks are. Such a function is removed as a whole.
    fn is_of_registered(&self, defaults: Node) -> bool {
        match self.heap.kind(defaults) {
            Kind::Defaults => {}
            Kind::Dict if self.are_keyword_defaults(defaults) => {}
            _ => return false,
        }
        let mut functions = self.analysis.referrers(defaults).peekable();
        functions.peek().is_some()
            && functions.all(|one| {
                self.heap.kind(one) == Kind::Function && self.is_registered(one, TUPLES_DEEP)
            })
    }

    /// Returns whether a reference leads from a class to a function that calls the method in whose
    /// place it is. The class gets that one back.
    fn is_wrapped_method(&self, edge: Edge) -> bool {
        if [edge.from, edge.to].map(|node| self.heap.kind(node))
            != [Kind::ClassDict, Kind::Function]
        {
            return false;
        }
        let [methods, function] = [edge.from, edge.to].map(|node| self.heap.object(self.py, node));
        let (Some(methods), Some(function)) = (methods, function) else { return false };
        let Ok(methods) = methods.cast_into::<PyDict>() else { return false };
        let Ok(closure) = function.getattr(intern!(self.py, "__closure__")) else { return false };
        let Ok(cells) = closure.cast_into::<PyTuple>() else { return false };
        // Functions and cells are exactly of the interpreter's own types: none of the program's code
        // runs.
        cells.iter().any(|cell| {
            let before = cell.getattr(intern!(self.py, "cell_contents"));
            let before = before.ok().filter(|before| before.get_type().is(function.get_type()));
            let name = before.and_then(|before| before.getattr(intern!(self.py, "__name__")).ok());
            let name = name.and_then(|name| name.cast_into_exact::<PyString>().ok());
            let entry = name.and_then(|name| methods.get_item(name).ok().flatten());
            entry.is_some_and(|entry| entry.is(&function))
        })
    }

    /// Returns whether only entries of containers and attributes of instances lead to an object,
    /// perhaps over some tuples.
    fn is_registered(&self, node: Node, deep: usize) -> bool {
        let mut holders = self.analysis.referrers(node).peekable();
        holders.peek().is_some()
            && holders.all(|holder| match self.heap.kind(holder) {
                Kind::Dict | Kind::Container | Kind::Instance | Kind::Model | Kind::Tensor => true,
                Kind::Immutable => deep > 0 && self.is_registered(holder, deep - 1),
                _ => false,
            })
    }

    /// Returns whether a dict has the default arguments of a function that are given by name.
    pub(crate) fn are_keyword_defaults(&self, dict: Node) -> bool {
        let mut holders = self.analysis.referrers(dict);
        let (first, second) = (holders.next(), holders.next());
        let Some(function) = first.filter(|_| second.is_none()) else { return false };
        if self.heap.kind(function) != Kind::Function {
            return false;
        }
        let [function, dict] = [function, dict].map(|node| self.heap.object(self.py, node));
        let (Some(function), Some(dict)) = (function, dict) else { return false };
        // Functions are exactly of the interpreter's own type: none of the program's code runs.
        function.getattr("__kwdefaults__").is_ok_and(|defaults| defaults.is(&dict))
    }

    /// Returns whether a cycle keeps the target or device memory alive among these nodes, which are
    /// sorted: the collector has to run after the cut. Returns as well whether objects of the cycle are frozen. Without
    /// a cycle, that is whether any of the nodes is: the statement may cut elsewhere than the graph does, and leave one.
    fn in_cycle(&self, lost: &[Node], target: Node) -> (bool, bool) {
        let freed = self.heap.freed_by_counting(lost, |_| false);
        let matters = |node: Node| node == target || self.heap.graph.bytes(node) > Bytes::ZERO;
        let stay = lost.iter().zip(&freed).filter(|(_, freed)| !**freed).map(|(node, _)| *node);
        let is_frozen = |node| self.heap.is_frozen(node);
        if stay.clone().any(matters) {
            (true, stay.clone().any(is_frozen))
        } else {
            (false, lost.iter().copied().any(is_frozen))
        }
    }

    /// Returns what stays of these sorted nodes although the references to them are cut, because
    /// of references that were not seen; and how many of those lead to the target.
    fn kept(&self, lost: &[Node], target: Node) -> (Bytes, u64) {
        let is_lost = |node: Node| lost.binary_search(&node).is_ok();
        let hidden = lost.iter().filter(|node| {
            // Classes have references from everywhere, and no memory.
            self.heap.hidden(**node) > 0 && self.heap.kind(**node) != Kind::Class
        });
        let held = self
            .heap
            .memories
            .iter()
            .filter(|memory| memory.is_held_natively() && is_lost(memory.node));
        let keepers: Vec<Node> = hidden.copied().chain(held.map(|memory| memory.node)).collect();
        if keepers.is_empty() {
            return (Bytes::ZERO, 0);
        }
        let onwards = |node: Node| {
            let onwards = self.heap.graph.references(node).map(|edge| edge.to);
            onwards.filter(|node| is_lost(*node))
        };
        let kept = reached(keepers.iter().copied(), onwards);
        let bytes = kept.iter().map(|node| self.heap.graph.bytes(*node)).sum();
        // From the target backwards, over what is kept.
        // One list, which goes back to the kernel at once: many small ones would not.
        let referrers = kept.iter().flat_map(|from| onwards(*from).map(|to| (to, *from)));
        let mut referrers: Vec<(Node, Node)> = referrers.collect();
        referrers.sort_unstable();
        let back = |node: Node| {
            let first = referrers.partition_point(|(to, _)| *to < node);
            let same = referrers[first..].iter().take_while(move |(to, _)| *to == node);
            same.map(|(_, from)| *from)
        };
        let leading = reached(kept.get(&target).copied(), back);
        let leading = keepers.iter().filter(|keeper| leading.contains(keeper));
        (bytes, leading.map(|keeper| u64::from(self.heap.hidden(*keeper))).sum())
    }
}
