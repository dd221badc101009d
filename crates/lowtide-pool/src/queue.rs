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

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn items_come_in_order_and_what_is_put_back_comes_first() {
        let queue = Queue::default();
        assert_eq!(queue.take(false), None);
        queue.add([1, 2, 3]);
        assert_eq!((queue.take(false), queue.take(true)), (Some(1), Some(2)));
        queue.put_back(2);
        queue.add([4]);
        assert_eq!(queue.take(true), Some(2));
        assert_eq!(queue.empty(), [3, 4]);
        assert_eq!(queue.take(false), None);
    }

    #[test]
    fn a_closed_queue_hands_out_what_it_has_and_keeps_nobody_waiting() {
        let queue = Queue::default();
        queue.add([1]);
        queue.close();
        assert_eq!((queue.take(true), queue.take(true)), (Some(1), None));
    }

    #[test]
    fn every_item_is_taken_once_and_everybody_is_told_of_the_end() {
        const ITEMS: u64 = 10_000;
        let queue = Queue::default();
        let taken: Vec<u64> = thread::scope(|scope| {
            let take = || std::iter::from_fn(|| queue.take(true)).collect::<Vec<u64>>();
            let takers: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            for first in (0..ITEMS).step_by(10) {
                queue.add([first]);
                queue.add(first + 1..first + 10);
            }
            queue.close();
            takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
        });
        let mut sorted = taken;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..ITEMS));
    }
}
