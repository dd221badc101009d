//! What can go wrong with tagged memory.

use std::fmt;

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
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The pool or the device refused.
    Pool(lowtide::pool::Error),
    /// No tag has this name.
    UnknownTag { name: String, known: Vec<String> },
    /// The tag exists with another policy.
    OtherPolicy { name: String, known: &'static str },
    /// The tag's memory is not on the device.
    Asleep { name: String },
    /// The tag falls asleep or wakes on another thread.
    Turning { name: String },
    /// A scope of the tag is open, so that torch may hand out its memory at any time.
    Open { name: String },
    /// No policy has this name.
    UnknownPolicy { policy: String },
    /// The device's number is not one of a GPU.
    BadDevice { device: i32 },
    /// This process was forked from the one that has the memory.
    Forked,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Pool(error) => error.fmt(f),
            Refusal::UnknownTag { name, known } if known.is_empty() => {
                write!(f, "there is no tag {name:?}: nothing was allocated in a tag yet")
            }
            Refusal::UnknownTag { name, known } => {
                write!(f, "there is no tag {name:?}; there are {}", known.join(", "))
            }
            Refusal::OtherPolicy { name, known } => {
                write!(f, "tag {name:?} exists with policy {known:?}; use another name")
            }
            Refusal::Asleep { name } => {
                write!(f, "tag {name:?} is asleep: lowtide.wake({name:?}) wakes it")
            }
            Refusal::Turning { name } => {
                write!(f, "tag {name:?} falls asleep or wakes at this moment; try again afterwards")
            }
            Refusal::Open { name } => write!(
                f,
                "a scope of tag {name:?} is open, and torch may hand out its memory at any time: leave \
                 `with lowtide.tag({name:?})` first"
            ),
            Refusal::UnknownPolicy { policy } => {
                write!(
                    f,
                    "{policy:?} is no policy; there are \"offload\", \"discard\" and \"keep\""
                )
            }
            Refusal::BadDevice { device } => write!(f, "{device} is no number of a CUDA device"),
            Refusal::Forked => {
                f.write_str("tagged memory belongs to the process that this one was forked from")
            }
        }
    }
}

impl From<lowtide::pool::Error> for Refusal {
    fn from(error: lowtide::pool::Error) -> Refusal {
        Refusal::Pool(error)
    }
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
