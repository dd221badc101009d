//! Sharing a device: what agents and the *arbiter*, a part of the helper, tell each other.
//!
//! An agent under `lowtide run --share` connects to the helper and asks [`Ask::Join`]. After the answer
//! [`Answer::Joined`] the connection is a *standing* one: each side sends lines when it has something to say,
//! the agent [`ToArbiter`], the arbiter [`ToAgent`]. The process is known by the kernel's word
//! (`SO_PEERCRED`), not by a message. When the connection ends, the process is no member any more: its needs
//! and grants end with it.
//!
//! | the agent says | when |
//! |---|---|
//! | [`ToArbiter::Report`] | after it joined, when its state changes, and as answer to [`ToAgent::Look`] |
//! | [`ToArbiter::Need`] | a call finds no room; and before every wake, because what is free may be what it just gave to another. The call has left the gate and waits |
//! | [`ToArbiter::Drop`] | the call waits no longer: its time is over, or its thread ends |
//! | [`ToArbiter::Used`], [`ToArbiter::Failed`] | a granted call has its memory; it found no room and asks again |
//! | [`ToArbiter::Fixed`] | the program asks for the first time how much memory there is |
//! | [`ToArbiter::Held`] | its work has ended, and an order wants to hear so |
//! | [`ToArbiter::Gave`], [`ToArbiter::Refused`] | the end of each [`ToAgent::Give`] |
//!
//! | the arbiter says | and expects |
//! |---|---|
//! | [`ToAgent::Look`] | a report within two seconds. Without one nobody waits for this process |
//! | [`ToAgent::Give`] | a report of the state `draining` within two seconds, then `gave` or `refused`; with `holds` first `held` |
//! | [`ToAgent::Leave`], [`ToAgent::Stay`] | `gave` or `refused`; `refused` |
//! | [`ToAgent::Grant`] | `used`, `failed` or `drop` before the lease ends |
//! | [`ToAgent::Refuse`] | nothing: the call returns the driver's out-of-memory |
//! | [`ToAgent::Fixed`] | nothing: the answer to [`ToArbiter::Fixed`] |
//! | [`ToAgent::Wait`] | nothing: for the line on standard error |
//!
//! ```
//! use lowtide_proto::share::ToArbiter;
//!
//! let line = ToArbiter::Used { ticket: 7 }.to_line();
//! assert_eq!(line, "{\"say\":\"used\",\"ticket\":7}\n");
//! assert_eq!(ToArbiter::from_line(line.as_bytes()).unwrap(), ToArbiter::Used { ticket: 7 });
//! ```
//!
//! [`Ask::Join`]: crate::helper::Ask::Join
//! [`Answer::Joined`]: crate::helper::Answer::Joined

mod messages;
mod queue;

pub use self::messages::*;
pub use self::queue::*;
