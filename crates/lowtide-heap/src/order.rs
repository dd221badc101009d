//! Depth-first search from the roots: the ranks by which dominators are found, and the referrers of
//! every node.
//!
//! Rank 0 is a virtual node that refers to all roots. Then come the reached nodes that have
//! references, in the order in which the search finds them; then the *leaves*, which have none, last
//! found first. Most nodes are leaves, and no path leads on from them: tables that are needed for
//! paths have no entries for leaves, and fit into the processor's cache longer.
//!
//! Rows of referrers are kept by rank, not by node: the search for dominators reads them one after
//! another, and ranks that are close together are close in memory. Nodes that are not reached have
//! no rank.

use crate::graph::{Graph, Node};

/// A reached node's position in the depth-first order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(pub(crate) u32);

impl Rank {
    /// The virtual node that refers to all roots.
    pub(crate) const ROOTS: Rank = Rank(0);

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The reached nodes in depth-first order, with their referrers.
pub(crate) struct Order {
    /// By node; [`Rank::ROOTS`] where it is not reached.
    ranks: Vec<Rank>,
    /// By rank; the entry of [`Rank::ROOTS`] means nothing.
    nodes: Vec<Node>,
    /// The lowest rank of a leaf; during the search, the last that was given.
    leaves: usize,
    /// The start of each rank's row in `referrers`, and the end of the last row.
    rows: Vec<u32>,
    referrers: Vec<Rank>,
}

/// The parent of each rank in the search tree. [`Rank::ROOTS`] is its own. For a leaf it is instead
/// the highest rank given when the leaf was found: the parent is then the highest referrer up to
/// there, because the search has left any other rank in between and would have found the leaf from
/// it.
pub(crate) type Parents = Vec<Rank>;

struct Search<'g> {
    graph: &'g Graph,
    order: Order,
    parents: Parents,
    /// The next rank of a node that has references.
    next: usize,
}

impl<'g> Search<'g> {
    fn new(graph: &'g Graph) -> Search<'g> {
        let most = graph.len() + 1;
        // Leaves are ranked from the far end: the number of other nodes is not known yet.
        let order = Order {
            ranks: vec![Rank::ROOTS; graph.len()],
            nodes: vec![Node(0); most],
            leaves: most,
            // While counting: at the next higher index, how many refer to a rank.
            rows: vec![0; most + 1],
            referrers: Vec::new(),
        };
        Search { graph, order, parents: vec![Rank::ROOTS; most], next: 1 }
    }

    /// Counts a reference. Returns the target's rank if the search must go on there: it is new and
    /// no leaf.
    fn find(&mut self, from: Rank, to: Node) -> Option<Rank> {
        let order = &mut self.order;
        let known = order.ranks[to.index()];
        if known != Rank::ROOTS {
            order.rows[known.index() + 1] += 1;
            return None;
        }
        let is_leaf = self.graph.row(to).is_empty();
        let (rank, parent) = if is_leaf {
            order.leaves -= 1;
            (order.leaves, Rank(self.next as u32 - 1))
        } else {
            self.next += 1;
            (self.next - 1, from)
        };
        order.ranks[to.index()] = Rank(rank as u32);
        order.nodes[rank] = to;
        order.rows[rank + 1] = 1;
        self.parents[rank] = parent;
        (!is_leaf).then_some(Rank(rank as u32))
    }

    fn run(&mut self) {
        // A rank, and the index of its next reference. A list on the heap instead of recursion:
        // linked lists are as deep as they are long.
        let mut path: Vec<(Rank, u32)> = vec![(Rank::ROOTS, 0)];
        'deeper: while let Some((rank, mut index)) = path.pop() {
            let row = self.order.row(self.graph, rank);
            while let Some(to) = row.get(index as usize) {
                index += 1;
                if let Some(next) = self.find(rank, *to) {
                    path.extend([(rank, index), (next, 0)]);
                    continue 'deeper;
                }
            }
        }
    }

