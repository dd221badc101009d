//! The hooks of autograd's nodes. torch has them in native code and shows them to nobody.
//!
//! Where a node has its lists of hooks depends on the version. It is learnt from a node with a hook
//! that is known.

use std::collections::BTreeSet;
use std::ptr::with_exposed_provenance_mut;

use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::rare::process_memory::{ProcessMemory, WORD};

/// Where the Python object of a node has the node, in words.
const NODE: usize = 2;
/// How much of a node is searched, in words.
const SEARCHED: usize = 96;
/// More hooks than a node has.
const HOOKS_MOST: usize = 64;
/// Where a hook has its dict of functions, in words: behind the table of its methods.
const DICT: usize = 1;
/// Where an object has its type, in words.
const TYPE: usize = 1;

/// Returns where nodes have their lists of hooks, in words, by nodes and the dict with the hooks of
/// each.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python gives lists")]
pub fn hook_lists(known: Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>)>) -> Vec<usize> {
    let mut lists = BTreeSet::new();
    if let Some(memory) = ProcessMemory::open() {
        for (node, dict) in &known {
            let words = words_of(&memory, node, SEARCHED).unwrap_or_default();
            let has = |at: &usize| dicts(&memory, &words, *at).contains(&dict.as_ptr().addr());
            lists.extend((0..words.len()).filter(has));
        }
    }
    lists.into_iter().collect()
}

/// Finds the dicts in which the hooks of nodes are. It is made for one question: after a fork it would
/// read the memory of the parent.
#[pyclass(frozen, module = "lowtide._native")]
pub struct NodeHooks {
    memory: Option<ProcessMemory>,
    /// The type of the dicts.
    class: Py<PyType>,
    /// Where a node has its lists, in words.
    lists: Vec<usize>,
}

#[pymethods]
impl NodeHooks {
    /// Takes the type of the dicts, and where a node has its lists (`hook_lists`).
    #[new]
    fn new(class_: Py<PyType>, lists: Vec<usize>) -> NodeHooks {
        NodeHooks { memory: ProcessMemory::open(), class: class_, lists }
    }

    /// Returns the dicts with the hooks of a node.
    fn of<'py>(&self, node: &Bound<'py, PyAny>) -> Vec<Bound<'py, PyAny>> {
        let found = || {
            let (last, memory) = (*self.lists.last()?, self.memory.as_ref()?);
            let words = words_of(memory, node, last + 2)?;
            let all = self.lists.iter().flat_map(|at| dicts(memory, &words, *at));
            let is_dict = |at: &usize| {
                let words = memory.words(*at, TYPE + 1);
                words.is_some_and(|words| words[TYPE] == self.class.as_ptr().addr())
            };
            Some(all.filter(is_dict).collect::<BTreeSet<usize>>())
        };
        let object = |address| {
            // SAFETY: an object of this type is there, and the hook has a reference to it. The
            // interpreter's lock is held, so no hook is removed meanwhile.
            unsafe { Bound::from_borrowed_ptr(node.py(), with_exposed_provenance_mut(address)) }
        };
        found().unwrap_or_default().into_iter().map(object).collect()
    }
}

/// Returns the first words of a node, or `None` if they cannot be read.
fn words_of(memory: &ProcessMemory, node: &Bound<'_, PyAny>, count: usize) -> Option<Vec<usize>> {
    let object = memory.words(node.as_ptr().addr(), NODE + 1)?;
    // Fewer if nothing is behind the node.
    (2..=count).rev().step_by(8).find_map(|count| memory.words(object[NODE], count))
}

/// Returns what the elements of a list have where a hook has its dict. The list begins at a word of
/// the node, and the next word is its end.
fn dicts(memory: &ProcessMemory, words: &[usize], at: usize) -> Vec<usize> {
    let found = || {
        let (begin, end) = (*words.get(at)?, *words.get(at + 1)?);
        let bytes = end.checked_sub(begin)?;
        if bytes == 0 || bytes % WORD != 0 || bytes / WORD > HOOKS_MOST || begin % WORD != 0 {
            return None;
        }
        memory.words(begin, bytes / WORD)
    };
    let hooks = found().unwrap_or_default();
    hooks.into_iter().filter_map(|hook| Some(memory.words(hook, DICT + 1)?[DICT])).collect()
}
