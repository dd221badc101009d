//! What lowtide's agent is asked, and what it answers: one line of JSON each, over a Unix socket.
//!
//! A line has a version and is at most [`LINE_MOST`] bytes long. What cannot be read is answered with
//! [`Answer::Refused`], and the connection ends.
//!
//! ```
//! use lowtide_proto::{Ask, Request};
//!
//! let line = Request::new(Ask::Sleep).to_line();
//! assert_eq!(line, "{\"version\":1,\"ask\":\"sleep\"}\n");
//! assert_eq!(Request::from_line(line.as_bytes()).unwrap().ask, Ask::Sleep);
//! ```

mod agent;
pub mod descriptors;
mod device_bytes;
pub mod helper;
pub mod line;
pub mod share;
mod target;

pub use self::agent::cap::MemoryCap;
pub use self::agent::client::{AskError, Question, ask};
pub use self::agent::messages::{
    Answer, Ask, ContextStatus, LINE_MOST, LimitStatus, NoRoom, Request, Resumed, SOCKET, Status,
    Staying, Unreadable, VERSION, WITHOUT_GPU, Woken, socket_name,
};
pub use self::agent::obstacle::{Obstacle, ParseObstacleError};
pub use self::agent::outside::{QUESTION, question_name, question_script};
pub use self::agent::sharing::{ShareAnswer, ShareAsk};
