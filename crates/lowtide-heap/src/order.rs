//! Depth first from the roots: the numbers that dominators are found by, and who refers to whom
//! read backwards.
//!
//! Number 0 is what holds the roots. Then come the nodes that are reached and refer to something, in
//! the order in which they are first met; then the *leaves*, which refer to nothing, last met first.
//! Most nodes are leaves, and no way leads on from them: what is kept for ways is kept for the
//! others only, and stays in the processor's cache the longer.
//!
//! Rows of referrers are kept by these numbers and not by nodes: the search for dominators reads
//! them one after another, and what is near in this order is near in memory. Nodes that nobody
//! reaches have no part in it.

use crate::graph::Graph;

pub(crate) struct Order {
    /// By node; 0 where it is not reached.
    numbers: Vec<u32>,
    /// By number; what stands at 0 is no node.
    nodes: Vec<u32>,
    /// The first number of a leaf; while searching, the last that was given.
    leaves: usize,
    /// Where each number's referrers begin, and where the last one's end.
    rows: Vec<u32>,
    referrers: Vec<u32>,
}

/// By number: who met it first. What holds the roots is its own. Of a leaf: how far numbers were when
/// it was met. Who met it is the highest up to there that refers to it: whoever came between the two
/// has been left, and would have met it.
pub(crate) type Parents = Vec<u32>;

struct Search<'g> {
    graph: &'g Graph,
    order: Order,
    parents: Parents,
    /// The next number of a node that refers to something.
    next: usize,
}

impl<'g> Search<'g> {
    fn new(graph: &'g Graph) -> Search<'g> {
        let most = graph.len() + 1;
        // Leaves are numbered from the far end: how many others there will be is not known yet.
        let order = Order {
            numbers: vec![0; graph.len()],
            nodes: vec![0; most],
            leaves: most,
            // While counting: one ahead of the number, how many refer to it.
            rows: vec![0; most + 1],
            referrers: Vec::new(),
        };
        Search { graph, order, parents: vec![0; most], next: 1 }
    }

    /// Counts a reference; its number, if there is one to follow: it is new and no leaf.
    fn meet(&mut self, from: u32, to: u32) -> Option<u32> {
        let order = &mut self.order;
        let known = order.numbers[to as usize] as usize;
        if known != 0 {
            order.rows[known + 1] += 1;
            return None;
        }
        let leaf = self.graph.row(to).is_empty();
        let (number, parent) = if leaf {
            order.leaves -= 1;
            (order.leaves, self.next as u32 - 1)
        } else {
            self.next += 1;
            (self.next - 1, from)
        };
        order.numbers[to as usize] = number as u32;
        order.nodes[number] = to;
        order.rows[number + 1] = 1;
        self.parents[number] = parent;
        (!leaf).then_some(number as u32)
    }

    fn run(&mut self) {
        // A number, and which of its references is next. A list of our own and not the thread's
        // stack: linked lists are as deep as they are long.
        let mut path: Vec<(u32, u32)> = vec![(0, 0)];
        'deeper: while let Some((number, mut place)) = path.pop() {
            let row = self.order.row(self.graph, number);
            while let Some(to) = row.get(place as usize) {
                place += 1;
                if let Some(next) = self.meet(number, *to) {
                    path.extend([(number, place), (next, 0)]);
                    continue 'deeper;
                }
            }
        }
    }

    /// Closes the gap of numbers that nobody got, as there are nodes that nobody reaches.
    fn finish(self) -> (Order, Parents) {
        let Search { mut order, mut parents, next, .. } = self;
        let gap = next..order.leaves;
        if !gap.is_empty() {
            order.rows.drain(gap.start + 1..=gap.end);
            order.nodes.drain(gap.clone());
            parents.drain(gap);
            order.leaves = next;
            for (number, node) in (0..).zip(&order.nodes).skip(next) {
                order.numbers[*node as usize] = number;
            }
        }
        (order, parents)
    }
}

impl Order {
    pub(crate) fn new(graph: &Graph) -> (Order, Parents) {
        let mut search = Search::new(graph);
        search.run();
        let (mut order, parents) = search.finish();
        order.fill(graph);
        (order, parents)
    }

