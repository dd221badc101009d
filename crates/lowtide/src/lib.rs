//! lowtide frees GPU memory in running programs and verifies the result with the driver's own
//! numbers.
//!
//! | module | what it has |
//! |---|---|
//! | [`device`] | [`device::Device`]: a GPU (`cuda:N`), or pages of this machine (`host`) |
//! | [`pool`] | [`Pool`](pool::Pool): an allocator whose blocks can sleep and wake |
//! | [`release`] | [`release::Releaser`]: frees memory and writes a [`Receipt`](release::Receipt) |
//! | [`prelude`] | the names that most programs need |
//!
//! A receipt has the device's numbers before and after, what is left, and a
//! [`Verdict`](release::Verdict). Nothing counts as freed because a call returned.
//!
//! ```
//! use lowtide::device::HostOptions;
//! use lowtide::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // 64 MiB of this machine's memory. `best_device()?` takes the first GPU, or `host` if there is none.
//! let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
//! let pool = Pool::new(&device)?;
//!
//! let weights = pool.block(Bytes::mib(20))?;
//! weights.write(Bytes::ZERO, b"real bytes")?;
//!
//! pool.sleep(Scope::Whole)?; // the memory leaves the device, the address stays
//! assert_eq!(device.usage()?.in_use(), Bytes::ZERO); // the kernel's number, not ours
//! println!("{}: {}", device.id(), device.usage()?); // host: 0.0 MiB of 64.0 MiB in use, 64.0 MiB free
//! pool.wake(Scope::Whole)?; // every page is verified
//!
//! let mut bytes = [0; 10];
//! weights.read(Bytes::ZERO, &mut bytes)?;
//! assert_eq!(&bytes, b"real bytes");
//!
//! drop(weights); // the block is freed; its memory stays in the pool's cache
//! let releaser = lowtide::releaser(&device);
//! releaser.add_pool(&pool);
//! let receipt = releaser.empty_cache();
//! assert_eq!(receipt.verdict, Verdict::Released);
//! assert_eq!(receipt.freed_bytes, Some(20 << 20));
//! println!("{receipt}"); // `receipt.detailed()` adds every step
//! # Ok(())
//! # }
//! ```
//!
//! A [`Usage`](device::Usage) is the device's report for all processes together: `total`, `free`,
//! what the driver keeps for itself (`reserved`), and the origin of the numbers (`source`).
//! `in_use()` is what processes hold.
//!
//! A size or an offset is a [`Bytes`](device::Bytes): `Bytes(4096)`, `Bytes::mib(20)`,
//! `"20 MiB".parse()?`. Sizes are compared, added and printed as they are; `size.0` is the number of
//! bytes. [`Pool`](pool::Pool), [`Releaser`] and [`Idling`](release::Idling) are
//! cheap to clone and can be used from any thread; a [`Block`](pool::Block) can be sent to one.
//!
//! ```
//! # use lowtide::prelude::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let size = Bytes::mib(20) + Bytes(4096);
//! assert!(size > "20 MiB".parse()? && size.0 == (20 << 20) + 4096);
//! # fn clones<T: Clone + Send + Sync>() {}
//! # fn sends<T: Send + Sync>() {}
//! # (clones::<Pool>(), clones::<Releaser>(), clones::<Idling>(), sends::<Block>(), sends::<Pauses>());
//! # Ok(())
//! # }
//! ```
//!
//! In a debug build of your program, `host` copies and digests pages in unoptimised code, at a few
//! MiB/s. Two lines in your `Cargo.toml` prevent it:
//!
//! ```toml
//! [profile.dev.package.lowtide-device]
//! opt-level = 2
//! ```
//!
//! # Five practices
//!
//! The examples run on `host`, so that they run everywhere; `device` is the one above. With [`best_device`], or
//! `Device::open("cuda:0".parse()?)`, the same lines work on a GPU. [`best_device`] returns `host` on
//! a machine without a GPU; `device.id()` says which one it is.
//!
//! ## Models one after another
//!
//! Each model is torn down by its `Drop`, its cached memory returns to the driver, and a receipt
//! stands between each two. The peak is the largest model, never the sum. `load_needing` refuses a model
//! above the budget before it is loaded, with
//! [`StageError::WouldNotFit`](release::StageError::WouldNotFit); `load` takes no size and asks nothing.
//! What a stage returns is used like the model itself.
//!
//! ```
//! use lowtide::prelude::*;
//!
//! struct Reranker {
//!     _weights: Block, // any type: its `Drop` frees the memory
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(lowtide::device::HostOptions { budget: Some(Bytes::mib(64)), ..Default::default() })?;
//! let pool = Pool::new(&device)?;
//! let releaser = lowtide::releaser(&device);
//! releaser.add_pool(&pool);
//!
//! let stages = Stages::new(&releaser).budget(Bytes::mib(32));
//! for size in [Bytes::mib(16), Bytes::mib(24)] {
//!     let load = || Ok::<_, lowtide::pool::Error>(Reranker { _weights: pool.block(size)? });
//!     let reranker = stages.load_needing("reranker", size, load)?;
//!     // … use it …
//!     println!("{}", reranker.finish().line());
//! }
//! let report = stages.report();
//! assert_eq!(report.peak_bytes, report.largest_bytes);
//! assert!(report.peak_bytes < report.sum_bytes);
//! println!("{report}");
//! # Ok(())
//! # }
//! ```
//!
//! ## Between tasks
//!
//! The buffers of one task return to the driver before the next task begins: first the collectors
//! run, then the caches are trimmed.
//!
//! ```
//! use lowtide::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(lowtide::device::HostOptions { budget: Some(Bytes::mib(64)), ..Default::default() })?;
//! let pool = Pool::new(&device)?;
//! let releaser = lowtide::releaser(&device);
//! releaser.add_pool(&pool);
//!
//! let stages = Stages::new(&releaser);
//! for task in ["video", "image"] {
//!     let frames = pool.block(Bytes::mib(30))?;
//!     frames.fill(7)?;
//!     drop(frames); // the task is done; its memory is still taken from the device
//!     assert_eq!(device.usage()?.in_use(), Bytes::mib(30));
//!     assert_eq!(stages.between(task).verdict, Verdict::Released);
//!     assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! ## A shutdown that frees everything
//!
//! A registry knows the owners of memory and every reference that was lent. A shutdown drops wrappers
//! before the objects they wrap, while you keep your engine. If a reference keeps memory alive, the
//! receipt names it.
//!
//! ```
//! use lowtide::prelude::*;
//!
//! struct Engine {
//!     model: Owned<Block>, // any type; the value is reached through `lend` or `with`
//! }
//!
//! struct Pooling {
//!     model: Lent<Block>, // a wrapper that knows of no shutdown
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(lowtide::device::HostOptions { budget: Some(Bytes::mib(64)), ..Default::default() })?;
//! let pool = Pool::new(&device)?;
//! let releaser = lowtide::releaser(&device);
//! releaser.add_pool(&pool);
//!
//! let weights = pool.block(Bytes::mib(20))?;
//! weights.write(Bytes::ZERO, b"weights")?;
//! let engine = Engine { model: releaser.owners().own("engine.model", weights) };
//!
//! let model = engine.model.lend("engine.pooling.model"); // `None` once it was shut down
//! let pooling = Pooling { model: model.ok_or("the engine was shut down")? };
//! let mut bytes = [0; 7];
//! pooling.model.read(Bytes::ZERO, &mut bytes)?; // a `Lent<Block>` is used like a `&Block`
//! assert_eq!(&bytes, b"weights");
//!
//! let receipt = releaser.shutdown();
//! assert_eq!(receipt.verdict, Verdict::Pinned);
//! let holder = receipt.holders[0].to_string();
//! println!("{holder}"); // … since src/main.rs:24, 1 reference
//! assert!(holder.starts_with("engine.pooling.model holds engine.model since "));
//!
//! drop(pooling);
//! assert_eq!(releaser.shutdown().verdict, Verdict::Released);
//! assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
//! assert!(engine.model.lend("engine.retry").is_none()); // `engine` is still a variable of ours
//! # Ok(())
//! # }
//! ```
//!
//! ## Free on idle
//!
//! The program says when, such as `"5m"` or `"off"`, or has
//! [`IdleOptions::from_env`](release::IdleOptions::from_env) read `LOWTIDE_FREE_ON_IDLE`, which is off
//! unless it is set. Each task holds a guard. When no guard has existed for five minutes, an idle
//! release runs until its target is met. The next task finds everything as it was, except the content of
//! `Discard` tags. A task that arrives during the release stops it at the next safe point.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use lowtide::prelude::*;
//! use lowtide::release::{ManualClock, Tick};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(lowtide::device::HostOptions { budget: Some(Bytes::mib(64)), ..Default::default() })?;
//! let pool = Pool::new(&device)?;
//! let clock = Arc::new(ManualClock::default()); // a program uses `lowtide::SystemClock`
//! let releaser = Releaser::new(&device, clock.clone());
//! releaser.add_pool(&pool);
//! let idling = Idling::new(&releaser, &Idle::new("5m".parse()?, clock.clone()));
//!
//! let task = idling.work()?;
//! let weights = pool.block(Bytes::mib(20))?;
//! weights.write(Bytes::ZERO, b"weights")?;
//! drop(task);
//! assert!(matches!(idling.tick(), Tick::No(_))); // too early
//! clock.advance(Duration::from_secs(300));
//! let Tick::Released(receipt) = idling.tick() else { panic!("five minutes have passed") };
//! assert_eq!(receipt.verdict, Verdict::Released);
//! assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
//!
//! let task = idling.work()?; // awake again: the same bytes at the same addresses
//! let mut bytes = [0; 7];
//! weights.read(Bytes::ZERO, &mut bytes)?;
//! assert_eq!(&bytes, b"weights");
//! # drop(task);
//! # Ok(())
//! # }
//! ```
//!
//! A program uses real time: [`SystemClock`], and an [`IdleThread`] that calls `tick`.
//! [`Idling`](release::Idling) is `Clone`: the thread has one, your tasks have another. The callback
//! gets every receipt, so look at its verdict: a release that work stopped has one, too. Dropping the
//! thread's handle ends the watch.
//!
//! ```
//! use std::sync::{Arc, mpsc};
//! use lowtide::{SystemClock, prelude::*};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(lowtide::device::HostOptions { budget: Some(Bytes::mib(64)), ..Default::default() })?;
//! let pool = Pool::new(&device)?;
//! let releaser = lowtide::releaser(&device);
//! releaser.add_pool(&pool);
//!
//! let idle = Idle::new("50ms".parse()?, Arc::new(SystemClock::default())); // "5m" in a program
//! let idling = Idling::new(&releaser, &idle);
//! let (send, receipts) = mpsc::channel();
//! let watch = IdleThread::start(idling.clone())?.on_release(move |receipt| {
//!     let _ = send.send(receipt.clone()); // on the watching thread: keep it short
//! });
//!
//! let task = idling.work()?;
//! let _weights = pool.block(Bytes::mib(20))?;
//! drop(task); // the quiet time begins
//! let receipt = receipts.iter().find(|receipt| receipt.verdict == Verdict::Released);
//! println!("{}", receipt.ok_or("the watch has ended")?.line());
//! assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
//! drop(watch);
//! # Ok(())
//! # }
//! ```
//!
//! ## Pause, update, resume
//!
//! Work stops at the gate, the weights change, and cached memory returns to the driver before the gate
//! opens. The trend of reserved memory over many updates is watched.
//!
//! `pause` waits for the workers, up to the time that it is given. If one works on past it, the error says
//! so and the gate is open as before. While it is closed, `enter()` waits.
//!
//! A worker holds a pass of the gate and calls `checkpoint()` wherever it can stop. What it does then is
//! the [`Step`](release::Step) that the call returns:
//!
//! | step | what the worker does |
//! |---|---|
//! | `Go` | It continues. After a pause with `Mode::InPlace` the call waits until the gate opens, and returns this. |
//! | `Abort` | It ends its work and drops its pass: the pause is `Mode::Abort`. The call does not wait. |
//! | `Retract` | It puts its work back into the queue and drops its pass: the pause is `Mode::Retract`. The call does not wait. |
//!
//! ```
//! use std::time::Duration;
//! use lowtide::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(lowtide::device::HostOptions { budget: Some(Bytes::mib(64)), ..Default::default() })?;
//! let pool = Pool::new(&device)?;
//! let releaser = lowtide::releaser(&device);
//! releaser.add_pool(&pool);
//!
//! let pauses = Pauses::new(&releaser);
//! for update in 0..10 {
//!     let mut request = releaser.gate().enter(); // in a worker
//!     assert_eq!(request.checkpoint(), Step::Go);
//!     drop(request);
//!
//!     let paused = pauses.pause(Mode::InPlace, Duration::from_secs(1))?;
//!     drop(pool.block(Bytes::mib(10 + update))?); // new weights come in
//!     let resumed = paused.resume(Resume::default()); // trims, then opens the gate
//!     println!("{}", resumed.receipt.ok_or("the cache was not emptied")?.line());
//! }
//! assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
//! assert_eq!(pauses.trend().to_string(), "steady over 10 updates");
//! # Ok(())
//! # }
//! ```
//!
//! `resume` returns a [`Resumed`](release::Resumed). Its `receipt` is what the trim freed, and `None`
//! only after `Resume { empty_cache: false, ..Resume::default() }`, which trims nothing. Its `warning` is there if reserved
//! memory grows with every update. A [`Paused`](release::Paused) that is dropped, after an error for
//! example, trims and opens the gate like `resume(Resume::default())`.
//!
//! # Receipts
//!
//! Every release returns a [`Receipt`](release::Receipt). It is plain data: keep it, compare it, store it
//! as JSON ([serde](https://serde.rs); the schema is `docs/schemas/receipt.json`).
//!
//! | of a receipt | what it is |
//! |---|---|
//! | `verdict` | the result in one word. `Verdict::Released`: the device's number confirms the claim. `Partial`: less was freed. `NoEffect`: nothing. `Pinned`: references keep it alive. [The others](release::Verdict) tell why nothing was done or proved |
//! | `freed_bytes` | an `Option<i64>`: by how much the device's number fell. Negative if more is in use than before; `None` if the device cannot be asked |
//! | `before`, `after` | the numbers before and after, each a [`Reading`](release::Reading) |
//! | `holders` | references that keep memory alive |
//! | `advice` | what to do, as texts |
//! | `line()`, `to_string()`, `detailed()` | one line for a log; the same with what is left and what to do; the same with every rung |
//!
//! ```
//! use lowtide::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(lowtide::device::HostOptions { budget: Some(Bytes::mib(64)), ..Default::default() })?;
//! let releaser = lowtide::releaser(&device);
//! let receipts: Vec<Receipt> = vec![releaser.empty_cache(), releaser.shutdown()];
//! let stored = serde_json::to_string_pretty(&receipts)?;
//! assert_eq!(serde_json::from_str::<Vec<Receipt>>(&stored)?, receipts);
//! # Ok(())
//! # }
//! ```
//!
//! # Parts that sleep on their own
//!
//! A tag is a group of blocks that sleeps and wakes without the rest of its pool. Its
//! [`SleepPolicy`](pool::SleepPolicy) says what becomes of the content: `Offload` saves it and the wake
//! brings it back, `Discard` loses it, `Keep` leaves it on the device. [`Pool::block`](pool::Pool::block)
//! allocates under the tag `default`, which is saved.
//!
//! ```
//! use lowtide::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(lowtide::device::HostOptions { budget: Some(Bytes::mib(64)), ..Default::default() })?;
//! let pool = Pool::new(&device)?;
//! let weights = pool.tag("weights", SleepPolicy::Offload)?;
//! let cache = pool.tag("cache", SleepPolicy::Discard)?;
//! let layer = pool.block_tagged(Bytes::mib(20), weights)?;
//! layer.write(Bytes::ZERO, b"weights")?;
//! let keys = pool.block_tagged(Bytes::mib(10), cache)?;
//! keys.fill(1)?;
//!
//! println!("{}", pool.sleep(Scope::Tags(&[cache]))?); // 10.0 MiB freed, 1 tag fell asleep: …
//! assert_eq!(device.usage()?.in_use(), Bytes::mib(20));
//! pool.sleep(Scope::Whole)?;
//! assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
//!
//! let mut bytes = [0; 7];
//! assert!(layer.read(Bytes::ZERO, &mut bytes).is_err()); // asleep: the error names the tag
//! pool.wake(Scope::Tags(&[weights]))?;
//! layer.read(Bytes::ZERO, &mut bytes)?;
//! assert_eq!(&bytes, b"weights");
//! pool.wake(Scope::Whole)?;
//! keys.fill(0)?; // at the same address, with undefined content until it is written
//! # Ok(())
//! # }
//! ```
//!
//! # Below a limit
//!
//! A release with a [`Target`](release::Target) climbs the rungs of its ladder until the device's number
//! has met the target. The ladder decides what the program loses:
//!
//! | ladder | what it may do |
//! |---|---|
//! | `Ladder::cache()` | It trims caches. Nothing that is in use goes. |
//! | `Ladder::idle()` | Blocks sleep too. The next wake brings them back. |
//! | `Ladder::gradual()` | It shuts down all registered owners first, like `Releaser::shutdown`; then blocks sleep. |
//!
//! ```
//! use lowtide::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(lowtide::device::HostOptions { budget: Some(Bytes::mib(64)), ..Default::default() })?;
//! let pool = Pool::new(&device)?;
//! let releaser = lowtide::releaser(&device);
//! releaser.add_pool(&pool);
//! let model = releaser.owners().own("model", pool.block(Bytes::mib(20))?);
//! drop(pool.block(Bytes::mib(30))?); // cached
//!
//! let below = |most, ladder| releaser.release(Request::new("limit", ladder).to(Target::Under(most)));
//! assert_eq!(below(Bytes::mib(24), Ladder::idle()).verdict, Verdict::Released);
//! assert_eq!(device.usage()?.in_use(), Bytes::mib(20)); // the cache was enough
//! assert_eq!(below(Bytes::mib(4), Ladder::idle()).verdict, Verdict::Released);
//! assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
//! pool.wake(Scope::Whole)?; // the model slept
//! assert!(model.lend("main").is_some());
//!
//! assert_eq!(below(Bytes::mib(4), Ladder::gradual()).verdict, Verdict::Released);
//! assert!(model.lend("main").is_none()); // the model is gone
//! # Ok(())
//! # }
//! ```
//!
//! # More
//!
//! - [`AheadThread`]: backups while the program runs, so that a sleep finds little to copy.
//! - [`Releaser::ledger`](release::Releaser::ledger): a breakdown of all device memory in use; `None`
//!   where the device cannot be asked.
//! - [`Ladder`](release::Ladder), [`Rung`](release::Rung): a release of your own.
//! - [`Owners::plan`](release::Owners::plan): what a shutdown would do.

