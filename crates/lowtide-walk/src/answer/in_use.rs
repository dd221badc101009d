//! What the program plainly uses now: models, and tensors with a name or attribute of their own. They are told
//! after what has gathered in containers, caches, closures and frames.

use std::collections::HashMap;

use lowtide_heap::Node;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::answer::results::Analysed;
use crate::ask::kind::Kind;

/// The attributes in which a model has what belongs to it.
const PARTS: [&str; 3] = ["_parameters", "_buffers", "_modules"];

pub(crate) struct InUse<'a, 'py> {
    found: &'a Analysed<'a, 'py>,
    /// By object: whether names and attributes alone lead to it.
    named: HashMap<Node, bool>,
}

impl<'a, 'py> InUse<'a, 'py> {
    pub(crate) fn new(found: &'a Analysed<'a, 'py>) -> InUse<'a, 'py> {
        InUse { found, named: HashMap::new() }
    }

    /// Returns whether the program has a tensor of this memory by names and attributes alone, as a part of a model,
    /// or as what an optimizer or the backward pass has beside such a part.
    pub(crate) fn has(&mut self, memory: Node) -> bool {
        let tensors: Vec<Node> = self.found.analysis.referrers(memory).collect();
        tensors.into_iter().any(|one| self.kind(one) == Kind::Tensor && self.is_named(one))
    }

    fn kind(&self, node: Node) -> Kind {
        self.found.heap.kind(node)
    }

    fn is_named(&mut self, node: Node) -> bool {
        if let Some(known) = self.named.get(&node) {
            return *known;
        }
        // A cycle is no name.
        self.named.insert(node, false);
        let holders: Vec<Node> = self.found.analysis.referrers(node).collect();
        let is_named = holders.into_iter().any(|from| match self.kind(from) {
            Kind::Namespace => self.is_name(from, node),
            Kind::Frame => self.found.heap.nodes.roots.contains_key(&from),
            Kind::Instance | Kind::Model | Kind::Class | Kind::ClassDict => self.is_named(from),
            // A gradient.
            Kind::Tensor => self.found.is_of_class(from, "Parameter") && self.is_named(from),
            Kind::Dict => self.is_named_by(from, node),
            _ => false,
        });
        self.named.insert(node, is_named);
        is_named
    }

    /// Returns whether a module has an object by a name that somebody gave it: no output of a notebook.
    fn is_name(&self, namespace: Node, node: Node) -> bool {
        let names =
            self.found.heap.object(self.found.py, namespace).map(Bound::cast_into::<PyDict>);
        let Some(Ok(names)) = names else { return true };
        let address = self.found.heap.nodes.addresses[node.index()];
        let mut keys = names.iter().filter(|(_, value)| value.as_ptr().addr() == address);
        keys.any(|(key, _)| {
            let name = key.extract::<String>().unwrap_or_default();
            !name.chars().all(|one| one == '_' || one.is_ascii_digit())
        })
    }

    /// Returns whether a dict that has this object has it as an attribute, as a part of a model, or as the state of a
    /// parameter.
    fn is_named_by(&mut self, dict: Node, node: Node) -> bool {
        let holders: Vec<Node> = self.found.analysis.referrers(dict).collect();
        holders.into_iter().any(|from| match self.kind(from) {
            Kind::Instance | Kind::Model
                if self.found.heap.keeps_attributes(self.found.py, from, dict) =>
            {
                self.is_named(from)
            }
            Kind::Model => self.has_part(from, dict) && self.is_named(from),
            Kind::Dict if self.found.has_attributes(from) => {
                let models: Vec<Node> = self.found.analysis.referrers(from).collect();
                models.into_iter().any(|model| {
                    self.kind(model) == Kind::Model
                        && self.has_part(model, dict)
                        && self.is_named(model)
                })
            }
            Kind::Dict if self.kind(node) == Kind::Tensor => self.is_of_parameter(from, dict),
            _ => false,
        })
    }

    /// Returns whether a model has its parts in a dict.
    fn has_part(&self, model: Node, dict: Node) -> bool {
        let py = self.found.py;
        let Some(model) = self.found.heap.object(py, model) else { return false };
        // SAFETY: the object is alive, and none of the program's code runs.
        let own = unsafe { ffi::PyObject_GenericGetDict(model.as_ptr(), std::ptr::null_mut()) };
        // SAFETY: it is a new reference, or null with an exception.
        let Ok(own) = (unsafe { Bound::from_owned_ptr_or_err(py, own) }) else { return false };
        let Ok(own) = own.cast_into::<PyDict>() else { return false };
        let address = self.found.heap.nodes.addresses[dict.index()];
        PARTS.iter().any(|name| {
            let part = own.get_item(name).ok().flatten();
            part.is_some_and(|part| part.as_ptr().addr() == address)
        })
    }

    /// Returns whether a dict is the state that an optimizer has for a parameter that is in use.
    fn is_of_parameter(&mut self, states: Node, state: Node) -> bool {
        let (py, heap) = (self.found.py, self.found.heap);
        let states_object = heap.object(py, states).map(Bound::cast_into::<PyDict>);
        let Some(Ok(all)) = states_object else { return false };
        let address = heap.nodes.addresses[state.index()];
        let mut keys = all.iter().filter(|(_, value)| value.as_ptr().addr() == address);
        let Some(key) = keys.next().map(|(key, _)| key.as_ptr().addr()) else { return false };
        let mut known = heap.graph.references(states).map(|edge| edge.to);
        let key = known.find(|one| heap.nodes.addresses[one.index()] == key);
        key.is_some_and(|key| self.found.is_of_class(key, "Parameter") && self.is_named(key))
    }
}