    /// Closes the gap between the two kinds of ranks: nodes that are not reached got none.
    fn finish(self) -> (Order, Parents) {
        let Search { mut order, mut parents, next, .. } = self;
        let gap = next..order.leaves;
        if !gap.is_empty() {
            order.rows.drain(gap.start + 1..=gap.end);
            order.nodes.drain(gap.clone());
            parents.drain(gap);
            order.leaves = next;
            for (rank, node) in (0..).map(Rank).zip(&order.nodes).skip(next) {
                order.ranks[node.index()] = rank;
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

    /// The targets of a rank's references.
    fn row<'g>(&self, graph: &'g Graph, rank: Rank) -> &'g [Node] {
        if rank == Rank::ROOTS { graph.root_nodes() } else { graph.row(self.nodes[rank.index()]) }
    }

    /// Turns the counts into row starts, then writes every referrer into its row.
    fn fill(&mut self, graph: &Graph) {
        let mut sum = 0;
        for row in &mut self.rows {
            sum += std::mem::replace(row, sum);
        }
        self.referrers = vec![Rank::ROOTS; sum as usize];
        for from in (0..self.leaves as u32).map(Rank) {
            for to in self.row(graph, from) {
                // At the next higher index stands where the rank's next referrer goes. When all are
                // written, that is the start of the next row, as it should be.
                let next = &mut self.rows[self.ranks[to.index()].index() + 1];
                self.referrers[*next as usize] = from;
                *next += 1;
            }
        }
    }

    /// Returns the lowest index of a leaf: from here on ranks have no references.
    pub(crate) fn leaves(&self) -> usize {
        self.leaves
    }

    /// Returns the number of ranks: the reached nodes and [`Rank::ROOTS`].
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the node's rank, if it is reached.
    pub(crate) fn rank(&self, node: Node) -> Option<Rank> {
        Some(self.ranks[node.index()]).filter(|rank| *rank != Rank::ROOTS)
    }

    /// Returns the rank of a node that is known to be reached.
    pub(crate) fn rank_of_reached(&self, node: Node) -> Rank {
        self.ranks[node.index()]
    }

    /// Returns the node of a rank other than [`Rank::ROOTS`].
    pub(crate) fn node(&self, rank: Rank) -> Node {
        self.nodes[rank.index()]
    }

    /// Returns the ranks that refer to this one: once for each reference, lowest first. A root has
    /// [`Rank::ROOTS`] among them.
    pub(crate) fn referrers(&self, rank: Rank) -> &[Rank] {
        let start = self.rows[rank.index()] as usize;
        &self.referrers[start..self.rows[rank.index() + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::GraphBuilder;

    fn graph(nodes: usize, roots: &[usize], edges: &[(usize, usize)]) -> Graph {
        let mut builder = GraphBuilder::default();
        let n: Vec<_> = (0..nodes).map(|_| builder.node()).collect();
        for (from, to) in edges {
            builder.edge(n[*from], n[*to]);
        }
        for root in roots {
            builder.root(n[*root]);
        }
        builder.finish()
    }

    fn ranks(order: &Order, nodes: u32) -> Vec<Option<u32>> {
        (0..nodes).map(|node| order.rank(Node(node)).map(|rank| rank.0)).collect()
    }

    fn referrers(order: &Order, rank: u32) -> Vec<u32> {
        order.referrers(Rank(rank)).iter().map(|from| from.0).collect()
    }

    #[test]
    fn ranks_go_deep_first_and_referrers_are_the_rows_backwards() {
        let edges = [(0, 1), (0, 2), (1, 3), (2, 3), (2, 3), (3, 0), (4, 3)];
        let (order, parents) = Order::new(&graph(5, &[0, 3], &edges));
        assert_eq!(ranks(&order, 5), [Some(1), Some(2), Some(4), Some(3), None]);
        assert_eq!(parents, [0, 0, 1, 2, 1].map(Rank));
        assert_eq!(order.len(), 5);
        assert_eq!(referrers(&order, 1), [0, 3]);
        assert_eq!(referrers(&order, 2), [1]);
        assert_eq!(referrers(&order, 3), [0, 2, 4, 4], "not node 4, which is not reached");
        assert_eq!(order.node(Rank(4)), Node(2));
    }

    #[test]
    fn leaves_come_last_and_unreached_nodes_have_no_rank() {
        // Nodes 3 and 4 are leaves, found from 1; nodes 5 and 6 are not reached.
        let edges = [(0, 2), (0, 1), (0, 4), (1, 4), (1, 3), (2, 0), (5, 4), (5, 6)];
        let (order, parents) = Order::new(&graph(7, &[0, 4], &edges));
        let wanted = [Some(1), Some(3), Some(2), Some(4), Some(5), None, None];
        assert_eq!(ranks(&order, 7), wanted);
        assert_eq!((order.leaves(), order.len()), (4, 6));
        assert_eq!([4, 5].map(|rank| order.node(Rank(rank))), [3, 4].map(Node), "last found first");
        assert_eq!(parents, [0, 0, 1, 1, 3, 3].map(Rank), "of leaves, the highest rank then");
        assert_eq!(referrers(&order, 5), [0, 1, 3], "not node 5, which is not reached");
        assert_eq!(referrers(&order, 4), [3]);
        assert_eq!(referrers(&order, 1), [0, 2]);
    }
}
