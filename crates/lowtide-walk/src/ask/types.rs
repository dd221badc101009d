//! What is known of an object by its type: its kind, and how it is traversed.

use std::collections::HashMap;
use std::mem::transmute;
use std::ptr::with_exposed_provenance_mut;

use pyo3::ffi::{self, PyObject, PyTypeObject};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::ask::dlpack::is_capsule_type;
use crate::ask::kind::{Kind, TypeKind};
use crate::ask::numpy::Layouts;
use crate::ask::object::is_below;
use crate::ask::prefetch::prefetch;

/// The facts about a type that the walk needs.
#[derive(Clone, Copy)]
pub(crate) struct TypeInfo {
    pub(crate) kind: Kind,
    /// The traverse slot; `None` if its objects refer to nothing that can be known.
    pub(crate) traverse: Option<ffi::traverseproc>,
    /// Asked if only some of its objects are collected: classes written in C are not.
    pub(crate) is_gc: Option<ffi::inquiry>,
    /// Whether its objects are arrays of numpy.
    pub(crate) is_array: bool,
    /// Whether its objects are rows of arrays of structures.
    pub(crate) is_row: bool,
    /// Whether its objects are capsules. Those of `DLPack` hold tensors.
    pub(crate) is_capsule: bool,
    /// The traverse slot if any thread may call it: it reads the object and calls nothing but the
    /// function that it is given (docs/decisions/0009).
    pub(crate) reader: Option<ffi::traverseproc>,
    /// Offsets in its objects, in bytes, of pointers to memory that the slot will read. Only used
    /// to prefetch it.
    pub(crate) beside: [isize; 2],
}

impl TypeInfo {
    /// A type whose objects refer to nothing.
    pub(crate) const NOTHING: TypeInfo = TypeInfo {
        kind: Kind::Opaque,
        traverse: None,
        is_gc: None,
        is_array: false,
        is_row: false,
        is_capsule: false,
        reader: None,
        beside: NOWHERE,
    };

    /// Returns whether its objects refer to nothing, whatever is in them.
    pub(crate) fn refers_to_nothing(&self) -> bool {
        let is_read_otherwise = self.is_array || self.is_row || self.is_capsule;
        self.traverse.is_none() && !is_read_otherwise && self.kind != Kind::Tensor
    }

    /// Returns whether the traverse slot of an object of this type may be called: that of a class written
    /// in C must not.
    pub(crate) fn is_collected(&self, object: *mut PyObject) -> bool {
        // SAFETY: the object is alive, and the slot is one of its type.
        self.is_gc.is_none_or(|is_gc| unsafe { is_gc(object) } != 0)
    }

    /// Prefetches the memory that the traverse slot of an object of this type will read.
    pub(crate) fn prefetch_beside(&self, object: *mut PyObject) {
        for offset in self.beside {
            let place = object.wrapping_byte_offset(offset).cast::<usize>();
            // SAFETY: objects of its type have a pointer there, or something else as long.
            let beside = unsafe { place.read() };
            if beside != 0 {
                prefetch(beside);
            }
        }
    }
}

/// The pointer to the type, which every object has.
const NOWHERE: [isize; 2] = [8, 8];
/// The items of a list.
const LIST_ITEMS: [isize; 2] = [24, 24];
/// The keys of a dict, and its values if they are separate.
const DICT_KEYS: [isize; 2] = [32, 40];
/// The attributes of an instance that are not in itself: since Python 3.11 the pointers to them
/// stand in front of the collector's links. (What stands farther in front is something else since
/// 3.12.)
const ATTRIBUTES: [isize; 2] = [-24, -32];
/// The flags of a type with such attributes: it has a managed dict, and is collected.
const IN_FRONT: std::ffi::c_ulong = 1 << 4 | ffi::Py_TPFLAGS_HAVE_GC;

/// How many types are cached.
const RECENT: usize = 64;

/// Returns the position of a type in the cache. Types lie at multiples of 16, and are hundreds of
/// bytes long.
fn recent(class: *mut PyTypeObject) -> usize {
    (class.addr() >> 4 ^ class.addr() >> 10) % RECENT
}

