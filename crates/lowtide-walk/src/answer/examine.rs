//! The answer to `why`: what holds device memory, or an object; what to cut; what is unreachable
//! already.
//!
//! Everything is found here, with addresses only. Python gets the few objects on the paths, to name
//! them.

use std::collections::{BTreeSet, HashMap, HashSet};

use lowtide_heap::{Analysis, Cut, Edge, Node, Path};
use lowtide_types::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::answer::in_use::InUse;
use crate::answer::results::{
    Analysed, DeadCycle, Examination, HeldObject, NativeObject, RetainedSize,
};
use crate::answer::unreachable::{Cycle, Dead};
use crate::ask::kind::Kind;
use crate::memory::nodes;
use crate::start::question::Question;

/// Paths that are shown for each object.
const PATHS_MOST: usize = 4;
/// Objects of which it is asked whether others have the same holders.
const JOINED_MOST: usize = 16;
/// A part that has this many percent of the whole's bytes is what a person means.
const MOST_OF_IT: u64 = 95;
/// An object with at most so many parts that hold memory is divided into them.
const PARTS_MOST: usize = 6;
/// Unreachable cycles that are shown.
const DEAD_MOST: usize = 5;
/// What has less than this part of all bytes is small.
const SMALL_SHARE: u64 = 200;
/// Objects of which it is looked whether others are held alike.
const ALIKE_MOST: usize = 64;
/// Entries of a container that are looked at.
const ENTRIES_MOST: usize = 1_000;

/// Walks the heap and answers a `_why.question.Question`.
#[pyfunction]
pub fn examine(question: &Bound<'_, PyAny>) -> PyResult<Examination> {
    let py = question.py();
    let (question, mut types) = Question::new(question)?;
    // A walk that was late has failed.
    let heap = nodes::take(py, &question, &mut types)
        .or_else(|error| question.in_time().and(Err(error)))?;
    question.in_time()?;
    let analysis = Analysis::new(&heap.graph);
    analysis.prepare();
    question.in_time()?;
    let one_by_one = question.targets.is_some() && !question.asked.grouped;
    let at_exit = question.asked.at_exit;
    let found = Analysed { py, heap: &heap, analysis: &analysis };
    Answering { found, one_by_one, at_exit }.all(question.asked.most)
}

/// What an answer is made from.
struct Answering<'a, 'py> {
    found: Analysed<'a, 'py>,
    /// Whether objects were asked about. Then everything else is left out.
    one_by_one: bool,
    /// The address of the interpreter's list of calls at exit, or 0: nobody knows it by a name.
    at_exit: usize,
}

/// Memory that is held by one object that a person knows.
struct Group {
    node: Node,
    bytes: Bytes,
    pieces: u64,
    /// Tensors with the same holders, the first of them included; none if `node` has it all.
    equal: Vec<Node>,
    /// The cut of all holders of a model.
    cut: Option<Cut>,
    /// Objects that are held alike, if there are several.
    alike: usize,
    /// Whether the program has all of it by names and attributes.
    in_use: bool,
}

impl Group {
    fn new(node: Node, bytes: Bytes) -> Group {
        Group { node, bytes, pieces: 0, equal: Vec::new(), cut: None, alike: 1, in_use: true }
    }

    fn add(&mut self, other: &Group) {
        self.bytes += other.bytes;
        self.pieces += other.pieces;
        self.in_use &= other.in_use;
    }
}

impl Answering<'_, '_> {
    fn all(&self, most: usize) -> PyResult<Examination> {
        let groups = if self.one_by_one { self.targets() } else { self.groups() };
        let (shown, rest) = groups.split_at(groups.len().min(most));
        let rest_bytes: Bytes = rest.iter().map(|group| group.bytes).sum();
        let memories = &self.found.heap.memories;
        let bytes: Bytes = memories.iter().map(|memory| memory.bytes).sum();
        let dead = Dead::new(self.found.heap, self.found.analysis);
        let cycles = dead.cycles.iter().filter(|_| !self.one_by_one).take(DEAD_MOST);
        let cycles = cycles.map(|cycle| {
            let Cycle { head, size, frozen, kept } = *cycle;
            let (head, size) = (self.found.object(head), size.into());
            Py::new(self.found.py, DeadCycle { head, size, frozen, kept_bytes: kept.0 })
        });
        let cycles = cycles.collect::<PyResult<Vec<_>>>()?;
        let held = shown.iter().map(|group| self.held(group, &dead));
        let held = held.collect::<PyResult<Vec<_>>>()?;
        Ok(Examination {
            held: self.found.list(held)?,
            rest: RetainedSize { objects: rest.len() as u64, bytes: rest_bytes.0 },
            dead: self.found.list(cycles)?,
            collected_bytes: if self.one_by_one { 0 } else { dead.collected.0 },
            unfrozen_bytes: if self.one_by_one { 0 } else { dead.frozen.0 },
            native: self.found.list(self.native()?)?,
            native_memory: self.native_memory(),
            sizes: memories.iter().map(|memory| memory.bytes.0).collect(),
            memory: RetainedSize { objects: memories.len() as u64, bytes: bytes.0 },
            objects: self.found.heap.graph.len(),
            frozen_objects: self.found.heap.nodes.frozen_count,
            frozen_listed: self.found.heap.nodes.frozen_seen,
        })
    }

