//! A queue between threads that can be closed.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) struct Queue<T> {
    books: Mutex<(VecDeque<T>, bool)>,
    changed: Condvar,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { books: Mutex::new((VecDeque::new(), false)), changed: Condvar::new() }
    }
}

impl<T> Queue<T> {
    fn books(&self) -> MutexGuard<'_, (VecDeque<T>, bool)> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, items: impl IntoIterator<Item = T>) {
        let mut books = self.books();
        let before = books.0.len();
        books.0.extend(items);
        let added = books.0.len() - before;
        drop(books);
        if added == 1 {
            self.changed.notify_one();
        } else {
            self.changed.notify_all();
        }
    }

    /// Puts one back that could not be used, to be taken first.
    pub(crate) fn put_back(&self, item: T) {
        self.books().0.push_front(item);
    }

    /// No more will come.
    pub(crate) fn close(&self) {
        self.books().1 = true;
        self.changed.notify_all();
    }

    /// Takes everything out.
    pub(crate) fn empty(&self) -> VecDeque<T> {
        std::mem::take(&mut self.books().0)
    }

    /// The next one; waits for it only where the caller has nothing else to do. `None` where there
    /// is none, and none will come if it waited.
    pub(crate) fn take(&self, wait: bool) -> Option<T> {
        let mut books = self.books();
        loop {
            if let Some(item) = books.0.pop_front() {
                return Some(item);
            }
            if books.1 || !wait {
                return None;
            }
            books = self.changed.wait(books).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
