//! Rows that are one: memory with the same holders, and objects to which a collection leads in the same way.

use std::collections::{BTreeSet, HashMap, HashSet};

use lowtide_heap::{Cut, Edge, Node};
use pyo3::prelude::*;

use crate::answer::group::{ALIKE_MOST, Group, PATHS_MOST, Rows};
use crate::ask::kind::Kind;

/// Objects of which it is asked whether others have the same holders.
const JOINED_MOST: usize = 16;

impl Rows<'_, '_, '_> {
    /// Joins groups to which the entries of one container lead in the same way: objects of the same types follow
    /// upon it.
    pub(super) fn joined_alike(&self, groups: Vec<Group>) -> Vec<Group> {
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

    /// Joins groups that have the same holders, each of which would hold them without the others: the parameters of a
    /// model that a graph holds too are one.
    pub(super) fn joined(&self, mut groups: Vec<Group>) -> Vec<Group> {
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
}
