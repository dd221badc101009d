//! Pieces that proofs are made of: what a host language would plug in, with real memory of the device
//! behind it, and onlookers that note what happened.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lowtide_device::{Bytes, Chunk, Device, DeviceId, Usage};
use lowtide_release::{
    Allocator, AllocatorCounts, Clock, Failure, Gate, Gauge, Hook, LedgerKind, LedgerLine, Restore,
    Setting, Step, Touch,
};

use super::ground::Ground;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What happened, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn note(&self, what: impl Into<String>) {
        lock(&self.0).push(what.into());
    }

    /// All of it so far; what comes then begins anew.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.0))
    }

    /// Something that is noted when it goes.
    pub(crate) fn on_drop(&self, what: &'static str) -> Noted {
        Noted { what, log: self.clone() }
    }
}

pub(crate) struct Noted {
    what: &'static str,
    log: Log,
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.log.note(self.what);
    }
}

/// Memory that something of a host language holds until it is asked: a session, a cache, a
/// communicator.
#[derive(Clone)]
pub(crate) struct Store {
    name: &'static str,
    held: Arc<Mutex<Vec<Chunk>>>,
}

impl Store {
    pub(crate) fn new(ground: &Ground, name: &'static str, mib: u64) -> Store {
        Store { name, held: Arc::new(Mutex::new(vec![ground.chunk(mib)])) }
    }

    /// Another piece of memory in the same store.
    pub(crate) fn and(self, ground: &Ground, mib: u64) -> Store {
        lock(&self.held).push(ground.chunk(mib));
        self
    }

    /// What a host language plugs in: notes that it was asked and lets one piece go.
    pub(crate) fn hook(&self, log: &Log) -> Hook {
        let (store, log) = (self.clone(), log.clone());
        Hook::new(self.name, move |_| {
            log.note(store.name);
            Ok(store.let_go())
        })
    }

    /// Lets one piece of its memory go, if it has any.
    pub(crate) fn let_go(&self) -> Vec<Touch> {
        let chunk = lock(&self.held).pop();
        chunk.map(|chunk| Touch::sized(self.name, chunk.size())).into_iter().collect()
    }
}

/// A framework's caching allocator: what is freed stays with it until it is trimmed, and no other
/// can use it.
pub(crate) struct Framework {
    name: &'static str,
    device: Device,
    shelf: Arc<Mutex<Shelf>>,
    on_trim: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Shelf {
    live: Bytes,
    cached: Vec<Chunk>,
    /// What its fraction of the device lets it keep when it is trimmed.
    keeps: Bytes,
}

impl Framework {
    pub(crate) fn new(ground: &Ground, name: &'static str) -> Arc<Framework> {
        Framework::noting(ground, name, || ())
    }

    /// One that calls this whenever it is trimmed.
    pub(crate) fn noting(
        ground: &Ground,
        name: &'static str,
        on_trim: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Framework> {
        let (device, on_trim) = (ground.device.clone(), Box::new(on_trim));
        Arc::new(Framework { name, device, shelf: Arc::default(), on_trim })
    }

    /// Memory that goes back to the framework, not to the device.
    pub(crate) fn tensor(&self, mib: u64) -> Tensor {
        let chunk = self.device.create(Bytes::mib(mib)).unwrap();
        lock(&self.shelf).live += chunk.size();
        Tensor { chunk: Some(chunk), shelf: Arc::clone(&self.shelf) }
    }

    /// How much it may keep when it is trimmed.
    pub(crate) fn keep(&self, mib: u64) {
        lock(&self.shelf).keeps = Bytes::mib(mib);
    }

    pub(crate) fn keeps(&self) -> Bytes {
        lock(&self.shelf).keeps
    }
}

pub(crate) struct Tensor {
    chunk: Option<Chunk>,
    shelf: Arc<Mutex<Shelf>>,
}

impl Drop for Tensor {
    fn drop(&mut self) {
        let mut shelf = lock(&self.shelf);
        shelf.live = shelf.live - self.chunk.as_ref().map_or(Bytes::ZERO, Chunk::size);
        shelf.cached.extend(self.chunk.take());
    }
}

fn size(chunks: &[Chunk]) -> Bytes {
    chunks.iter().map(Chunk::size).sum()
}

impl Allocator for Framework {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn counts(&self) -> AllocatorCounts {
        let shelf = lock(&self.shelf);
        AllocatorCounts { allocated: shelf.live, reserved: shelf.live + size(&shelf.cached) }
    }

