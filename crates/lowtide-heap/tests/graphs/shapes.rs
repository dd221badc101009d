//! Graphs with a shape: as deep as they are large, as wide, with loops, without anything.

use lowtide_heap::{Analysis, Cut, CutCost, Edge, Graph, GraphBuilder, NoCut, Node, Size};
use lowtide_types::Bytes;

/// On a stack that any recursion over the nodes would end.
fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(64 << 10).spawn(work).unwrap().join().unwrap();
}

fn graph(nodes: u32, roots: &[u32], edges: &[(u32, u32)]) -> Graph {
    let mut builder = GraphBuilder::default();
    (0..nodes).for_each(|_| _ = builder.node());
    for (from, to) in edges {
        builder.edge(Node(*from), Node(*to));
    }
    for root in roots {
        builder.root(Node(*root));
    }
    builder.finish()
}

fn one(_: Edge) -> CutCost {
    CutCost::Cost(1)
}

/// Returns the cut of least weight.
pub(crate) fn smallest(
    heap: &Analysis<'_>,
    targets: &[Node],
    most: u64,
    cost: impl Fn(Edge) -> CutCost,
) -> Result<Cut, NoCut> {
    heap.cuts(targets, most, cost).map(|mut cuts| cuts.pop().expect("one at least"))
}

fn ends(cut: &Cut) -> Vec<(u32, u32)> {
    cut.edges.iter().map(|edge| (edge.from.0, edge.to.0)).collect()
}

#[test]
fn referrers_are_told_once_for_each_reference() {
    let graph = graph(5, &[0], &[(0, 1), (0, 2), (1, 2), (1, 2), (2, 2), (3, 2), (3, 4)]);
    let heap = Analysis::new(&graph);
    let referrers = |node| {
        let mut found: Vec<u32> = heap.referrers(Node(node)).map(|node| node.0).collect();
        found.sort_unstable();
        found
    };
    // What is not reached does not count, and being a root is no reference.
    assert_eq!(referrers(2), [0, 1, 1, 2]);
    assert!(referrers(0).is_empty());
    assert!(referrers(4).is_empty());
}

#[test]
fn a_list_of_two_million() {
    on_a_small_stack(|| {
        const LENGTH: u32 = 2_000_000;
        let mut builder = GraphBuilder::default();
        let mut last = builder.node();
        builder.root(last);
        for _ in 1..LENGTH {
            let next = builder.node();
            builder.edge(last, next);
            last = next;
        }
        builder.bytes(last, Bytes(7));
        let graph = builder.finish();
        let heap = Analysis::new(&graph);
        let (first, middle) = (Node(0), Node(LENGTH / 2));
        assert_eq!(heap.path(last).unwrap().edges.len(), LENGTH as usize - 1);
        assert_eq!(heap.paths(last, 3).len(), 1);
        assert_eq!(heap.dominators(last).count(), LENGTH as usize - 1);
        assert!(heap.dominates(middle, last) && !heap.dominates(last, middle));
        let below = Size { nodes: u64::from(LENGTH / 2), bytes: Bytes(7) };
        assert_eq!(heap.retained(middle), below);
        assert_eq!(smallest(&heap, &[last], 9, one).unwrap().collateral.nodes, 0);
        // Everywhere 3, but 2 in the middle and 1 near the root: each is worth a thought.
        let cost = |edge: Edge| match edge.to {
            to if to == middle => CutCost::Cost(2),
            Node(1) => CutCost::Cost(1),
            _ => CutCost::Cost(3),
        };
        let cuts = heap.cuts(&[last], 9, cost).unwrap();
        assert_eq!(cuts.iter().map(|cut| cut.weight).collect::<Vec<_>>(), [3, 2, 1]);
        assert_eq!(cuts[1].freed, below);
        assert_eq!(cuts[2].freed.nodes, u64::from(LENGTH - 1));
        assert_eq!(smallest(&heap, &[last], 9, |_| CutCost::Never), Err(NoCut::Never));
        assert_eq!(smallest(&heap, &[first], 9, one), Err(NoCut::Never), "a root");
        // With most of the list as targets, they are one.
        let most: Vec<Node> = (1..LENGTH).map(Node).collect();
        assert_eq!(ends(&smallest(&heap, &most, 9, one).unwrap()), [(0, 1)]);
    });
}

