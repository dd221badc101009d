//! lowtide frees GPU memory in running programs and verifies the result with the driver's own
//! numbers.
//!
//! | module | what it has |
//! |---|---|
//! | [`device`] | [`device::Device`]: a GPU (`cuda:N`), or pages of this machine (`host`) |
//! | [`pool`] | [`Pool`](pool::Pool): an allocator whose blocks can sleep and wake |
//! | [`release`] | [`release::Releaser`]: frees memory and writes a [`Receipt`](release::Receipt) |
//! | [`prelude`] | every type that this page names, except the errors of devices and pools |
//!
//! A receipt has the device's numbers before and after, what is left, and a
//! [`Verdict`](release::Verdict). Nothing counts as freed because a call returned.
//!
//! ```
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
//! The memory of a freed block stays *cached* in its pool, until a *trim* returns it to the driver. A pool
//! that finds no room trims the other pools of the process first.
//!
//! # Sizes and numbers
//!
//! A size or an offset is a [`Bytes`](device::Bytes): `Bytes(4096)`, `Bytes::mib(20)`, `"20 MiB".parse()?`
//! (a number without a unit is one of bytes). Sizes are compared, added, summed up and printed as they are;
//! `large - small` panics if it is the other way round, and `saturating_sub` is zero then. `size.0` is the
//! number of bytes, a `u64`. What can be negative is an `i64`, and [`signed`](device::signed)`(bytes)` is
//! its text with a unit. A device has memory in pages of 2 MiB, so that a block of 1 MiB may take 2.
//!
//! `device.usage()?` is a [`Usage`](device::Usage), for all processes together: `total`, `free`, what the
//! driver keeps for itself (`reserved`), and the origin of the numbers (`source`). `in_use()` is what processes
//! hold. On a GPU that includes about 500 MiB for each context, so that it is never zero: compare two
//! readings of your process there, and allow its context 8 MiB to grow.
//!
//! ```
//! # use lowtide::prelude::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(lowtide::device::HostOptions { budget: Some(Bytes::mib(64)), ..Default::default() })?;
//! # let pool = Pool::new(&device)?;
//! # let releaser = lowtide::releaser(&device);
//! # releaser.add_pool(&pool);
//! let size = Bytes::mib(1) + Bytes(4096);
//! assert!(size > "1 MiB".parse()? && size.0 == (1 << 20) + 4096);
//! let before = releaser.inventory().read();
//! let block = pool.block(size)?;
//! let now = releaser.inventory().read();
//! assert_eq!(now.freed_since(&before), Some(-(2 << 20))); // negative: more is in use
//! assert_eq!(now.in_use(), Some(device.usage()?.in_use())); // on `host`, which is this process's alone
//! # drop(block);
//! # Ok(())
//! # }
//! ```
//!
//! | of a [`Reading`](release::Reading) | type | what it is |
//! |---|---|---|
//! | `driver`, `free` | `Option<Bytes>` | in use by all processes; free |
//! | `own` | `Option<Bytes>` | this process's part of `driver`, if the driver reports it |
//! | `allocated`, `reserved` | `Bytes` | in live blocks; all that pools have taken from the device |
//! | `in_use()` | `Option<Bytes>` | `own`, or `driver` without it: what releases are judged by |
//! | `freed_since(&before)` | `Option<i64>` | by how much `in_use()` fell since another reading |
//!
//! `Device`, `Pool`, `Releaser`, `Stages`, `Pauses`, `Gate` and `Idling` are cheap to clone and can be used
//! from any thread; a `Block` can be sent to threads and shared by them. For your structs and signatures:
//!
//! | call | what it returns |
//! |---|---|
//! | `pool.tag(…)?`, `pool.block(…)?` | [`Tag`](pool::Tag), which is `Copy`; [`Block`](pool::Block) |
//! | `pool.sleep(…)?`, `pool.wake(…)?` | [`SleepReport`](pool::SleepReport), [`WakeReport`](pool::WakeReport): bytes and seconds, to print |
//! | `stages.load(…)`, `load_needing(…)` | `Result<Stage<'_, M>, StageError<E>>` for a model `M` and the error `E` of your function. A [`Stage`](release::Stage) borrows `stages`; its `finish()` returns the `Receipt`. One that is dropped counts, too. |
//! | `stages.report()`, `stages.trend()` | [`StagesReport`](release::StagesReport), [`Trend`](release::Trend) |
//! | `releaser.owners()`, `owners.plan()` | [`&Owners`](release::Owners), which is `Clone`; [`Plan`](release::Plan) |
//! | `"5m".parse()?`, `IdleThread::start(…)?` | [`IdleOptions`](release::IdleOptions); [`IdleThread`], or a `std::io::Error` |
//! | `idling.work()?` | [`Working`](release::Working): it is a pass of the gate, too |
//! | `releaser.gate()`, its `enter()` | [`&Gate`](release::Gate), which is `Clone`; [`Pass<'_>`](release::Pass), which borrows the gate |
//!
//! In a debug build of your program, `host` copies and checks pages in unoptimised code, at a few
//! MiB/s. With two lines in your `Cargo.toml` this code is optimised:
//!
//! ```toml
//! [profile.dev.package.lowtide-device]
//! opt-level = 2
//! ```
//!
//! # Five practices
//!
//! The examples run on `host`, so that they run everywhere; `device` is the one above. With [`best_device`], or
//! `Device::open("cuda:0".parse()?)`, the same lines work on a GPU, except for those that expect
//! `device.usage()` to be a certain number. [`best_device`] returns `host` on a machine without a GPU;
//! `device.id()` says which one it is.
//!
//! ## Models one after another
//!
//! Each model is torn down by its `Drop`, its cached memory returns to the driver, and a receipt is
//! written before the next one is loaded. So the peak is what was in use before and the largest model, never the sum.
//! `load_needing` refuses a model before it is loaded, with
//! [`StageError::WouldNotFit`](release::StageError::WouldNotFit), if its size and what is in use exceed the
//! budget, or if less is free. Nothing checks the budget later, and `load`, which takes no size, not at all;
//! the printed report says if the peak was above it. What a stage returns is used like the model itself.
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
//! assert_eq!(report.peak_bytes, report.largest_bytes); // the device was empty
//! assert!(report.peak_bytes < report.sum_bytes);
//! println!("{report}"); // a table
//! # drop(stages.load("large", || pool.block(Bytes::mib(40)))?);
//! # assert!(stages.report().to_string().contains("the peak is 8.0 MiB above the budget of 32.0 MiB"));
//! # Ok(())
//! # }
//! ```
//!
//! | of `stages.report()` | type | what it is |
//! |---|---|---|
//! | `peak_bytes` | `Bytes` | the most in use, with what was in use before |
//! | `largest_bytes`, `sum_bytes` | `Bytes` | the largest stage alone; all stages added up |
//! | `budget_bytes` | `Option<Bytes>` | the budget |
//! | `cleaning_s`, `cleaning_share` | `f64` | time spent on freeing; its share, 0 to 1 |
//! | `stages` | `Vec<StageReport>` | each with `name: String`, `own_peak_bytes: Bytes` (above what was in use before it), `peak_bytes: Bytes` (in all), `teardown_s: f64` and `receipt: Receipt` |
//!
//! ## Between tasks
//!
//! The buffers of one task return to the driver before the next task begins: first the collectors run
//! (hooks for garbage of a host language such as Python; a Rust program has none), then the caches are
//! trimmed. The number after the first call is the level of the later ones: they are `released` only if no
//! more is in use than then. So call `between` once before the first task, or what that one leaves is part
//! of the level. `stages.trend()` tells how memory grows from task to task: `rising: bool`, which takes
//! eight tasks at the least, and `per_update_bytes: i64` for one task. Keep the receipts; `stages.report()`
//! has only their time and peak.
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
//! let kept = pool.block(Bytes::mib(2))?; // a task that keeps memory
//! assert_eq!(stages.between("audio").verdict, Verdict::NoEffect); // `Partial` if some of it goes
//! assert!(!stages.trend().rising); // once is no trend
//! # assert!(stages.report().stages.is_empty());
//! # drop(kept);
//! # Ok(())
//! # }
//! ```
//!
//! ## A shutdown that frees everything
//!
//! A registry knows the owners of memory and every reference that was lent. A shutdown drops wrappers
//! before the objects they wrap, while you keep your engine. It knows a wrapper by its name: what is lent to
//! `engine.sampler.model` is borrowed by the owner `engine.sampler`. If a reference keeps memory alive, the
//! receipt names it.
//!
//! ```
//! use lowtide::prelude::*;
//!
//! struct Engine {
//!     model: Owned<Block>, // any type that threads can share; reached through `lend` or `with`
//!     sampler: Owned<Sampler>,
//! }
//!
//! struct Sampler {
//!     model: Lent<Block>, // a wrapper that knows of no shutdown; used like a `&Block`
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(lowtide::device::HostOptions { budget: Some(Bytes::mib(64)), ..Default::default() })?;
//! let pool = Pool::new(&device)?;
//! let releaser = lowtide::releaser(&device);
//! releaser.add_pool(&pool);
//!
//! let owners = releaser.owners();
//! let model = owners.own("engine.model", pool.block(Bytes::mib(20))?);
//! let lent = model.lend("engine.sampler.model"); // an `Option`: `None` once it was shut down
//! let sampler = Sampler { model: lent.ok_or("the engine was shut down")? };
//! let engine = Engine { model, sampler: owners.own("engine.sampler", sampler) };
//!
//! let size = engine.sampler.with(|sampler| sampler.model.size()); // a look at it, without a reference that has a name
//! assert_eq!(size, Some(Bytes::mib(20)));
//! assert!(owners.plan().to_string().starts_with("1. engine.sampler, borrows engine.model"));
//!
//! let leak = engine.model.lend("metrics.model");
//! let receipt = releaser.shutdown();
//! assert_eq!(receipt.verdict, Verdict::Pinned);
//! let holder = receipt.holders[0].to_string();
//! println!("{holder}"); // … since src/main.rs:27, 1 reference
//! assert!(holder.starts_with("metrics.model holds engine.model since "));
//! assert_eq!(releaser.shutdown().verdict, Verdict::Pinned); // as long as it is held
//!
//! drop(leak);
//! assert_eq!(releaser.shutdown().verdict, Verdict::Released);
//! assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
//! assert!(engine.model.lend("engine.retry").is_none()); // `engine` is still a variable of ours
//! # Ok(())
//! # }
//! ```
//!
//! ## Free on idle
//!
//! The quiet time is a text such as `"5m"`, or `"off"`; or
//! [`IdleOptions::from_env`](release::IdleOptions::from_env)`(|name| std::env::var(name).ok())?` reads
//! `LOWTIDE_FREE_ON_IDLE`, which is off unless it is set. Each task holds a guard. When no guard has existed
//! for five minutes, an idle release runs until its target is met: a bare context, unless
//! `Idling::new(…).to(target)` says something else. The next task finds everything as it was, except the content
//! of `Discard` tags. A task that arrives during the release stops it between two steps, or within a sleep.
//!
//! ```
//! use std::sync::{Arc, mpsc};
//! use lowtide::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(lowtide::device::HostOptions { budget: Some(Bytes::mib(64)), ..Default::default() })?;
//! # lowtide::release::IdleOptions::from_env(|name| std::env::var(name).ok())?;
//! let pool = Pool::new(&device)?;
//! let releaser = lowtide::releaser(&device);
//! releaser.add_pool(&pool);
//!
//! let idle = Idle::new("50ms".parse()?, Arc::new(SystemClock::default())); // "5m" in a program
//! let idling = Idling::new(&releaser, &idle); // `Clone`: the thread has one, your tasks have another
//! let (send, receipts) = mpsc::channel();
//! let watch = IdleThread::start(idling.clone())?.on_release(move |receipt| {
//!     let _ = send.send(receipt.clone()); // on the watching thread: keep it short
//! });
//!
//! let task = idling.work()?;
//! let weights = pool.block(Bytes::mib(20))?;
//! weights.write(Bytes::ZERO, b"weights")?;
//! drop(task); // the quiet time begins
//! let receipt = receipts.iter().find(|receipt| receipt.verdict == Verdict::Released);
//! println!("{}", receipt.ok_or("the watch has ended")?.line());
//! assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
//!
//! let task = idling.work()?; // awake again: the same bytes at the same addresses
//! let mut bytes = [0; 7];
//! weights.read(Bytes::ZERO, &mut bytes)?;
//! assert_eq!(&bytes, b"weights");
//! drop((task, watch)); // without its handle the watch ends
//! # Ok(())
//! # }
//! ```
//!
//! The callback gets every receipt, also that of a release that work stopped, which is `busy`. A releaser frees
//! the memory of its own pools and is judged by the number of the whole process: have one releaser for all
//! models of a device, which leave together. A test needs no time and no
//! thread: [`Idling`](release::Idling) has an example with a clock that is set by hand, and `tick()`.
//!
//! ## Pause, update, resume
//!
//! Work stops at the gate, the weights change, and cached memory returns to the driver before the gate
//! opens. The trend of reserved memory, which is all that pools have taken from the device, is watched:
//! `pauses.trend()` has `rising: bool` and `per_update_bytes: i64`.
//!
//! `pause` waits for the workers, up to the time that it is given. If one works on past it, the error says
//! so and the gate is open as before. While it is closed, `enter()` waits.
//!
//! A worker holds a pass of the gate and calls `checkpoint()` wherever it can stop. What it does then is
//! the [`Step`](release::Step) that the call returns:
//!
//! | step | what the worker does |
//! |---|---|
//! | `Go` | It continues. In a pause with `Mode::InPlace` the call waits until the gate opens, and returns this. |
//! | `Abort` | It ends its work and drops its pass at once: the pause is `Mode::Abort`. |
//! | `Retract` | It puts its work back into the queue and drops its pass at once: the pause is `Mode::Retract`. |
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
//! only after `Resume { empty_cache: false, ..Resume::default() }`. Its `warning` is there if reserved
//! memory grows with every update. A [`Paused`](release::Paused) that is dropped, after an error for
//! example, trims and opens the gate like `resume(Resume::default())`. It wakes nothing: if you put the pool to
//! sleep in a pause, and the gate opens before the wake, workers get the error `tag "default" is asleep`.
//!
//! ```
//! # use std::time::Duration;
//! # use lowtide::prelude::*;
//! # fn evaluate(_: &Device) -> Result<(), std::io::Error> { Ok(()) }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(lowtide::device::HostOptions { budget: Some(Bytes::mib(64)), ..Default::default() })?;
//! # let pool = Pool::new(&device)?;
//! # let releaser = lowtide::releaser(&device);
//! # releaser.add_pool(&pool);
//! # let weights = pool.block(Bytes::mib(40))?;
//! # let pauses = Pauses::new(&releaser);
//! let paused = pauses.pause(Mode::InPlace, Duration::from_secs(1))?;
//! pool.sleep(Scope::Whole)?;
//! let evaluated = evaluate(&device); // it has the memory now; its error waits for the wake
//! pool.wake(Scope::Whole)?; // where this may find no room: free some and try again, with `paused` alive
//! paused.resume(Resume::default());
//! evaluated?;
//! # pool.sleep(Scope::Whole)?;
//! # drop(pauses.pause(Mode::InPlace, Duration::from_secs(1))?);
//! # let _request = releaser.gate().enter();
//! # assert!(weights.fill(1).unwrap_err().to_string().starts_with("tag \"default\" is asleep"));
//! # Ok(())
//! # }
//! ```
//!
//! # Receipts
//!
//! Every release returns a [`Receipt`](release::Receipt). It is plain data: keep it, compare it, store it
//! as JSON ([serde](https://serde.rs); the schema is `docs/schemas/receipt.json`). Reports of stages and
//! trends can be written as JSON, too.
//!
//! | of a receipt | type | what it is |
//! |---|---|---|
//! | `name` | `String` | `shutdown`, `stage reranker`, `after video`, or that of the [`Request`](release::Request) |
//! | `verdict` | `Verdict` | the result in one word |
//! | `claim` | `Option<Claim>` | the `bytes` that it said it would free, before it started |
//! | `freed_bytes` | `Option<i64>` | by how much the device's number fell; negative if it rose, `None` if it cannot be asked |
//! | `before`, `after` | `Reading` | the numbers before and after |
//! | `target` | `Option<Target>` | the target, if it had one |
//! | `holders` | `Vec<Holder>` | references that keep memory alive: `path: String`, `holds: String`, `count: usize`, `held: Option<Bytes>` (`None` in Rust), `since: Option<String>` |
//! | `ledger` | `Option<Ledger>` | a breakdown of what is left: each of its `lines` has `kind: LedgerKind`, `name: String` and `bytes: Bytes`, and is printed with `{}`; they add up to the device's number with `unknown_bytes: i64` |
//! | `rungs` | `Vec<RungReceipt>` | the steps, each with its name (`rung`), `outcome` and `freed_bytes` |
//! | `advice`, `took_s` | `Vec<String>`, `f64` | what to do; seconds |
//! | `line()`, `to_string()`, `detailed()` | | one line for a log; with the target, what is left and what to do; with every rung too, and Before, After and Freed in MB of 1,000,000 bytes (all else is in MiB) |
//!
//! A release and a shutdown first close the gate, and wait for passes: up to 60 seconds, then the verdict is
//! `busy`. The field `when_busy` of a [`Request`](release::Request) is a
//! [`WhenBusy`](release::WhenBusy): `Wait(time)`, or `Refuse`. So call them neither in a pause of your own nor while the
//! same thread works; `empty_cache`, `between`, `pool.sleep` and `pool.wake` do not wait.
//!
//! A `match` on a verdict, or on an error, ends with `_`, because there may be more one day:
//!
//! | verdict | what it says |
//! |---|---|
//! | `Released`, "released" | The device's number confirms the claim. Also if there was nothing to free. With a target, look at `holders` too. |
//! | `Partial`, "partial" | Less was freed than claimed. |
//! | `NoEffect`, "no-effect" | Nothing was freed. Also the word for a shutdown without anything to free: it proved nothing. |
//! | `Pinned`, "pinned" | References keep the memory alive: the `holders`. |
//! | `Busy`, "busy" | Work was running or began: nothing was touched, or what had begun was taken back. |
//! | `Unverified`, "unverified" | The number is not available, or other processes moved it. |
//! | `NoDevice`, "no-device"; `Failed`, "failed" | There is no device; every rung that applied failed. |
//!
//! `empty_cache` and `resume` claim the cache; a stage claims what its model took; `between` the cache at
//! first, and then what is above the level; a release with a target, and an idle one, what is above the target.
//! `shutdown` claims all blocks of the pools, because each may be an owner's, and so does the next one if some
//! are left.
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
//! assert_eq!(receipts[0].verdict, Verdict::Released);
//! assert!(receipts[0].line().contains("released, nothing to free"));
//! # Ok(())
//! # }
//! ```
//!
//! # Parts that sleep on their own
//!
//! A tag is a group of blocks that sleeps and wakes without the rest of its pool. Its
//! [`SleepPolicy`](pool::SleepPolicy) says what becomes of the content: `Offload` saves it and the wake
//! brings it back, `Discard` loses it, `Keep` leaves it on the device. [`Pool::block`](pool::Pool::block)
//! allocates under the tag `default`, which is saved. Allocating in a tag that sleeps is an error, unless the
//! pool's [`Policy`](pool::Policy) has the tag wake:
//! `Pool::builder(&device).policy(Policy::default().wake_on_alloc(true)).build()?`.
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
//! # use lowtide::pool::Policy;
//! # let pool = Pool::builder(&device).policy(Policy::default().wake_on_alloc(true)).build()?;
//! # let (_first, _) = (pool.block(Bytes::mib(2))?, pool.sleep(Scope::Whole)?);
//! # let _second = pool.block(Bytes::mib(2))?;
//! # Ok(())
//! # }
//! ```
//!
//! # Below a limit
//!
//! A rung is one way to free memory, and a ladder has rungs in order. A release with a
//! [`Target`](release::Target) climbs them until the device's number has met the target: at most so much in
//! use (`Under`), at least so much free (`Free`), or a bare context (`Floor`). The ladder decides what the
//! program loses:
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
//! let leak = model.lend("metrics").ok_or("it was shut down")?;
//! let receipt = below(Bytes::mib(4), Ladder::gradual());
//! assert!(model.lend("main").is_none()); // the model is gone
//! assert_eq!((receipt.verdict, receipt.holders.len()), (Verdict::Released, 1));
//! assert!(leak.fill(0).is_err()); // what is held sleeps
//! # Ok(())
//! # }
//! ```
//!
//! A release whose target is met already climbs no rung, and shuts nothing down: for a shutdown in any
//! case, call `Releaser::shutdown` first. A target is a number: the release is `released` once it is met,
//! even if a reference holds what was dropped. `holders` names it, and what it holds is usable after a
//! wake. A release that misses its target and has such holders is `pinned`.
//!
//! # When a call fails
//!
//! A release has a verdict, and returns no error. Other calls do:
//!
//! | call | error | then |
//! |---|---|---|
//! | `pool.block` | `pool::Error::OutOfMemory { requested, cached, .. }`: sizes | Free memory and try again. What the call had taken already stays cached, until a trim. |
//! | `pool.block`, a block's `read`, `write`, `fill` | `pool::Error::Asleep { tag }`: its name, a `String` | Wake the tag. |
//! | `pool.sleep` | `pool::Error::BackupLimit { needed, most }`: the limit of host memory, `Policy::backup_most`; or another error | Everything is awake as before. |
//! | `pool.wake` | `pool::Error::NoRoom { needed, free, holders, .. }`: who uses the device, a `String` | Everything is still asleep. Free memory and try again. |
//! | `idling.work` | [`RestoreError::Wake`](release::RestoreError)`(pool::Error)` | The same. The task has not begun. |
//! | `load`, `load_needing` | [`StageError<E>`](release::StageError): `Load(error)` has your error `E`; `WouldNotFit { needed, available, .. }` comes from `load_needing` alone | Load less. |
//! | `pauses.pause` | [`Busy`](release::Busy)` { active, .. }` | The gate is open as before. |
//!
//! ```
//! use lowtide::{pool::Error, prelude::*};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::host(lowtide::device::HostOptions { budget: Some(Bytes::mib(64)), ..Default::default() })?;
//! let pool = Pool::new(&device)?;
//! let weights = pool.block(Bytes::mib(40))?;
//! pool.sleep(Scope::Whole)?;
//! assert!(matches!(pool.block(Bytes::mib(2)), Err(Error::Asleep { .. })));
//!
//! let guests = Pool::new(&device)?;
//! let job = guests.block(Bytes::mib(48))?;
//! if let Err(Error::NoRoom { needed, free, .. }) = pool.wake(Scope::Whole) {
//!     assert_eq!((needed, free), (Bytes::mib(40), Bytes::mib(16)));
//! }
//! # assert!(weights.fill(1).is_err());
//! drop(job); // now it is cached, and the wake trims the other pool
//! pool.wake(Scope::Whole)?;
//! # drop(weights);
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
    pub use lowtide_types::{Bytes, DeviceId, Source, Usage, signed};
}

