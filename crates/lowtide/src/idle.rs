//! A thread that watches for idle time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use lowtide_release::{Idling, Receipt};
use lowtide_types::debug_as;

use crate::background::Background;

/// What is called after an idle release.
type OnRelease = Box<dyn FnMut(&Receipt) + Send>;

/// A thread that [watches](Idling::watch) for idle time on the machine's clock. Dropping it ends the
/// watch, after the release that may be under way.
#[must_use = "dropping it ends the watch"]
pub struct IdleThread {
    on_release: Arc<Mutex<Option<OnRelease>>>,
    _thread: Background,
}

impl IdleThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the machine cannot start a thread.
    pub fn start(idling: Idling) -> std::io::Result<IdleThread> {
        let on_release: Arc<Mutex<Option<OnRelease>>> = Arc::default();
        let callback = Arc::clone(&on_release);
        let thread = Background::start("lowtide-idle", move |pause| {
            idling.watch(pause, |receipt| tell(&callback, receipt));
        })?;
        Ok(IdleThread { on_release, _thread: thread })
    }

    /// Calls `callback` after every idle release from now on, in the place of an earlier callback. It
    /// runs on the watching thread with the gate open; the next release waits for it. If it panics,
    /// the watch goes on.
    pub fn on_release(self, callback: impl FnMut(&Receipt) + Send + 'static) -> IdleThread {
        *self.on_release.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(callback));
        self
    }
}

fn tell(callback: &Mutex<Option<OnRelease>>, receipt: &Receipt) {
    let mut callback = callback.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(callback) = &mut *callback {
        // The panic reports itself.
        let _ = catch_unwind(AssertUnwindSafe(|| callback(receipt)));
    }
}

debug_as!(IdleThread, |_| "IdleThread");

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use lowtide_device::{Bytes, Device, HostOptions};
    use lowtide_pool::Pool;
    use lowtide_release::{Idle, Releaser, Verdict};

    use super::*;
    use crate::SystemClock;

    #[test]
    fn every_idle_release_is_told_and_a_panic_does_not_end_the_watch() {
        let options = HostOptions { budget: Some(Bytes::mib(32)), ..HostOptions::default() };
        let device = Device::host(options).unwrap();
        let pool = Pool::new(&device).unwrap();
        let clock = Arc::new(SystemClock::default());
        let releaser = Releaser::new(&device, clock.clone());
        releaser.add_pool(&pool);
        let _weights = pool.block(Bytes::mib(8)).unwrap();
        let idling = Idling::new(&releaser, &Idle::new("0s".parse().unwrap(), clock));
        let (tell, told) = mpsc::channel();
        let thread = IdleThread::start(idling.clone()).unwrap().on_release(move |receipt| {
            tell.send(receipt.clone()).unwrap();
            panic!("the callback broke");
        });
        for _ in 0..2 {
            drop(idling.work().unwrap());
            let receipt = told.recv().unwrap();
            assert_eq!((receipt.name.as_str(), receipt.verdict), ("idle", Verdict::Released));
        }
        drop(thread);
        assert!(told.recv().is_err(), "the watch has ended, and its callback is gone");
    }
}
