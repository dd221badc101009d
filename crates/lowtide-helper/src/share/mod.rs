//! Sharing a device: the arbiter, which decides whose memory is on a device that is too small for all.
//!
//! The policy is pure: [`Arbiter::hear`] takes what happened, [`Arbiter::decide`] takes the driver's numbers and
//! returns what to tell whom. It reads no clock and does no I/O, so that a simulation drives the same code
//! (`tests/helper/sharing`). What programs and arbiter tell each other is in [`lowtide_proto::share`].
//!
//! | file | holds |
//! |---|---|
//! | `arbiter` | [`Arbiter`]: what it knows and hears |
//! | `decide` | its decisions, call by call |
//! | `prospects` | whether a call can have its room, from whom and when |
//! | `plan` | who gives way so that one call has its room |
//! | `family` | a program that shares: its processes, its residence, its failed drains, why it cannot move |
//! | `member` | a process that shares: its memory by its reports |
//! | `order` | an order to give way: all processes of a program stop before the memory of any of them moves |
//! | `room` | the driver's numbers, and what of the free memory is promised |
//! | `waits` | the calls that wait, and their order |
//! | `turns` | classes, residence, and the part of the time that goes into moving |
//! | `words` | why a call waits, for people |
//! | `queue` | the queue, for `lowtide status` |
//! | `amounts` | bytes by device |
//!
//! # The rules
//! - **A call is granted all that it needs, on all devices, or nothing.** It holds nothing while it waits, except
//!   what its program had before, and that may be taken: its program may be put to sleep. So there is no circle.
//! - **The processes of one run are one program**: what one of them needs, all that are off the devices need; after a
//!   grant their room is kept until they are touched. They give way together, or none does.
//! - **More than there can ever be is refused at once**, as alone on a card: a framework empties its cache and tries
//!   again. What cannot be moved counts as not there, but a program that sleeps waits for it: it has nothing to free.
//! - **A grant is a lease**, bounded by the driver's free number of that moment, minus the other leases, minus
//!   512 MiB. A lease counts until the driver's number shows that it was used, at most [`LATE`].
//! - **Calls have an order**: the class, then who came first. A later call takes only what the plans of earlier
//!   ones leave. A call that nobody can make room for now holds up no other.
//! - **Room is made by demand only**, by as few as possible: idle programs and those that wait themselves, the
//!   longest idle first, of these the cheapest; contexts, where they are all that is missing; busy programs that had
//!   their residence. Nobody is told to give way before all whom a plan needs can.
//! - **Residence**: a busy program keeps its memory for max(2 s, 10 × its last switch) after it came, against its
//!   own class and lower ones, and longer while more than a tenth of the last minute went into such switches. The
//!   switch is its own copies both ways, or the time from the end of the work that gave way for it until it had its
//!   memory, if that was longer: nobody computed in it.
//! - **Even shares**: a program that had less time than the one that asks, while others waited, catches up first, by
//!   a minute at most. One that was idle, and a new one, catch nothing up.
//! - **Drains that fail** take a twentieth of a program's time beside one whole one: each is shorter, or there is time
//!   for it. They come 2 s apart, then twice as long each time, at most a minute.
//!
//! # The longest wait
//! Waiting raises the class by one each [`AGING`]. After at most 2 × [`AGING`] a call is in the highest class, and
//! there those that came before it are served before it: at most one of each other program at a time. Each of
//! them, and then the call itself, waits for one residence and one drain with its switch. So with *n* programs, a
//! longest residence *R* and a longest drain with its switch *D*, a call waits for at most
//! 2 × [`AGING`] + *n* × (*R* + *D*). *R* is at most max(2 s, 10 × (switch + 1 s)) + 60 s. Time in which a program that
//! cannot move is in the way does not count: the call is told its name.

mod amounts;
mod arbiter;
mod decide;
mod family;
mod member;
mod order;
mod plan;
mod prospects;
mod queue;
mod room;
mod turns;
mod waits;
mod words;

pub use self::arbiter::{Arbiter, Event};
pub use self::member::MemberId;
pub use self::room::{DeviceFree, LATE, Other, RESERVE};
pub use self::turns::{AGING, Rule};
