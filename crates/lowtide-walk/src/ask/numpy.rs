//! Arrays of numpy. They take no part in garbage collection, so no traverse slot shows what they
//! refer to: the object whose memory they show (`base`), and the elements of an array of objects or
//! of structures with objects in them. One row of an array of structures shows its memory, too.
//!
//! Both are read where numpy has them. That is part of numpy's binary interface: extensions that
//! were compiled with numpy 1.7 read the same fields of numpy 2. Whether it is so is checked with an
//! array whose base is known.

use std::collections::{HashMap, HashSet};

use pyo3::ffi::{PyObject, PyTypeObject};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::ask::object::field;

/// Offsets in an array, in bytes.
const DATA: usize = 16;
const DIMENSIONS: usize = 24;
const SHAPE: usize = 32;
const BASE: usize = 48;
const DTYPE: usize = 56;
const FLAGS: usize = 64;
/// The offset of a number in a dtype, and the number of objects.
const TYPE_NUMBER: usize = 28;
const OBJECTS: i32 = 17;
/// The number of structures.
const STRUCTURES: i32 = 20;
/// Where a dtype may have its flags: since numpy 2, and before.
const DTYPE_FLAGS: [usize; 2] = [32, 27];
/// The flag of a dtype with objects.
const HAS_OBJECTS: u8 = 1;
/// The flag of an array that has its elements itself.
const OWNS_DATA: i32 = 4;
/// numpy allows 64.
const DIMENSIONS_MOST: usize = 64;

/// The arrays of an imported numpy, as Python reports it.
#[derive(FromPyObject)]
pub(crate) struct Arrays<'py> {
    class_: Bound<'py, PyType>,
    /// An array, and the array whose memory it shows.
    view: Bound<'py, PyAny>,
    base: Bound<'py, PyAny>,
    /// The type of the rows of an array of structures; a row, and its array.
    row_class: Bound<'py, PyType>,
    row: Bound<'py, PyAny>,
    rows: Bound<'py, PyAny>,
    /// Dtypes of structures without objects, and with objects.
    plain: Vec<Bound<'py, PyAny>>,
    mixed: Vec<Bound<'py, PyAny>>,
}

impl Arrays<'_> {
    /// Returns the type of arrays, or `None` if they do not have their base where it is expected.
    pub(crate) fn class(&self) -> Option<*mut PyTypeObject> {
        let is_right = base(self.view.as_ptr()) == self.base.as_ptr();
        (is_right && size_of::<usize>() == 8).then(|| self.class_.as_type_ptr())
    }

    /// Returns the type of rows, or `None` if they do not have their array where it is expected.
    pub(crate) fn row_class(&self) -> Option<*mut PyTypeObject> {
        let is_right = self.row.get_type().is(&self.row_class)
            && size_of::<usize>() == 8
            && base(self.row.as_ptr()) == self.rows.as_ptr();
        is_right.then(|| self.row_class.as_type_ptr())
    }

    /// Returns where dtypes have the flags that say whether they have objects, or `None` if it is
    /// not known. In the wrong place is a size, and the examples have odd and even ones.
    pub(crate) fn dtype_flags(&self) -> Option<usize> {
        let has = |dtype: &Bound<'_, PyAny>, at| has_objects(dtype.as_ptr().cast::<u8>(), at);
        DTYPE_FLAGS.into_iter().find(|at| {
            self.plain.iter().all(|dtype| !has(dtype, *at))
                && self.mixed.iter().all(|dtype| has(dtype, *at))
        })
    }
}

fn read<T: Copy>(at: *const u8, offset: usize) -> T {
    // SAFETY: an array or its dtype has a field of this type there, as the callers say.
    unsafe { field(at, offset) }
}

/// Returns the object whose memory an array or a row shows; null if it has its own. Both have it at
/// the same offset.
pub(crate) fn base(array: *mut PyObject) -> *mut PyObject {
    read(array.cast::<u8>(), BASE)
}