/// Two lists side by side, each node of one also referring to the other's next: no node dominates
/// another, and all flow takes the whole length.
fn rails(length: u32) -> (Graph, Node) {
    let mut builder = GraphBuilder::default();
    let mut pair = [builder.node(), builder.node()];
    for node in pair {
        builder.root(node);
    }
    for _ in 1..length {
        let next = [builder.node(), builder.node()];
        for from in pair {
            for to in next {
                builder.edge(from, to);
            }
        }
        pair = next;
    }
    let end = builder.node();
    for from in pair {
        builder.edge(from, end);
    }
    (builder.finish(), end)
}

#[test]
fn rails_of_a_million() {
    on_a_small_stack(|| {
        let (graph, end) = rails(1_000_000);
        let heap = Analysis::new(&graph);
        assert_eq!(heap.dominators(end).count(), 0);
        let cut = smallest(&heap, &[end], 9, one).unwrap();
        assert_eq!((cut.weight, cut.freed.nodes), (2, 1));
        // The last that may be cut are near the roots.
        let cost = |edge: Edge| if edge.to.0 < 4 { CutCost::Cost(1) } else { CutCost::Never };
        let cut = smallest(&heap, &[end], 9, cost).unwrap();
        assert_eq!((cut.weight, cut.freed.nodes), (4, 1_999_999));
        assert_eq!(smallest(&heap, &[end], 3, cost), Err(NoCut::MoreThan(3)));
    });
}

#[test]
fn a_dead_list_that_ends_where_it_begins() {
    on_a_small_stack(|| {
        const LENGTH: u32 = 1_000_000;
        let mut builder = GraphBuilder::default();
        let nodes: Vec<Node> = (0..LENGTH).map(|_| builder.node()).collect();
        for (from, to) in nodes.iter().zip(nodes.iter().cycle().skip(1)) {
            builder.edge(*from, *to);
        }
        builder.bytes(nodes[5], Bytes(9));
        let graph = builder.finish();
        let heap = Analysis::new(&graph);
        let all = Size { nodes: u64::from(LENGTH), bytes: Bytes(9) };
        assert_eq!(heap.unreached(), all);
        let [island] = heap.islands(|_| false)[..] else { panic!("one island") };
        assert!(island.is_cycle && island.size == all);
        assert_eq!(heap.retained(nodes[5]), Size::default());
    });
}

#[test]
fn a_million_references_out_of_one_node_and_into_another() {
    const WIDTH: u32 = 1_000_000;
    let mut builder = GraphBuilder::default();
    let [root, list, end] = std::array::from_fn(|_| builder.node());
    builder.root(root);
    builder.edge(root, list);
    let items: Vec<Node> = (0..WIDTH).map(|_| builder.node()).collect();
    for item in &items {
        builder.edge(list, *item);
    }
    for item in &items {
        builder.edge(*item, end);
    }
    let graph = builder.finish();
    let heap = Analysis::new(&graph);
    assert_eq!(heap.dominator(end), Some(list));
    assert_eq!(heap.paths(end, 4).len(), 4);
    let cut = smallest(&heap, &[end], 64, one).unwrap();
    assert_eq!(ends(&cut), [(0, 1)]);
    assert_eq!(cut.collateral.nodes, u64::from(WIDTH) + 1);
    let cost = |edge: Edge| if edge.from == root { CutCost::Never } else { CutCost::Cost(1) };
    assert_eq!(smallest(&heap, &[end], 64, cost), Err(NoCut::MoreThan(64)));
    // Every item a target: each is held once, all of them together by the list.
    let cuts = heap.cuts(&items, 2 * u64::from(WIDTH), one).unwrap();
    assert_eq!(cuts.iter().map(|cut| cut.weight).collect::<Vec<_>>(), [u64::from(WIDTH), 1]);
}

#[test]
fn a_list_that_holds_a_target_at_every_node() {
    const LENGTH: u32 = 200_000;
    let mut builder = GraphBuilder::default();
    let mut last = builder.node();
    builder.root(last);
    let mut held = Vec::new();
    for _ in 1..LENGTH {
        let (own, next) = (builder.node(), builder.node());
        held.push(own);
        builder.edge(last, own);
        builder.edge(last, next);
        last = next;
    }
    let graph = builder.finish();
    let heap = Analysis::new(&graph);
    assert_eq!(ends(&smallest(&heap, &held, 64, one).unwrap()), [(0, 1), (0, 2)]);
    assert_eq!(ends(&smallest(&heap, &held[1..], 64, one).unwrap()), [(0, 2)]);
}

