//! Threads of this crate: each works until its owner is dropped.

use std::mem;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lowtide_device::process::Generation;

/// A thread that ends when this is dropped.
pub(crate) struct Background {
    running: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
    made_in: Generation,
}

impl Background {
    /// Starts a thread. It is handed a function that rests for a time and returns whether the thread should go on.
    ///
    /// # Errors
    /// If the machine cannot start a thread.
    pub(crate) fn start(
        name: &str,
        work: impl FnOnce(&dyn Fn(Duration) -> bool) + Send + 'static,
    ) -> std::io::Result<Background> {
        let (stop, stopped) = mpsc::channel::<()>();
        let rest = move |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || work(&rest))?;
        Ok(Background { running: Some((stop, thread)), made_in: Generation::current() })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let Some((stop, thread)) = self.running.take() else { return };
        if !self.made_in.is_current() {
            // A forked child does not have the thread. It may have been in the middle of anything, so that neither
            // end of the channel can be used, and a join would panic.
            mem::forget((stop, thread));
            return;
        }
        drop(stop);
        // A panic of the thread has reported itself.
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use lowtide_testing::forks::in_child;

    use super::*;

    #[test]
    fn a_forked_child_may_drop_a_thread_that_it_does_not_have() {
        let go_on = |rest: &dyn Fn(Duration) -> bool| while rest(Duration::from_millis(1)) {};
        let mut thread = Some(Background::start("lowtide-test", go_on).unwrap());
        in_child(|| vec![catch_unwind(AssertUnwindSafe(|| drop(thread.take()))).is_ok()]);
        drop(thread.take());
    }
}
