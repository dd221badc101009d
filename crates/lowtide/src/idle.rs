//! A thread that watches for idle time.

use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lowtide_release::Idling;

/// However long the policy would wait, it is asked this often, so that the thread ends soon after it
/// is told to, and a clock that jumped is noticed.
const LOOK_MOST: Duration = Duration::from_secs(1);
/// And never more often than this.
const LOOK_LEAST: Duration = Duration::from_millis(10);

/// Ticks an [`Idling`] on the machine's clock for as long as it lives.
#[must_use = "dropping it ends the watch"]
pub struct IdleThread {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl IdleThread {
    /// Begins to watch.
    ///
    /// # Errors
    /// If the machine has no thread to give.
    pub fn start(idling: Idling) -> std::io::Result<IdleThread> {
        let (stop, stopped) = mpsc::channel::<()>();
        let watch = move || loop {
            let tick = idling.tick();
            let pause = idling.look_again_in(&tick).clamp(LOOK_LEAST, LOOK_MOST);
            if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        };
        let thread = thread::Builder::new().name("lowtide-idle".to_owned()).spawn(watch)?;
        Ok(IdleThread { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for IdleThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It ends after the release it may be at; a panic of it was reported by itself.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for IdleThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdleThread")
    }
}
