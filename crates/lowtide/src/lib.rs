//! lowtide gives accelerator memory back, and proves it.
//!
//! A [`Device`] is memory we manage: a GPU, or pages of this machine. A [`Pool`] hands out blocks of
//! it, which can leave the device and come back under the same addresses. A [`Releaser`] gives memory
//! back and writes a [`Receipt`]: before and after by the driver's own numbers, and a [`Verdict`].
//! Nothing counts as freed because a call returned.
//!
//! ```
//! use lowtide::{Bytes, Device, HostOptions, Policy, Pool, StreamId, Tag, Verdict};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
//! let pool = Pool::new(&device)?;
//! let releaser = lowtide::releaser(&device);
//! releaser.add_pool(&pool);
//!
//! drop(pool.block(Bytes::mib(20))?); // freed, and still cached
//! let receipt = releaser.empty_cache();
//! assert_eq!(receipt.verdict, Verdict::Released);
//! assert_eq!(receipt.freed_bytes, Some(20 << 20)); // says the kernel
//! println!("{receipt}");
//! # Ok(())
//! # }
//! ```
//!
//! # Five practices
//!
//! The examples below run on `host`, so that they run everywhere; with
//! [`Device::open`]`("cuda:0".parse()?)`, or [`best_device`], the same lines work on a GPU.
//!
//! ## Stages that hand the device on
//!
//! Models one after another in one process: each is torn down by its `Drop`, what it cached goes back
//! to the driver, and a receipt stands between each two. The peak is the largest, never the sum.
//!
//! ```
//! use lowtide::{Block, Bytes, Device, HostOptions, Policy, Pool, Stages, StreamId, Tag};
//!
//! struct Reranker { _weights: Block } // any type: its `Drop` is the contract
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
//! # let pool = Pool::new(&device)?;
//! let releaser = lowtide::releaser(&device);
//! releaser.add_pool(&pool);
//! let stages = Stages::new(&releaser).budget(Bytes::mib(32));
//! for size in [Bytes::mib(16), Bytes::mib(24)] {
//!     let load = || Ok(Reranker { _weights: pool.block(size)? });
//!     let reranker = stages.load_needing::<_, lowtide::PoolError>("reranker", size, load)?;
//!     // … use it …
//!     println!("{}", reranker.finish().line());
//! }
//! let report = stages.report();
//! assert_eq!(report.peak_bytes, report.largest_bytes);
//! assert!(report.peak_bytes < report.sum_bytes);
//! # Ok(())
//! # }
//! ```
//!
//! ## Between tasks
//!
//! Collect first, then trim: buffers of one task are with the driver before the next begins.
//!
//! ```
//! use lowtide::{Bytes, Device, HostOptions, Policy, Pool, Stages, StreamId, Tag, Verdict};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
//! # let pool = Pool::new(&device)?;
//! let releaser = lowtide::releaser(&device);
//! releaser.add_pool(&pool);
//! let stages = Stages::new(&releaser);
//! for task in ["video", "image"] {
//!     let frames = pool.block(Bytes::mib(30))?;
//!     drop(frames); // the task is done; its memory is still taken from the device
//!     assert_eq!(device.usage()?.in_use(), Bytes::mib(30));
//!     assert_eq!(stages.between(task).verdict, Verdict::Released);
//!     assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! ## A shutdown that really frees
//!
//! Who owns what is on record, and who borrows it. A shutdown drops wrappers before what they wrap,
//! while you keep your runner; and where something survives, it says who holds it.
//!
//! ```
//! use lowtide::{Block, Bytes, Device, HostOptions, Policy, Pool, StreamId, Tag, Verdict};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
//! # let pool = Pool::new(&device)?;
//! let releaser = lowtide::releaser(&device);
//! releaser.add_pool(&pool);
//! let weights: Block = pool.block(Bytes::mib(20))?;
//! let model = releaser.owners().own("runner.model", weights);
//! let pooling = model.lend("runner.pooling.model"); // a wrapper that nobody told of the shutdown
//!
//! let receipt = releaser.shutdown();
//! assert_eq!(receipt.verdict, Verdict::Pinned);
//! assert_eq!(receipt.holders[0].path, "runner.pooling.model");
//!
//! drop(pooling);
//! assert_eq!(releaser.shutdown().verdict, Verdict::Released);
//! assert_eq!(device.usage()?.in_use(), Bytes::ZERO); // and `model` is still ours
//! # Ok(())
//! # }
//! ```
//!
//! ## Free on idle
//!
//! Off unless switched on (`LOWTIDE_FREE_ON_IDLE=5m`). Work holds a guard; when none is left for long
//! enough, the eight steps run until the target is met. The next task finds everything as it was.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use lowtide::{Bytes, Device, HostOptions, Idle, Idling, ManualClock, Policy, Pool, Releaser};
//! use lowtide::{StreamId, Tag, Tick, Verdict};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
//! # let pool = Pool::new(&device)?;
//! let clock = Arc::new(ManualClock::default()); // `SystemClock` outside of tests
//! let releaser = Releaser::new(&device, clock.clone());
//! releaser.add_pool(&pool);
//! let idling = Idling::new(&releaser, &Idle::new("5m".parse()?, clock.clone()));
//!
//! let task = idling.work()?;
//! let weights = pool.block(Bytes::mib(20))?;
//! drop(task);
//! assert!(matches!(idling.tick(), Tick::No(_))); // too early
//! clock.advance(Duration::from_secs(300));
//! let Tick::Released(receipt) = idling.tick() else { panic!("it was time") };
//! assert_eq!(receipt.verdict, Verdict::Released);
//! assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
//!
//! let task = idling.work()?; // awake again, every page checked, at the same addresses
//! # assert_eq!(device.usage()?.in_use(), Bytes::mib(20));
//! # drop((task, weights));
//! # Ok(())
//! # }
//! ```
//!
//! ## Pause, update, resume
//!
//! Work stops at the gate; weights change; what is cached goes back before the gate opens; and the
//! slope of reserved memory over many updates is watched.
//!
//! ```
//! use std::time::Duration;
//! use lowtide::{Bytes, Device, HostOptions, Mode, Pauses, Policy, Pool, Resume, Step, StreamId, Tag};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
//! # let pool = Pool::new(&device)?;
//! let releaser = lowtide::releaser(&device);
//! releaser.add_pool(&pool);
//! let pauses = Pauses::new(&releaser);
//! for update in 0..10 {
//!     let mut request = releaser.gate().enter(); // what a worker does
//!     assert_eq!(request.checkpoint(), Step::Go);
//!     drop(request);
//!
//!     let paused = pauses.pause(Mode::InPlace, Duration::from_secs(1))?;
//!     drop(pool.block(Bytes::mib(10 + update))?); // new weights come in
//!     paused.resume(Resume::default()); // trims, then opens
//! }
//! assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
//! assert!(!pauses.trend().rising);
//! # Ok(())
//! # }
//! ```
//!
//! # What else there is
//!
//! - [`Pool::sleep`] and [`Pool::wake`]: content leaves the device and comes back, checked.
//! - [`Releaser::ledger`]: where every byte in use is, adding up to the driver's number.
//! - [`Ladder`], [`Rung`]: a release of your own. [`Releaser::add_hook`]: what a host language adds.
//! - [`Owners::plan`], [`Owners::audit`]: what a shutdown would do; whether a new path has appeared.

mod clock;
mod idle;

use std::sync::Arc;

pub use clock::SystemClock;
pub use idle::IdleThread;
pub use lowtide_device::{
    Address, Bytes, Device, DeviceId, DeviceInfo, Error as DeviceError, HostOptions, Source,
    Stream, Usage, known_devices,
};
pub use lowtide_pool::{
    Block, Error as PoolError, Phase, Policy, Pool, Scope, SleepPolicy, SleepReport, StreamFence,
    StreamId, Tag, WakeReport,
};
pub use lowtide_release::*;

/// The best device of this machine: the first GPU, or `host` where there is none.
///
/// # Errors
/// Where that GPU cannot be used.
pub fn best_device() -> Result<Device, DeviceError> {
    let gpu = known_devices().into_iter().find(|id| *id != DeviceId::Host);
    Device::open(gpu.unwrap_or(DeviceId::Host))
}

/// A releaser for a device, on the machine's clock, with the floor that `lowtide doctor` measured.
pub fn releaser(device: &Device) -> Releaser {
    let releaser = Releaser::new(device, Arc::new(SystemClock::default()));
    if let Some(floor) = floor::of(device.info()) {
        releaser.set_floor(floor);
    }
    releaser
}
