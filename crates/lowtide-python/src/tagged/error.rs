//! What can go wrong with tagged memory.

use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

create_exception!(
    lowtide,
    TagError,
    PyRuntimeError,
    "Raised if a tag cannot be used, sleep or wake now. The text says why, and what to do."
);

/// A reason why tagged memory cannot be allocated, sleep or wake.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The pool or the device refused.
    #[error(transparent)]
    Pool(#[from] lowtide::pool::Error),
    /// No tag was declared.
    #[error("there is no tag {name:?}: nothing was allocated in a tag yet")]
    NoTag { name: String },
    /// No tag has this name.
    #[error("there is no tag {name:?}; there are {}", known.join(", "))]
    UnknownTag { name: String, known: Vec<String> },
    /// The tag exists with another policy.
    #[error("tag {name:?} exists with policy {known:?}; use another name")]
    OtherPolicy { name: String, known: &'static str },
    /// The tag's memory is not on the device.
    #[error("tag {name:?} is asleep: lowtide.wake({name:?}) wakes it")]
    Asleep { name: String },
    /// The tag falls asleep or wakes on another thread.
    #[error("tag {name:?} falls asleep or wakes at this moment; try again afterwards")]
    Turning { name: String },
    /// A scope of the tag is open, so that torch may hand out its memory at any time.
    #[error(
        "a scope of tag {name:?} is open, and torch may hand out its memory at any time: leave \
         `with lowtide.tag({name:?})` first"
    )]
    Open { name: String },
    /// No policy has this name.
    #[error("{policy:?} is no policy; there are \"offload\", \"discard\" and \"keep\"")]
    UnknownPolicy { policy: String },
    /// The device's number is not one of a GPU.
    #[error("{device} is no number of a CUDA device")]
    BadDevice { device: i32 },
    /// This process was forked from the one that has the memory.
    #[error("tagged memory belongs to the process that this one was forked from")]
    Forked,
}

impl From<lowtide::device::Error> for Refusal {
    fn from(error: lowtide::device::Error) -> Refusal {
        Refusal::Pool(error.into())
    }
}

impl From<Refusal> for PyErr {
    fn from(refusal: Refusal) -> PyErr {
        TagError::new_err(refusal.to_string())
    }
}