/// Returns the dtype of an array.
pub(crate) fn dtype(array: *mut PyObject) -> *mut PyObject {
    read(array.cast::<u8>(), DTYPE)
}

/// Returns whether a dtype has objects, by its flags.
fn has_objects(dtype: *const u8, flags: usize) -> bool {
    read::<u8>(dtype, flags) & HAS_OBJECTS != 0
}

/// Where an item of an array has its objects.
#[derive(FromPyObject)]
pub(crate) struct Layout {
    /// The size of an item.
    size: usize,
    /// The offset of each object, in bytes.
    objects: Vec<usize>,
}

/// The layouts of structures with objects, by the address of their dtype. Only Python can tell them:
/// it is asked after a walk has met such an array, and the walk is repeated.
pub(crate) struct Layouts {
    known: HashMap<usize, Layout>,
    /// The dtypes that were met and are not known.
    unknown: HashSet<usize>,
    object: Layout,
    /// Where dtypes have their flags. If it is not known, Python is asked about every structure.
    pub(crate) flags: Option<usize>,
}

impl Layouts {
    /// Creates a table without structures.
    pub(crate) fn new() -> Layouts {
        let object = Layout { size: size_of::<usize>(), objects: vec![0] };
        Layouts { known: HashMap::new(), unknown: HashSet::new(), object, flags: None }
    }

    /// Returns the dtypes that were met and are not known, and forgets them.
    pub(crate) fn take_unknown(&mut self) -> Vec<usize> {
        self.unknown.drain().collect()
    }

    /// Adds the layout of a dtype, which must stay alive as long as this table.
    pub(crate) fn add(&mut self, dtype: usize, layout: Layout) {
        self.known.insert(dtype, layout);
    }

    /// Returns where the items of an array have objects; `None` if they have none, or that is not
    /// known yet.
    fn of(&mut self, dtype: *const u8) -> Option<&Layout> {
        match read::<i32>(dtype, TYPE_NUMBER) {
            OBJECTS => Some(&self.object),
            STRUCTURES if self.flags.is_some_and(|at| !has_objects(dtype, at)) => None,
            STRUCTURES => {
                let found = self.known.get(&dtype.addr());
                if found.is_none() {
                    self.unknown.insert(dtype.expose_provenance());
                }
                found.filter(|layout| !layout.objects.is_empty())
            }
            _ => None,
        }
    }
}

/// Objects in the items of an array.
pub(crate) struct Elements<'a> {
    data: *const u8,
    len: usize,
    layout: Option<&'a Layout>,
}

impl Elements<'_> {
    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0 || self.layout.is_none()
    }

    /// Returns the objects; some may be null.
    pub(crate) fn objects(&self) -> impl Iterator<Item = *mut PyObject> {
        let data = self.data;
        let items = self.layout.into_iter().flat_map(|layout| {
            (0..self.len).map(move |item| (item * layout.size, &layout.objects))
        });
        items.flat_map(move |(item, objects)| {
            objects.iter().map(move |object| read(data, item + object))
        })
    }
}

/// Returns the elements of an array that has them itself.
pub(crate) fn elements(array: *mut PyObject, layouts: &mut Layouts) -> Elements<'_> {
    let array = array.cast::<u8>().cast_const();
    let dtype: *const u8 = read(array, DTYPE);
    let data: *const u8 = read(array, DATA);
    let owns = read::<i32>(array, FLAGS) & OWNS_DATA != 0;
    if !owns || data.is_null() || dtype.is_null() {
        return Elements { data, len: 0, layout: None };
    }
    let dimensions = usize::try_from(read::<i32>(array, DIMENSIONS)).unwrap_or(0);
    let shape: *const u8 = read(array, SHAPE);
    let lengths = (0..dimensions.min(DIMENSIONS_MOST)).map(|at| read::<isize>(shape, at * 8));
    // An array that has its items itself has them one after the other, in whatever order.
    let len = lengths.map(|len| usize::try_from(len).unwrap_or(0)).product();
    Elements { data, len, layout: layouts.of(dtype) }
}