#[test]
fn every_reference_between_two_nodes_has_to_go() {
    let graph = graph(3, &[0], &[(0, 0), (0, 1), (0, 1), (0, 1), (1, 1), (1, 2), (2, 1), (2, 2)]);
    let heap = Analysis::new(&graph);
    let cut = smallest(&heap, &[Node(1)], 9, one).unwrap();
    assert_eq!(cut.edges.iter().map(|edge| edge.index).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(cut.freed.nodes, 2);
    assert_eq!(heap.freed_by(&cut.edges[1..]), Size::default(), "one is left");
    let more = smallest(&heap, &[Node(1)], 2, one).unwrap_err();
    assert_eq!(more, NoCut::MoreThan(2));
    assert_eq!(more.to_string(), "more than 2 references would have to be cut");
    let cost = |edge: Edge| if edge.index == 2 { CutCost::Never } else { CutCost::Cost(1) };
    assert_eq!(smallest(&heap, &[Node(1)], 9, cost), Err(NoCut::Never));
    assert_eq!(heap.paths(Node(1), 9).len(), 1);
}

#[test]
fn a_few_more_references_for_a_lot_less_loss() {
    // runner (1) holds two wrappers (2, 3), and both hold the model (4).
    let graph = graph(5, &[0], &[(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)]);
    let heap = Analysis::new(&graph);
    let cuts = heap.cuts(&[Node(4)], 9, one).unwrap();
    assert_eq!(cuts.iter().map(ends).collect::<Vec<_>>(), [vec![(2, 4), (3, 4)], vec![(0, 1)]]);
    assert_eq!(cuts.iter().map(|cut| cut.collateral.nodes).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(heap.cuts(&[Node(4)], 1, one).unwrap(), cuts[1..]);
    // If what the wrappers hold is theirs, they have to go, and that is the gentlest.
    let cost = |edge: Edge| if edge.to == Node(4) { CutCost::Never } else { CutCost::Cost(1) };
    let cuts = heap.cuts(&[Node(4)], 9, cost).unwrap();
    assert_eq!(cuts.iter().map(ends).collect::<Vec<_>>(), [vec![(1, 2), (1, 3)], vec![(0, 1)]]);
}

#[test]
fn several_roots_and_targets_that_are_roots() {
    let graph = graph(4, &[0, 1], &[(0, 2), (1, 2), (2, 3), (2, 1)]);
    let heap = Analysis::new(&graph);
    assert_eq!(heap.dominators(Node(3)).collect::<Vec<_>>(), [Node(2)]);
    let paths = heap.paths(Node(3), 9);
    assert_eq!(paths.iter().map(|path| path.root).collect::<Vec<_>>(), [Node(0), Node(1)]);
    assert_eq!(heap.paths(Node(1), 9).len(), 2, "by itself, and from 0 over 2");
    assert_eq!(smallest(&heap, &[Node(3), Node(1)], 9, one), Err(NoCut::Never));
    let cut = smallest(&heap, &[Node(2), Node(3)], 9, one).unwrap();
    assert_eq!((ends(&cut), cut.collateral), (vec![(0, 2), (1, 2)], Size::default()));
}

#[test]
fn nothing_to_do_is_done() {
    let empty = GraphBuilder::default().finish();
    assert!(empty.is_empty());
    let heap = Analysis::new(&empty);
    assert_eq!((heap.unreached(), heap.islands(|_| false)), (Size::default(), vec![]));
    assert_eq!(smallest(&heap, &[], 0, one).unwrap().weight, 0);
    assert_eq!(heap.freed_by(&[]), Size::default());

    let rootless = graph(2, &[], &[(0, 1)]);
    let heap = Analysis::new(&rootless);
    let node = Node(1);
    assert!(!heap.is_reached(node) && heap.path(node).is_none() && heap.paths(node, 3).is_empty());
    assert!(!heap.dominates(node, node) && heap.dominator(node).is_none());
    let cuts = heap.cuts(&[node], 0, |_| CutCost::Never).unwrap();
    assert_eq!(cuts.len(), 1);
    assert_eq!((cuts[0].edges.len(), cuts[0].weight, cuts[0].freed), (0, 0, Size::default()));
    let edge = rootless.references(Node(0)).next().unwrap();
    assert_eq!(heap.freed_by(&[edge]), Size::default());
    let [island] = heap.islands(|_| false)[..] else { panic!("one island") };
    assert!(!island.is_cycle && island.head == Node(0) && island.size.nodes == 2);
}

#[test]
#[should_panic(expected = "must cost at least 1")]
fn no_reference_is_cut_for_nothing() {
    let graph = graph(2, &[0], &[(0, 1)]);
    let _ = smallest(&Analysis::new(&graph), &[Node(1)], 9, |_| CutCost::Cost(0));
}
