//! Macros for classes of Python: each getter and each variant is told once.

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;

/// Defines a class of Python around a value of lowtide: a getter for each field, `__eq__` if that is asked for, then
/// further methods.
macro_rules! wrapper {
    (
        $(#[$($class:tt)*])*
        $name:ident($inner:ty)$(, $eq:ident)? {
            $($(#[$($doc:tt)*])* $field:ident: $type:ty = |$it:ident| $value:expr;)*
        }
        $($method:tt)*
    ) => {
        $(#[$($class)*])*
        #[pyo3::pyclass(frozen, module = "lowtide._native")]
        pub(crate) struct $name(pub(crate) $inner);

        #[pyo3::pymethods]
        impl $name {
            $(
                $(#[$($doc)*])*
                #[getter]
                fn $field(&self) -> $type {
                    let $it = &self.0;
                    $value
                }
            )*

            $(
                fn $eq(&self, other: &$name) -> bool {
                    self.0 == other.0
                }
            )?

            /// Returns the table that a notebook shows, or `None` if there is none.
            fn _repr_html_<'py>(
                slf: &pyo3::Bound<'py, Self>,
            ) -> pyo3::PyResult<pyo3::Bound<'py, pyo3::PyAny>> {
                crate::data::classes::view(slf.as_any(), "html", (slf,))
            }

            /// Prints it as `IPython` asks for it.
            fn _repr_pretty_<'py>(
                slf: &pyo3::Bound<'py, Self>,
                printer: pyo3::Bound<'py, pyo3::PyAny>,
                is_cycle: bool,
            ) -> pyo3::PyResult<pyo3::Bound<'py, pyo3::PyAny>> {
                crate::data::classes::view(slf.as_any(), "pretty", (slf, printer, is_cycle))
            }

            $($method)*
        }
    };
}

/// Calls a function of the views, which are written in Python.
pub(crate) fn view<'py, A: PyCallArgs<'py>>(
    shown: &Bound<'py, PyAny>,
    name: &str,
    arguments: A,
) -> PyResult<Bound<'py, PyAny>> {
    shown.py().import("lowtide._runtime.view")?.getattr(name)?.call1(arguments)
}

/// Defines an enum of Python that has the variants of one of lowtide's.
macro_rules! mirror {
    ($(#[$($class:tt)*])* $name:ident { $($(#[$($doc:tt)*])* $variant:ident,)* }) => {
        $(#[$($class)*])*
        #[pyo3::pyclass(
            frozen,
            eq,
            hash,
            from_py_object,
            rename_all = "SCREAMING_SNAKE_CASE",
            module = "lowtide._native"
        )]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) enum $name {
            $($(#[$($doc)*])* $variant,)*
        }

        impl From<$name> for lowtide::release::$name {
            fn from(mirrored: $name) -> lowtide::release::$name {
                match mirrored {
                    $($name::$variant => lowtide::release::$name::$variant,)*
                }
            }
        }

        impl From<lowtide::release::$name> for $name {
            fn from(mirrored: lowtide::release::$name) -> $name {
                match mirrored {
                    $(lowtide::release::$name::$variant => $name::$variant,)*
                }
            }
        }
    };
}

pub(crate) use {mirror, wrapper};
