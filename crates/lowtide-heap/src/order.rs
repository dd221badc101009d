//! Depth first from the roots: the numbers that dominators are found by, and who refers to whom
//! read backwards.
//!
//! Number 0 is what holds the roots; the nodes that are reached follow in the order in which they
//! are first met. Rows of referrers are kept by these numbers and not by nodes: the search for
//! dominators reads them from the last to the first, and what is near in this order is near in
//! memory. Nodes that nobody reaches have no part in it.

use crate::graph::Graph;

pub(crate) struct Order {
    /// By node; 0 where it is not reached.
    numbers: Vec<u32>,
    /// By number; at 0 stands no node.
    nodes: Vec<u32>,
    /// Where each number's referrers begin, and where the last one's end.
    rows: Vec<usize>,
    referrers: Vec<u32>,
}

/// By number: who met it first. What holds the roots is its own.
pub(crate) type Parents = Vec<u32>;

impl Order {
    pub(crate) fn new(graph: &Graph) -> (Order, Parents) {
        let mut order = Order {
            numbers: vec![0; graph.len()],
            nodes: Vec::with_capacity(graph.len() + 1),
            rows: Vec::with_capacity(graph.len() + 2),
            referrers: Vec::new(),
        };
        let mut parents = Vec::with_capacity(graph.len() + 1);
        order.nodes.push(u32::MAX);
        // While counting: one ahead of the number, how many refer to it.
        order.rows.extend([0; 2]);
        parents.push(0);
        // A node, and which of its references is next. A list of our own and not the thread's
        // stack: linked lists are as deep as they are long.
        let mut path: Vec<(u32, u32)> = Vec::new();
        for root in graph.root_nodes() {
            if order.meet(0, *root, &mut parents) {
                path.push((*root, 0));
            }
            'deeper: while let Some((node, mut place)) = path.pop() {
                let (row, number) = (graph.row(node), order.numbers[node as usize]);
                while let Some(to) = row.get(place as usize) {
                    place += 1;
                    if order.meet(number, *to, &mut parents) && !graph.row(*to).is_empty() {
                        path.extend([(node, place), (*to, 0)]);
                        continue 'deeper;
                    }
                }
            }
        }
        drop(path);
        order.fill(graph);
        (order, parents)
    }

    /// Counts a reference; whether it is the first to this node.
    fn meet(&mut self, from: u32, to: u32, parents: &mut Parents) -> bool {
        let number = &mut self.numbers[to as usize];
        let new = *number == 0;
        if new {
            *number = self.nodes.len() as u32;
            self.nodes.push(to);
            self.rows.push(0);
            parents.push(from);
        }
        self.rows[*number as usize + 1] += 1;
        new
    }

    /// Rows from counts, then every reference into its row.
    fn fill(&mut self, graph: &Graph) {
        let mut sum = 0;
        for row in &mut self.rows {
            sum += std::mem::replace(row, sum);
        }
        self.referrers = vec![0; sum];
        let mut refer = |from: u32, to: u32| {
            // From here on: one ahead of the number, where its next referrer goes. When all are
            // there that is where the next row begins, as it should be.
            let next = &mut self.rows[self.numbers[to as usize] as usize + 1];
            self.referrers[*next] = from;
            *next += 1;
        };
        for root in graph.root_nodes() {
            refer(0, *root);
        }
        for (from, node) in (0..).zip(&self.nodes).skip(1) {
            for to in graph.row(*node) {
                refer(from, *to);
            }
        }
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
        &self.referrers[self.rows[number as usize]..self.rows[number as usize + 1]]
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
}