    fn lines(&self) -> Vec<LedgerLine> {
        let shelf = lock(&self.shelf);
        let line = |kind, bytes| LedgerLine { kind, name: self.name.to_owned(), bytes };
        vec![line(LedgerKind::Live, shelf.live), line(LedgerKind::Cached, size(&shelf.cached))]
    }

    fn trim(&self) -> Result<Bytes, Failure> {
        (self.on_trim)();
        let mut shelf = lock(&self.shelf);
        let before = size(&shelf.cached);
        while size(&shelf.cached) > shelf.keeps {
            shelf.cached.pop();
        }
        Ok(before - size(&shelf.cached))
    }
}

/// Its fraction: lowered, it keeps nothing.
impl Setting for Framework {
    fn name(&self) -> String {
        format!("{}'s fraction", self.name)
    }

    fn lower(&self) -> Result<Restore, Failure> {
        let before = std::mem::take(&mut lock(&self.shelf).keeps);
        let shelf = Arc::clone(&self.shelf);
        Ok(Box::new(move || {
            lock(&shelf).keeps = before;
            Ok(())
        }))
    }
}

/// The device, with somebody who looks on when it is waited for.
pub(crate) struct Watched {
    device: Device,
    on_synchronize: Box<dyn Fn() + Send + Sync>,
}

impl Watched {
    pub(crate) fn new(
        ground: &Ground,
        on_synchronize: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Watched> {
        let device = ground.device.clone();
        Arc::new(Watched { device, on_synchronize: Box::new(on_synchronize) })
    }

    /// Notes each time.
    pub(crate) fn noting(ground: &Ground, log: &Log) -> Arc<Watched> {
        let log = log.clone();
        Watched::new(ground, move || log.note("synchronise"))
    }
}

impl Gauge for Watched {
    fn id(&self) -> DeviceId {
        self.device.info().id
    }

    fn usage(&self) -> lowtide_device::Result<Usage> {
        self.device.usage()
    }

    fn own(&self) -> Option<Bytes> {
        Gauge::own(&self.device)
    }

    fn synchronize(&self) -> lowtide_device::Result<()> {
        (self.on_synchronize)();
        self.device.synchronize()
    }

    fn others(&self) -> Vec<(String, Bytes)> {
        Gauge::others(&self.device)
    }
}

/// Real time, for what really hangs. The crate `lowtide` has the one for programs.
pub(crate) struct RealClock {
    origin: Instant,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl RealClock {
    pub(crate) fn new(ground: &Ground) -> Arc<RealClock> {
        Arc::new(RealClock { origin: Instant::now(), threads: Arc::clone(&ground.threads) })
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn pause(&self, duration: Duration) {
        thread::sleep(duration);
    }

    fn within(&self, limit: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        let (done, told) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            work();
            drop(done);
        });
        lock(&self.threads).push(thread);
        told.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Disconnected)
    }
}

/// A request at work on a thread of its own: it passes the gate and asks at checkpoints whether to
/// stop.
pub(crate) struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Step>>,
}

impl Worker {
    /// Begins; returns when it is at work.
    pub(crate) fn start(gate: &Gate) -> Worker {
        let (gate, stop) = (gate.clone(), Arc::new(AtomicBool::new(false)));
        let (started, told) = mpsc::channel();
        let ends = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut pass = gate.enter();
            started.send(()).unwrap();
            loop {
                let step = pass.checkpoint();
                if step != Step::Go || ends.load(SeqCst) {
                    return step;
                }
                thread::yield_now();
            }
        });
        told.recv().unwrap();
        Worker { stop, thread: Some(thread) }
    }

    /// Ends it, if it has not; the last that it was told.
    pub(crate) fn end(mut self) -> Step {
        self.stop.store(true, SeqCst);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What this crate logs meanwhile, line by line, from this level up.
pub(crate) fn logged<R>(level: tracing::Level, work: impl FnOnce() -> R) -> (R, Vec<String>) {
    #[derive(Clone, Default)]
    struct Text(Arc<Mutex<Vec<u8>>>);
    impl io::Write for Text {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let text = Text::default();
    let writer = text.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .without_time()
        .with_ansi(false)
        .with_writer(move || writer.clone());
    let result = tracing::subscriber::with_default(subscriber.finish(), work);
    let bytes = std::mem::take(&mut *lock(&text.0));
    let lines = String::from_utf8(bytes).unwrap();
    let ours = lines.lines().filter(|line| line.contains(" lowtide_release::"));
    (result, ours.map(|line| line.trim().to_owned()).collect())
}
