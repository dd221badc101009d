//! Who is reached, dominators, retained bytes, what is lost and islands, each against its definition
//! on random graphs.

use std::cell::Cell;

use lowtide_heap::{Analysis, Edge, Graph, Island, Node};

use super::naive::{Small, each};
use lowtide_testing::{Dice, share};

/// The sizes worth trying: where everything happens at once, and where ways get long.
fn every_size(check: impl Fn(&Small)) {
    each(0..20_000, (5, 9), Small::roll, &check);
    each(20_000..30_000, (12, 30), Small::roll, &check);
    each(30_000..32_000, (60, 110), Small::roll, &check);
    each(32_000..32_500, (64, 400), Small::roll, &check);
}

#[test]
fn a_node_dominates_what_is_not_reached_without_it() {
    every_size(|small| {
        let graph = small.graph();
        let heap = Analysis::new(&graph);
        let reached = small.everything();
        for above in small.all() {
            assert_eq!(heap.is_reached(above), reached >> above.0 & 1 == 1);
            let lost = reached & !small.reached(1 << above.0, |_| false);
            for below in small.all() {
                assert_eq!(
                    heap.dominates(above, below),
                    lost >> below.0 & 1 == 1,
                    "{above:?} over {below:?}"
                );
            }
            assert_eq!(heap.retained(above), small.freed(lost), "{above:?}");
        }
    });
}

#[test]
fn the_chain_of_dominators_has_all_of_them_nearest_first() {
    every_size(|small| {
        let graph = small.graph();
        let heap = Analysis::new(&graph);
        for node in small.all() {
            let chain: Vec<Node> = heap.dominators(node).collect();
            let all = small.all().filter(|above| *above != node && heap.dominates(*above, node));
            assert_eq!(chain.len(), all.count());
            for pair in chain.windows(2) {
                assert!(heap.dominates(pair[1], pair[0]), "{pair:?} over {node:?}");
            }
            assert!(chain.iter().all(|above| heap.dominates(*above, node)));
            assert_eq!(heap.dominator(node), chain.first().copied());
        }
    });
}

#[test]
fn what_goes_with_several_references() {
    every_size(|small| {
        let mut dice = Dice(small.edges.len() as u64 + 1);
        let graph = small.graph();
        let heap = Analysis::new(&graph);
        let reached = small.everything();
        let edges = small.all().flat_map(|node| graph.references(node));
        let mut cut: Vec<Edge> = edges.filter(|_| dice.roll(4) == 0).collect();
        let gone: Vec<usize> = cut.iter().map(|edge| small.index(*edge)).collect();
        let lost = reached & !small.reached(0, |index| gone.contains(&index));
        cut.reverse();
        assert_eq!(heap.freed_by(&cut), small.freed(lost), "{cut:?}");
        let mut by_name = heap.lost_by(&cut);
        by_name.sort_unstable();
        let wanted: Vec<Node> = small.all().filter(|node| lost >> node.0 & 1 == 1).collect();
        assert_eq!(by_name, wanted, "each once: {cut:?}");
    });
}

#[test]
fn references_named_late_are_the_same_graph() {
    let late = Cell::new(0);
    every_size(|small| {
        let mut dice = Dice(small.edges.len() as u64 + 1);
        late.set(late.get() + u64::from(small.late.contains(&true)));
        let mut shuffled = Small { late: vec![true; small.edges.len()], ..small.clone() };
        dice.shuffle(&mut shuffled.edges);
        let (graph, all_late) = (small.graph(), shuffled.graph());
        assert_eq!((graph.edges(), all_late.edges()), (small.edges.len(), small.edges.len()));
        for node in small.all() {
            let targets = |graph: &Graph| graph.references(node).map(|edge| edge.to.0).collect();
            let row = small.edges.iter().filter(|(from, _)| *from == node.0);
            let mut row: Vec<u32> = row.map(|(_, to)| *to).collect();
            let (found, mut any_order): (Vec<u32>, Vec<u32>) =
                (targets(&graph), targets(&all_late));
            assert_eq!(found, row, "{node:?}: in time first, then late, as they were named");
            row.sort_unstable();
            any_order.sort_unstable();
            assert_eq!(any_order, row, "{node:?}: the same, whatever comes when");
        }
    });
    println!("{} with late references", late.get());
    assert!(late.get() > share(0..5_000).end, "too few of the graphs have late references");
}

#[test]
fn islands_are_all_that_is_not_reached() {
    every_size(|small| {
        let graph = small.graph();
        let heap = Analysis::new(&graph);
        let dead = !small.everything() & ((1_u128 << small.nodes) - 1) as u64;
        assert_eq!(heap.unreached(), small.freed(dead));
        let (mut nodes, mut bytes, mut covered) = (0, 0, 0);
        for island in heap.islands(|_| false) {
            let head = 1 << island.head.0;
            assert_eq!(dead & head, head, "{island:?}");
            let own = small.reached_from(head, dead);
            let leading = small.all().filter(|node| {
                dead >> node.0 & 1 == 1 && small.reached_from(1 << node.0, dead) & head != 0
            });
            for node in leading {
                assert_eq!(own >> node.0 & 1, 1, "{node:?} leads to {island:?} from outside");
            }
            let back =
                small.edges.iter().any(|(from, to)| *to == island.head.0 && own >> from & 1 == 1);
            assert_eq!(island.is_cycle, back, "{island:?}");
            assert!(island.size.nodes <= u64::from(own.count_ones()));
            nodes += island.size.nodes;
            bytes += island.size.bytes.0;
            covered |= own;
        }
        assert_eq!(covered, dead);
        assert_eq!((nodes, bytes), (heap.unreached().nodes, heap.unreached().bytes.0));
        let order = |pair: &[Island]| pair[0].size.bytes >= pair[1].size.bytes;
        assert!(heap.islands(|_| false).windows(2).all(order));
    });
}