    /// Returns the objects that were asked about, each on its own.
    fn targets(&self) -> Vec<Group> {
        let group = |node: &Node| Group::new(*node, self.found.analysis.retained(*node).bytes);
        self.found.heap.targets.iter().map(group).collect()
    }

    /// Returns the objects that hold device memory, largest first; and after them what the program uses, unless
    /// the others are small.
    fn groups(&self) -> Vec<Group> {
        let mut in_use = InUse::new(&self.found);
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

    /// Joins groups to which the entries of one container lead in the same way: objects of the same types follow
    /// upon it.
    fn joined_alike(&self, groups: Vec<Group>) -> Vec<Group> {
        let mut ways: HashMap<(Node, Vec<usize>), usize> = HashMap::new();
        let of_each = groups.iter().enumerate().map(|(at, group)| {
            // A container is emptied by itself.
            let kind = self.found.heap.kind(group.node);
            let is_one = !matches!(kind, Kind::Dict | Kind::Container | Kind::Cache);
            let is_alone = is_one && !group.in_use && group.equal.is_empty() && at < ALIKE_MOST;
            if is_alone { self.ways(group.node) } else { Vec::new() }
        });
        let of_each: Vec<Vec<(Node, Vec<usize>)>> = of_each.collect();
        for way in of_each.iter().flat_map(|own| own.iter().collect::<HashSet<_>>()) {
            *ways.entry(way.clone()).or_default() += 1;
        }
        let mut joined: Vec<Group> = Vec::new();
        let mut first: HashMap<&(Node, Vec<usize>), usize> = HashMap::new();
        for (group, own) in groups.into_iter().zip(&of_each) {
            let Some(way) = own.iter().find(|way| ways[*way] > 1) else {
                joined.push(group);
                continue;
            };
            let at = *first.entry(way).or_insert(joined.len());
            if let Some(known) = joined.get_mut(at) {
                known.add(&group);
                known.alike += 1;
                known.equal.push(group.node);
            } else {
                joined.push(Group { equal: vec![group.node], ..group });
            }
        }
        for ((container, _), at) in first {
            let group = &mut joined[at];
            // What has nothing else is emptied.
            if group.alike > 1 && self.found.analysis.retained(*container).bytes == group.bytes {
                (group.node, group.alike) = (*container, 1);
                group.equal.clear();
            }
        }
        joined
    }

    /// Returns each container on the paths to a node, with the types of the objects that follow upon it; the shortest
    /// path's outermost first.
    fn ways(&self, node: Node) -> Vec<(Node, Vec<usize>)> {
        let (py, heap) = (self.found.py, self.found.heap);
        let class = |node: &Node| heap.object(py, *node).map_or(0, |one| one.get_type_ptr().addr());
        let is_container = |node: Node| match heap.kind(node) {
            Kind::Container => true,
            Kind::Dict => !self.found.has_attributes(node) && !self.is_record(node, &[]),
            _ => false,
        };
        let paths = self.found.analysis.paths(node, PATHS_MOST);
        let of_each = paths.iter().flat_map(|path| {
            let nodes: Vec<Node> = path.nodes().collect();
            // What has names is no collection, whatever collects modules.
            let is_scope =
                |node: &Node| self.is_scaffolding(*node) || heap.kind(*node) == Kind::Class;
            let first = nodes.iter().rposition(is_scope).unwrap_or_default();
            let containers = (first..nodes.len()).filter(|at| is_container(nodes[*at]));
            let ways =
                containers.map(|at| (nodes[at], nodes[at + 1..].iter().map(class).collect()));
            ways.collect::<Vec<_>>()
        });
        of_each.collect()
    }

    /// Returns whether a list or dict is no collection of objects that are alike, but has others beside those of
    /// these classes; of none, whether it has several classes.
    fn is_record(&self, container: Node, classes: &[usize]) -> bool {
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

    /// Joins groups that have the same holders, each of which would hold them without the others: the parameters of a
    /// model that a graph holds too are one.
    fn joined(&self, mut groups: Vec<Group>) -> Vec<Group> {
        let mut joined = Vec::new();
        let mut tries = 0;
        while !groups.is_empty() {
            let mut group = groups.remove(0);
            if tries < JOINED_MOST && self.is_shared(group.node) {
                tries += 1;
                self.join(&mut group, &mut groups);
            }
            joined.push(group);
        }
        joined.sort_by_key(|group| (std::cmp::Reverse(group.bytes), group.node));
        joined
    }

    /// Moves groups into another that has the same holders.
    fn join(&self, group: &mut Group, groups: &mut Vec<Group>) {
        let cuts = self.found.chosen_cuts(&[group.node]).unwrap_or_default();
        if self.join_models(group, groups, &cuts) {
            return;
        }
        // The one that frees most with the fewest references, the nearest of several.
        let several = cuts.iter().rev().filter(|cut| cut.edges.len() > 1);
        let Some(cut) =
            several.max_by_key(|cut| (cut.freed.bytes, std::cmp::Reverse(cut.edges.len())))
        else {
            return;
        };
        let lost = self.found.lost_by(&cut.edges);
        let of_fewer = cut.edges.iter().map(|one| {
            let fewer: Vec<Edge> = cut.edges.iter().copied().filter(|edge| edge != one).collect();
            self.found.lost_by(&fewer)
        });
        let of_fewer: Vec<Vec<Node>> = of_fewer.collect();
        let is_equal = |other: &Group| {
            let is_in = |lost: &Vec<Node>| lost.binary_search(&other.node).is_ok();
            self.is_shared(other.node) && is_in(&lost) && !of_fewer.iter().any(is_in)
        };
        let (equal, others): (Vec<Group>, Vec<Group>) =
            std::mem::take(groups).into_iter().partition(is_equal);
        *groups = others;
        let model = cut.edges.iter().map(|edge| edge.to);
        let model = model.into_iter().find(|node| self.found.heap.kind(*node) == Kind::Model);
        if equal.is_empty() {
            return;
        }
        group.equal = std::iter::once(group.node).chain(equal.iter().map(|one| one.node)).collect();
        for other in &equal {
            group.add(other);
        }
        group.node = model.unwrap_or(group.node);
        group.cut = model.map(|model| self.nearer(cut, &cuts[0], model, &group.equal));
    }

    /// Returns the cut of a model with references that lose less in place of those beside it, if it frees the
    /// parameters all the same: those of the cut that is `nearest` to one of them.
    fn nearer(&self, cut: &Cut, nearest: &Cut, model: Node, parameters: &[Node]) -> Cut {
        let analysis = self.found.analysis;
        let edges = cut.edges.iter().map(|edge| {
            let mut below =
                nearest.edges.iter().filter(|one| analysis.dominates(edge.to, one.from));
            *below.next().filter(|_| edge.to != model).unwrap_or(edge)
        });
        let mut edges: Vec<Edge> = edges.collect();
        edges.sort_unstable();
        let lost = self.found.lost_by(&edges);
        if parameters.iter().any(|one| lost.binary_search(one).is_err()) {
            return cut.clone();
        }
        let freed = analysis.freed_by(&edges);
        Cut { edges, freed, ..cut.clone() }
    }

    /// Joins the parameters of the models that these cuts would take apart, which nobody does: their cuts are those
    /// of whole models. Returns whether there are such models.
    fn join_models(&self, group: &mut Group, groups: &mut Vec<Group>, cuts: &[Cut]) -> bool {
        let edges = cuts.iter().flat_map(|cut| &cut.edges);
        let models = edges.filter_map(|edge| self.model_around(edge.from, edge.to));
        let models: BTreeSet<Node> = models.collect();
        let is_whole = |model: Option<Node>| model.is_some_and(|one| models.contains(&one));
        let is_parameter = |tensor: Node| {
            let mut holders = self.found.analysis.referrers(tensor);
            holders.any(|from| is_whole(self.model_around(from, tensor)))
        };
        let is_part = |other: &Group| {
            // A graph has saved views of most of them.
            let mut views = self.found.analysis.referrers(other.node);
            self.is_shared(other.node) && (is_parameter(other.node) || views.any(is_parameter))
        };
        let parts = groups.iter().filter(|one| !models.is_empty() && is_part(one));
        let parts: BTreeSet<Node> = parts.map(|part| part.node).collect();
        let all: Vec<Node> =
            [group.node].into_iter().chain(parts.iter().copied()).chain(models.clone()).collect();
        if models.is_empty() || self.found.chosen_cuts(&all).is_err() {
            return false;
        }
        for part in groups.extract_if(.., |one| parts.contains(&one.node)) {
            group.add(&part);
        }
        group.equal = all;
        if let Some(model) = models.first().filter(|_| !parts.is_empty()) {
            group.node = *model;
        }
        true
    }

    /// Returns the outermost model that has an object as its parameter, by this holder.
    fn model_around(&self, holder: Node, parameter: Node) -> Option<Node> {
        let kind = |node: &Node| self.found.heap.kind(*node);
        let is_parameter = self.found.is_of_class(parameter, "Parameter");
        let above = self.found.analysis.dominators(holder).filter(|_| is_parameter);
        let above = above.take_while(|one| matches!(kind(one), Kind::Dict | Kind::Model));
        above.filter(|one| kind(one) == Kind::Model).last()
    }

    /// Returns whether no single object holds a tensor. One whose attributes hold it in several ways is like a program
    /// of its own: a trainer with the model, the optimizer and the losses.
    fn is_shared(&self, node: Node) -> bool {
        let above = self.found.analysis.dominator(node);
        let refers = |above: Node| self.found.analysis.referrers(node).any(|one| one == above);
        let has_attributes = |above: Node| match self.found.heap.kind(above) {
            Kind::Instance => !refers(above),
            Kind::Dict => self.found.has_attributes(above) && !refers(above),
            _ => false,
        };
        let is_apart = |above: Node| self.is_scaffolding(above) || has_attributes(above);
        matches!(self.found.heap.kind(node), Kind::Tensor | Kind::Memory)
            && above.is_none_or(is_apart)
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

    /// Returns whether it is a place for names, or for calls at exit, rather than an object that has a name.
    fn is_scaffolding(&self, node: Node) -> bool {
        let is_list =
            self.found.heap.nodes.addresses[node.index()] == self.at_exit && self.at_exit != 0;
        let kind = self.found.heap.kind(node);
        // An exception or the program keeps a frame that does not run.
        let is_kept = kind == Kind::Frame && !self.found.heap.nodes.roots.contains_key(&node);
        is_list || (kind.is_scaffolding() && !is_kept)
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

    fn held(&self, group: &Group, dead: &Dead) -> PyResult<Py<HeldObject>> {
        let Group { node, bytes, pieces, ref equal, ref cut, alike, in_use } = *group;
        let nodes = if equal.is_empty() { &[node][..] } else { equal };
        let (cuts, why_no_cut) =
            self.found.cuts(nodes, (pieces > 0).then_some(bytes), cut.as_ref())?;
        let is_whole = pieces > 1 && equal.is_empty();
        let below = if is_whole { self.found.cuts_below(node) } else { Vec::new() };
        let below = below.iter().map(|cut| self.found.told(cut, node)).collect::<PyResult<_>>()?;
        let mut paths = self.found.analysis.paths(node, PATHS_MOST);
        if let Some(first) = equal.first().filter(|first| **first != node) {
            // What holds them beside their model.
            let others = self.found.analysis.paths(*first, PATHS_MOST);
            paths.extend(others.into_iter().filter(|path| path.nodes().all(|one| one != node)));
        }
        let paths: Vec<_> =
            paths.iter().map(|path| self.found.path(path)).collect::<PyResult<_>>()?;
        let held = HeldObject {
            object: self.found.object(node).or_else(|| self.of_memory(node)),
            bytes: bytes.0,
            pieces,
            alike,
            in_use: in_use && pieces > 0,
            reached: self.found.analysis.is_reached(node),
            collected: dead.is_collected(node),
            hidden: self.found.heap.hidden(node),
            frozen: self.found.heap.is_frozen(node),
            paths: self.found.list(paths)?,
            cuts: self.found.list(cuts)?,
            below: self.found.list(below)?,
            why_no_cut: why_no_cut.map(|why| why.to_string()),
        };
        Py::new(self.found.py, held)
    }

    /// Returns a tensor that has this memory, if none of them has it alone.
    fn of_memory(&self, node: Node) -> Option<Py<PyAny>> {
        let memory = self.found.heap.memories.iter().find(|memory| memory.node == node)?;
        self.found.object(memory.tensor)
    }

    /// Returns the objects that hold memory and that only native code holds, largest first.
    fn native(&self) -> PyResult<Vec<Py<NativeObject>>> {
        let native = self.found.heap.nodes.native.iter().filter(|_| !self.one_by_one);
        let native = native.map(|node| (self.found.analysis.retained(*node).bytes.0, *node));
        let mut native: Vec<(u64, Node)> = native.filter(|(bytes, _)| *bytes > 0).collect();
        native.sort_unstable_by(|one, other| other.cmp(one));
        let found = native.into_iter().map(|(bytes, node)| {
            let (object, references) = (self.found.object(node), self.found.heap.hidden(node));
            Py::new(self.found.py, NativeObject { object, references, bytes })
        });
        found.collect()
    }

    /// Returns the memory that has more holders in native code than Python explains.
    fn native_memory(&self) -> RetainedSize {
        let held = self.found.heap.memories.iter();
        let held = held.filter(|memory| memory.is_held_natively());
        let bytes: Bytes = held.clone().map(|memory| memory.bytes).sum();
        RetainedSize { objects: held.count() as u64, bytes: bytes.0 }
    }
}
