//! What all of it takes, counted by the allocator: under 150 bytes a node.

use lowtide_heap::{Analysis, CutCost, Edge, Graph, GraphBuilder, Node};

use crate::{counting, pythonic};

const BYTES_MOST: usize = 150;

/// At the highest, from nothing to every answer; in bytes a node.
fn highest(make: impl FnOnce() -> (Graph, Node), cost: impl Fn(Edge) -> CutCost) -> usize {
    let before = counting::begin();
    let (graph, target) = make();
    let heap = Analysis::new(&graph);
    assert!(heap.path(target).is_some());
    assert!(!heap.paths(target, 3).is_empty());
    heap.cuts(&[target], 64, cost).unwrap();
    heap.islands(|_| false);
    let each = counting::highest_above(before) / graph.len();
    println!("{} nodes, {} references: {each} bytes a node", graph.len(), graph.edges());
    each
}

/// Four references a node and as deep as long: each node refers to the next and to three before.
fn list(length: u32) -> (Graph, Node) {
    let mut builder = GraphBuilder::default();
    let mut last = builder.node();
    builder.root(last);
    for _ in 1..length {
        let next = builder.node();
        builder.edge(last, next);
        (1..4).for_each(|back| builder.edge(last, Node(last.0.saturating_sub(back))));
        last = next;
    }
    (builder.finish(), last)
}

/// Two lists side by side, each referring to the next of both: no node dominates another, so all
/// flow takes the whole length, and at the roots only may it be cut.
fn rails(length: u32) -> (Graph, Node) {
    let mut builder = GraphBuilder::default();
    let mut pair = [builder.node(), builder.node()];
    builder.root(pair[0]);
    builder.root(pair[1]);
    for _ in 1..length {
        let next = [builder.node(), builder.node()];
        for from in pair {
            for to in next {
                builder.edge(from, to);
                builder.edge(from, to);
            }
        }
        pair = next;
    }
    (builder.finish(), pair[1])
}

#[test]
fn under_150_bytes_a_node() {
    let (objects, root, model) = pythonic::objects(500_000, 1);
    let (met, numbers) = objects.order(root);
    let kinds = objects.build(&met, &numbers, model);
    let make = || {
        let heap = objects.build(&met, &numbers, model);
        (heap.graph, heap.model)
    };
    assert!(highest(make, |edge| kinds.cost(edge)) < BYTES_MOST);

    // Just above a power of two, lists that double are nearly half empty.
    for length in [1 << 19, (1 << 19) + 10, 800_000] {
        let cost = |edge: Edge| CutCost::Cost(if edge.to == Node(1) { 1 } else { 2 });
        assert!(highest(|| list(length), cost) < BYTES_MOST);
        let cost = |edge: Edge| if edge.to.0 < 4 { CutCost::Cost(1) } else { CutCost::Never };
        assert!(highest(|| rails(length / 2), cost) < BYTES_MOST);
    }
}