/// Every type that the walk has met.
pub(crate) struct Types {
    /// What is known of them, by their addresses.
    infos: HashMap<usize, TypeInfo>,
    /// The types that were asked for last: most objects have one of a few types.
    recent: [(usize, TypeInfo); RECENT],
    /// Types that Python has named, the kinds of their objects, and whether that includes
    /// subclasses.
    known: Vec<(usize, Kind, bool)>,
    /// The traverse slot of classes written in Python.
    plain: usize,
    /// Traverse slots that any thread may call.
    readers: Vec<usize>,
    /// The traverse slot of autograd's nodes, each of which has a type of its own.
    pub(crate) node: usize,
    exception: usize,
    frozenset: usize,
    list: usize,
    /// The type of numpy's arrays.
    pub(crate) array: Option<*mut PyTypeObject>,
    /// The type of rows of its arrays.
    pub(crate) row: Option<*mut PyTypeObject>,
    /// Where structured arrays have objects.
    pub(crate) layouts: Layouts,
    /// By the address of an object that no traverse slot can be asked about: what it refers to, as
    /// Python reports it.
    pub(crate) reported: HashMap<usize, Vec<usize>>,
    /// Whether the layout of this interpreter's objects is known.
    knows_layout: bool,
}

// SAFETY: its pointers are addresses of types, which are alive and do not change during a walk,
// whichever thread reads them.
unsafe impl Send for Types {}