    /// What a number refers to.
    fn row<'g>(&self, graph: &'g Graph, number: u32) -> &'g [u32] {
        if number == 0 { graph.root_nodes() } else { graph.row(self.nodes[number as usize]) }
    }

    /// Rows from counts, then every reference into its row.
    fn fill(&mut self, graph: &Graph) {
        let mut sum = 0;
        for row in &mut self.rows {
            sum += std::mem::replace(row, sum);
        }
        self.referrers = vec![0; sum as usize];
        for from in 0..self.leaves as u32 {
            for to in self.row(graph, from) {
                // From here on: one ahead of the number, where its next referrer goes. When all are
                // there that is where the next row begins, as it should be.
                let next = &mut self.rows[self.numbers[*to as usize] as usize + 1];
                self.referrers[*next as usize] = from;
                *next += 1;
            }
        }
    }

    /// The first number of a leaf: from here on nobody refers to anything.
    pub(crate) fn leaves(&self) -> usize {
        self.leaves
    }

    /// How many numbers there are: the reached nodes and what holds the roots.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Its number, where it is reached.
    pub(crate) fn number(&self, node: u32) -> Option<u32> {
        Some(self.numbers[node as usize]).filter(|number| *number != 0)
    }

    /// For nodes that a reached node refers to, which are reached therefore.
    pub(crate) fn reached(&self, node: u32) -> u32 {
        self.numbers[node as usize]
    }

    /// Of a number that is not 0.
    pub(crate) fn node(&self, number: u32) -> u32 {
        self.nodes[number as usize]
    }

    /// Who refers to it, by number: once for each reference, lowest first. A root has 0 among them.
    pub(crate) fn referrers(&self, number: u32) -> &[u32] {
        &self.referrers
            [self.rows[number as usize] as usize..self.rows[number as usize + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GraphBuilder;

    #[test]
    fn numbers_go_deep_first_and_rows_are_read_backwards() {
        let mut builder = GraphBuilder::default();
        let n: Vec<_> = (0..5).map(|_| builder.node()).collect();
        for (from, to) in [(0, 1), (0, 2), (1, 3), (2, 3), (2, 3), (3, 0), (4, 3)] {
            builder.edge(n[from], n[to]);
        }
        builder.root(n[0]);
        builder.root(n[3]);
        let (order, parents) = Order::new(&builder.finish());
        let numbers: Vec<_> = (0..5).map(|node| order.number(node)).collect();
        assert_eq!(numbers, [Some(1), Some(2), Some(4), Some(3), None]);
        assert_eq!(parents, [0, 0, 1, 2, 1]);
        assert_eq!(order.len(), 5);
        assert_eq!(order.referrers(1), [0, 3]);
        assert_eq!(order.referrers(2), [1]);
        assert_eq!(order.referrers(3), [0, 2, 4, 4], "not from 4, which nobody reaches");
        assert_eq!(order.node(4), 2);
    }

    #[test]
    fn leaves_come_last_and_nobody_else_takes_a_number() {
        let mut builder = GraphBuilder::default();
        let n: Vec<_> = (0..7).map(|_| builder.node()).collect();
        // Nothing leads on from 3 and 4, which 1 meets; nobody reaches 5 and 6.
        for (from, to) in [(0, 2), (0, 1), (0, 4), (1, 4), (1, 3), (2, 0), (5, 4), (5, 6)] {
            builder.edge(n[from], n[to]);
        }
        builder.root(n[0]);
        builder.root(n[4]);
        let (order, parents) = Order::new(&builder.finish());
        let numbers: Vec<_> = (0..7).map(|node| order.number(node)).collect();
        assert_eq!(numbers, [Some(1), Some(3), Some(2), Some(4), Some(5), None, None]);
        assert_eq!((order.leaves(), order.len()), (4, 6));
        assert_eq!([4, 5].map(|number| order.node(number)), [3, 4], "last met first");
        assert_eq!(parents, [0, 0, 1, 1, 3, 3], "of leaves, how far numbers were");
        assert_eq!(order.referrers(5), [0, 1, 3], "and not 5, which nobody reaches");
        assert_eq!(order.referrers(4), [3]);
        assert_eq!(order.referrers(1), [0, 2]);
    }
}
