//! What the agent of a process that opens memory asks the agent of the process that has it, on a connection that
//! begins with [`Ask::Share`](super::messages::Ask::Share). The memory stays open until it is closed here or the
//! connection ends.

use lowtide_types::Bytes;
use serde::{Deserialize, Serialize};

use crate::target::Target;

/// A question on a connection for sharing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShareAsk {
    /// Opens an allocation.
    Open {
        /// The secret of the process that has it.
        token: [u64; 2],
        /// Its number there.
        allocation: u64,
        /// The most descriptors that the answer may have.
        most: usize,
        /// The first process of the run that opens it.
        #[serde(default)]
        family: Option<Target>,
    },
    /// Asks for the next chunks of the allocation that is being opened.
    More {
        /// The most descriptors that the answer may have.
        most: usize,
    },
    /// Closes an allocation. There is no answer.
    Close {
        /// Its number.
        allocation: u64,
    },
}

/// An answer on a connection for sharing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShareAnswer {
    /// The connection is for sharing now; the first line on it.
    Ready,
    /// Chunks of an allocation in the order of their addresses, each with a descriptor.
    Chunks {
        /// The size that its program asked for.
        bytes: Bytes,
        /// The size of each chunk in this answer.
        chunks: Vec<Bytes>,
        /// The sum of the chunks that are still to come.
        left: Bytes,
        /// Whether both are processes of one run: then the memory is closed while the one that opens it sleeps.
        #[serde(default)]
        is_kin: bool,
    },
    /// Nothing was opened.
    Refused {
        /// The driver's code for the caller.
        code: i32,
        /// The reason.
        reason: String,
    },
}

impl ShareAsk {
    /// Returns the line to send.
    pub fn to_line(&self) -> String {
        crate::line::line_of(self)
    }
}

impl ShareAnswer {
    /// Returns the line to send.
    pub fn to_line(&self) -> String {
        crate::line::line_of(self)
    }
}
