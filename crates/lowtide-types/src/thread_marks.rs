//! Marks on a thread: what it is in the middle of.
//!
//! A callback that calls the code which runs it would wait for its own caller, or be asked again without
//! end. A mark on its thread tells. A thread that ends has no list any more: marks are not set then, and
//! none is found.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::thread::LocalKey;

/// The marks of one kind on a thread, the innermost last.
///
/// ```
/// use lowtide_types::ThreadMarks;
///
/// thread_local!(static ASKED: ThreadMarks<u32> = const { ThreadMarks::new() });
///
/// let asking = ThreadMarks::set(&ASKED, 7);
/// assert!(ThreadMarks::has(&ASKED, &7));
/// assert!(ThreadMarks::set_once(&ASKED, 7).is_none());
/// drop(asking);
/// assert!(!ThreadMarks::has(&ASKED, &7));
/// ```
#[derive(Debug)]
pub struct ThreadMarks<T>(RefCell<Vec<T>>);

impl<T: 'static> ThreadMarks<T> {
    /// Creates an empty list.
    pub const fn new() -> ThreadMarks<T> {
        ThreadMarks(RefCell::new(Vec::new()))
    }

    /// Sets a mark on this thread, until the guard is dropped.
    pub fn set(list: &'static LocalKey<ThreadMarks<T>>, mark: T) -> ThreadMark<T> {
        ThreadMark { list: ThreadMarks::add(list, mark).then_some(list), stays: PhantomData }
    }

    /// Returns the innermost mark of this thread.
    pub fn innermost(list: &'static LocalKey<ThreadMarks<T>>) -> Option<T>
    where
        T: Clone,
    {
        list.try_with(|marks| marks.0.borrow().last().cloned()).ok().flatten()
    }

    /// Adds a mark that [`ThreadMarks::remove`] ends, in whatever order. Returns whether it is set.
    #[inline]
    pub fn add(list: &'static LocalKey<ThreadMarks<T>>, mark: T) -> bool {
        list.try_with(|marks| marks.0.borrow_mut().push(mark)).is_ok()
    }
}

impl<T: PartialEq + 'static> ThreadMarks<T> {
    /// Sets a mark like [`ThreadMarks::set`]; `None` if this thread has it already.
    pub fn set_once(list: &'static LocalKey<ThreadMarks<T>>, mark: T) -> Option<ThreadMark<T>> {
        (!ThreadMarks::has(list, &mark)).then(|| ThreadMarks::set(list, mark))
    }

    /// Returns whether this thread has the mark.
    pub fn has(list: &'static LocalKey<ThreadMarks<T>>, mark: &T) -> bool {
        list.try_with(|marks| marks.0.borrow().contains(mark)).unwrap_or(false)
    }

    /// Removes the innermost mark that is equal to this one.
    #[inline]
    pub fn remove(list: &'static LocalKey<ThreadMarks<T>>, mark: &T) {
        let _ = list.try_with(|marks| {
            let mut marks = marks.0.borrow_mut();
            if let Some(at) = marks.iter().rposition(|known| known == mark) {
                marks.remove(at);
            }
        });
    }
}

impl<T: 'static> Default for ThreadMarks<T> {
    fn default() -> ThreadMarks<T> {
        ThreadMarks::new()
    }
}

/// A mark on this thread. Dropping it, also in a panic, ends it. Marks end in the opposite order in which
/// they were set.
#[derive(Debug)]
#[must_use = "dropping it ends the mark"]
pub struct ThreadMark<T: 'static> {
    /// `None` in a thread that ends.
    list: Option<&'static LocalKey<ThreadMarks<T>>>,
    /// Keeps it on its thread.
    stays: PhantomData<*const ()>,
}

impl<T> Drop for ThreadMark<T> {
    fn drop(&mut self) {
        if let Some(list) = self.list {
            // Dropped when the list is not borrowed any more: a mark may run code of a caller.
            drop(list.try_with(|marks| marks.0.borrow_mut().pop()));
        }
    }
}