impl Types {
    /// Knows the types that Python has named. `sample` is a class written in Python; any thread may
    /// ask objects of the types `readers`.
    pub(crate) fn new(
        known: &[Py<TypeKind>],
        sample: &Bound<'_, PyType>,
        readers: &[Bound<'_, PyType>],
        knows_layout: bool,
    ) -> Types {
        let py = sample.py();
        let known = known.iter().map(Py::get);
        let traverse_of =
            |class: &Bound<'_, PyType>| slot(class.as_type_ptr(), ffi::Py_tp_traverse);
        Types {
            infos: HashMap::new(),
            recent: [(0, TypeInfo::NOTHING); RECENT],
            known: known.map(|one| (one.class.as_ptr().addr(), one.kind, one.subclasses)).collect(),
            plain: traverse_of(sample),
            readers: readers.iter().map(traverse_of).collect(),
            node: 0,
            exception: py.get_type::<pyo3::exceptions::PyBaseException>().as_ptr().addr(),
            frozenset: py.get_type::<pyo3::types::PyFrozenSet>().as_ptr().addr(),
            list: py.get_type::<pyo3::types::PyList>().as_ptr().addr(),
            array: None,
            row: None,
            layouts: Layouts::new(),
            reported: HashMap::new(),
            knows_layout,
        }
    }

    /// Forgets every type. While Python runs, a type may be freed and another be created at its
    /// address.
    pub(crate) fn forget(&mut self) {
        self.infos.clear();
        self.recent = [(0, TypeInfo::NOTHING); RECENT];
    }

    /// Returns what is known of a type.
    #[inline]
    pub(crate) fn of(&mut self, class: *mut PyTypeObject) -> TypeInfo {
        let (known, info) = self.recent[recent(class)];
        if known == class.addr() { info } else { self.look_up(class) }
    }

    fn look_up(&mut self, class: *mut PyTypeObject) -> TypeInfo {
        let known = self.infos.get(&class.addr()).copied();
        let info = known.unwrap_or_else(|| self.learn(class));
        self.infos.insert(class.addr(), info);
        self.recent[recent(class)] = (class.addr(), info);
        info
    }

    fn learn(&self, class: *mut PyTypeObject) -> TypeInfo {
        let traverse = traverse(class);
        let kind = self.kind(class, traverse);
        let is_one = |of: Option<*mut PyTypeObject>| of.is_some_and(|above| is_below(class, above));
        let mut info = TypeInfo {
            kind,
            traverse,
            is_gc: is_gc(class),
            is_array: is_one(self.array),
            is_row: is_one(self.row),
            is_capsule: is_capsule_type(class),
            reader: None,
            beside: self.beside(class, kind),
        };
        info.reader = traverse.filter(|_| self.is_for_any_thread(class, info));
        info
    }

    fn is_for_any_thread(&self, class: *mut PyTypeObject, info: TypeInfo) -> bool {
        let TypeInfo { kind, is_gc, is_array, is_row, is_capsule, .. } = info;
        // What else is known of these, only the calling thread has.
        let is_told = matches!(kind, Kind::Tensor | Kind::Frame | Kind::Generator);
        let is_told = is_told || is_array || is_row || is_capsule;
        if is_gc.is_some() || is_told {
            return false;
        }
        // The slot of a class written in Python calls that of the first base which is not.
        let mut base = class;
        while slot(base, ffi::Py_tp_traverse) == self.plain {
            base = with_exposed_provenance_mut(slot(base, ffi::Py_tp_base));
            if base.is_null() {
                return false;
            }
        }
        let slot = slot(base, ffi::Py_tp_traverse);
        slot == 0 || self.readers.contains(&slot)
    }

    fn beside(&self, class: *mut PyTypeObject, kind: Kind) -> [isize; 2] {
        match kind {
            _ if !self.knows_layout => NOWHERE,
            _ if class.addr() == self.list => LIST_ITEMS,
            Kind::Dict => DICT_KEYS,
            Kind::Instance | Kind::Model if flags(class) & IN_FRONT == IN_FRONT => ATTRIBUTES,
            _ => NOWHERE,
        }
    }

    fn kind(&self, class: *mut PyTypeObject, traverse: Option<ffi::traverseproc>) -> Kind {
        let exact = self.known.iter().find(|(known, ..)| *known == class.addr());
        let is_below = |above: usize| is_below(class, with_exposed_provenance_mut(above));
        if let Some((_, kind, _)) = exact {
            return *kind;
        }
        if flags(class) & ffi::Py_TPFLAGS_TYPE_SUBCLASS != 0 {
            return Kind::Class;
        }
        let below = self.known.iter().find(|(known, _, below)| *below && is_below(*known));
        if let Some((_, kind, _)) = below {
            return *kind;
        }
        if is_below(self.exception) {
            return Kind::Exception;
        }
        // A named tuple can be changed as little as any other.
        if flags(class) & ffi::Py_TPFLAGS_TUPLE_SUBCLASS != 0 || is_below(self.frozenset) {
            return Kind::Immutable;
        }
        match traverse.map(|traverse| traverse as usize) {
            Some(slot) if slot == self.plain => Kind::Instance,
            Some(slot) if slot == self.node => Kind::Tensor,
            _ => Kind::Opaque,
        }
    }
}

fn flags(class: *mut PyTypeObject) -> std::ffi::c_ulong {
    // SAFETY: the type is of a live object, so it is alive itself.
    unsafe { ffi::PyType_GetFlags(class) }
}

/// Returns the traverse slot of a type whose objects are collected. In other types the slot may be
/// set without a meaning.
pub(crate) fn traverse(class: *mut PyTypeObject) -> Option<ffi::traverseproc> {
    if flags(class) & ffi::Py_TPFLAGS_HAVE_GC == 0 {
        return None;
    }
    // SAFETY: the type is alive. Since Python 3.10 slots of every type may be asked for.
    let slot = unsafe { ffi::PyType_GetSlot(class, ffi::Py_tp_traverse) };
    // SAFETY: where the slot is set, it holds a function of this type.
    unsafe { transmute::<*mut std::ffi::c_void, Option<ffi::traverseproc>>(slot) }
}

/// Returns the address in a slot of a type; 0 if there is none.
fn slot(class: *mut PyTypeObject, number: std::ffi::c_int) -> usize {
    // SAFETY: the type is alive. Since Python 3.10 slots of every type may be asked for.
    unsafe { ffi::PyType_GetSlot(class, number) }.expose_provenance()
}

/// Returns whether a type was made at run time, as classes of programs are.
pub(crate) fn is_of_the_program(class: *mut PyTypeObject) -> bool {
    flags(class) & ffi::Py_TPFLAGS_HEAPTYPE != 0
}

/// Returns the slot that says whether an object of this type is collected.
pub(crate) fn is_gc(class: *mut PyTypeObject) -> Option<ffi::inquiry> {
    // SAFETY: the type is of a live object, so it is alive itself.
    let slot = unsafe { ffi::PyType_GetSlot(class, ffi::Py_tp_is_gc) };
    // SAFETY: where the slot is set, it holds a function of this type.
    unsafe { transmute::<*mut std::ffi::c_void, Option<ffi::inquiry>>(slot) }
}