mod ahead;
mod background;
mod clock;
mod idle;

use std::sync::Arc;

pub use ahead::{AheadShare, AheadThread, BadShare};
pub use clock::SystemClock;
pub use idle::IdleThread;
pub use lowtide_types::printable;

use device::{Device, DeviceId};
use release::Releaser;

/// Devices: memory that lowtide manages, with the driver's or the kernel's own numbers.
pub mod device {
    pub use lowtide_device::{
        Address, Device, DeviceInfo, Error, HostMemory, HostOptions, Result, Stream, known_devices,
    };
    pub use lowtide_types::{Bytes, DeviceId, Source, Usage};
}

/// Allocation: blocks of device memory that can sleep and wake under the same addresses.
pub mod pool {
    pub use lowtide_pool::*;
}

/// Releases: ways to free memory, and receipts that say what came of it.
pub mod release {
    pub use lowtide_release::*;
}

/// The names that most programs need: `use lowtide::prelude::*;`.
pub mod prelude {
    pub use lowtide_device::Device;
    pub use lowtide_pool::{Block, Pool, Scope, SleepPolicy};
    pub use lowtide_release::{
        Gate, Idle, Idling, Ladder, Lent, Mode, Owned, Pauses, Receipt, Releaser, Request, Resume,
        Stages, Step, Target, Verdict,
    };
    pub use lowtide_types::{Bytes, DeviceId};

    pub use crate::{IdleThread, best_device, releaser};
}

/// Opens the first GPU of this machine, or `host` if there is none.
///
/// # Errors
/// If that GPU cannot be used.
pub fn best_device() -> device::Result<Device> {
    let gpu = device::known_devices().into_iter().find(|id| *id != DeviceId::Host);
    Device::open(gpu.unwrap_or(DeviceId::Host))
}

/// Creates a releaser for a device, on the machine's clock, with the floor that `lowtide doctor`
/// measured.
pub fn releaser(device: &Device) -> Releaser {
    let releaser = Releaser::new(device, Arc::new(SystemClock::default()));
    if let Some(floor) = lowtide_release::floor::of(device.info()) {
        releaser.set_floor(floor);
    }
    releaser
}
