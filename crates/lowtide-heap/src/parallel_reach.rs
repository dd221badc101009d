//! Which nodes the references of an unfinished graph lead to, found by several threads.
//!
//! A thread follows references in depth and marks what it finds. While other threads wait for work
//! and it has much, it gives half of it away. Where there is little to share, as in a linked list,
//! one thread does everything and the others wait.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::graph::Node;

/// A thread with more nodes to look at than this gives half of them away.
const MUCH: usize = 1024;

struct Marking<R> {
    /// Returns what a node refers to.
    row: R,
    marks: Vec<AtomicBool>,
    queue: Mutex<WorkQueue>,
    /// Notified when there is work to share, and when all work is done.
    changed: Condvar,
    /// How many threads wait for work.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct WorkQueue {
    /// Marked nodes whose references nobody has followed.
    shared: Vec<Vec<Node>>,
    /// How many threads are at work.
    working: usize,
}

/// Returns for each node whether `roots` lead to it, themselves included. `row` returns what a node refers to.
pub(crate) fn reached<'r>(
    row: impl Fn(Node) -> &'r [Node] + Sync,
    nodes: usize,
    roots: impl IntoIterator<Item = Node>,
    threads: NonZeroUsize,
) -> Vec<bool> {
    let marking = Marking {
        row,
        marks: (0..nodes).map(|_| AtomicBool::new(false)).collect(),
        queue: Mutex::default(),
        changed: Condvar::new(),
        waiting: AtomicUsize::new(0),
    };
    let is_new = |root: &Node| !marking.marks[root.index()].swap(true, Ordering::Relaxed);
    let first: Vec<Node> = roots.into_iter().filter(is_new).collect();
    marking.queue().shared.push(first);
    thread::scope(|scope| {
        for _ in 1..threads.get() {
            // The others do the work of a thread that is refused.
            if thread::Builder::new().spawn_scoped(scope, || marking.work()).is_err() {
                break;
            }
        }
        marking.work();
    });
    marking.marks.into_iter().map(AtomicBool::into_inner).collect()
}

impl<'r, R: Fn(Node) -> &'r [Node]> Marking<R> {
    fn queue(&self) -> MutexGuard<'_, WorkQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(mut next) = self.take() {
            while let Some(node) = next.pop() {
                self.follow(node, &mut next);
                if next.len() > MUCH && self.waiting.load(Ordering::Relaxed) > 0 {
                    let half = next.split_off(next.len() / 2);
                    self.queue().shared.push(half);
                    self.changed.notify_one();
                }
            }
            self.queue().working -= 1;
        }
        self.changed.notify_all();
    }

    /// Waits for work. Returns `None` if there is none left.
    fn take(&self) -> Option<Vec<Node>> {
        let mut queue = self.queue();
        loop {
            if let Some(next) = queue.shared.pop() {
                queue.working += 1;
                return Some(next);
            }
            if queue.working == 0 {
                return None;
            }
            self.waiting.fetch_add(1, Ordering::Relaxed);
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Marks what a node refers to, and adds what is new to `next`.
    fn follow(&self, node: Node, next: &mut Vec<Node>) {
        for to in (self.row)(node) {
            let mark = &self.marks[to.index()];
            // Most are marked already, and reading does not take the cache line from others.
            if !mark.load(Ordering::Relaxed) && !mark.swap(true, Ordering::Relaxed) {
                next.push(*to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::GraphBuilder;

    fn each_way(builder: &GraphBuilder, roots: &[Node], wanted: impl Fn(u32) -> bool) {
        let (nodes, _) = builder.len();
        for threads in [1, 2, 5] {
            let threads = NonZeroUsize::new(threads).unwrap();
            let reached = reached(|node| builder.row(node), nodes, roots.iter().copied(), threads);
            let wrong = (0..nodes as u32).find(|node| reached[*node as usize] != wanted(*node));
            assert_eq!(wrong, None, "with {threads} threads");
        }
    }

    #[test]
    fn nodes_without_a_path_are_not_reached() {
        let mut builder = GraphBuilder::default();
        builder.nodes(6);
        builder.rows(Node(0), &[2, 2, 4, 5, 5], &[2, 2, 0, 2, 1].map(Node));
        each_way(&builder, &[], |_| false);
        each_way(&builder, &[Node(2), Node(0), Node(2)], |node| [0, 2].contains(&node));
        each_way(&builder, &[Node(3), Node(4)], |node| [1, 3, 4].contains(&node));
    }

    #[test]
    fn wide_and_long_graphs_are_reached_by_any_number_of_threads() {
        let count = 50_000_u32;
        let mut builder = GraphBuilder::default();
        builder.nodes(3 * count as usize);
        // A hub, what it refers to, a chain from the last of those, and as much that is not reached.
        (1..count).for_each(|to| builder.edge(Node(0), Node(to)));
        (count - 1..2 * count - 1).for_each(|from| builder.edge(Node(from), Node(from + 1)));
        each_way(&builder, &[Node(0)], |node| node < 2 * count);
    }
}