/// Allocation: blocks of device memory that can sleep and wake under the same addresses.
pub mod pool {
    pub use lowtide_pool::*;
}

/// Releases: ways to free memory, and receipts that say what came of it.
pub mod release {
    pub use lowtide_release::*;
}

/// Every type that the front page names, except the errors of devices and pools, which are
/// [`device::Error`] and [`pool::Error`]: `use lowtide::prelude::*;`.
pub mod prelude {
    pub use lowtide_device::{Device, HostOptions};
    pub use lowtide_pool::{Block, Policy, Pool, Scope, SleepPolicy, SleepReport, Tag, WakeReport};
    pub use lowtide_release::{
        Busy, Claim, Gate, Holder, Idle, IdleOptions, Idling, Ladder, Ledger, LedgerKind,
        LedgerLine, Lent, Mode, Owned, Owners, Pass, Paused, Pauses, Plan, Reading, Receipt,
        Releaser, Request, RestoreError, Resume, Resumed, Rung, RungReceipt, Stage, StageError,
        StageReport, Stages, StagesReport, Step, Target, Trend, Verdict, WhenBusy, Working,
    };
    pub use lowtide_types::{Bytes, DeviceId, Usage};

    pub use crate::{AheadThread, IdleThread, SystemClock, best_device, releaser};
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
