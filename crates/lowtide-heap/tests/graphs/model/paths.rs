//! Ways to a node: really there, shortest, and one for each holder where ways part.

use lowtide_heap::{Analysis, Node, Path};

use super::naive::{Small, each};

fn every_size(check: impl Fn(&Small)) {
    each(0..20_000, (5, 9), Small::roll, &check);
    each(20_000..26_000, (12, 30), Small::roll, &check);
    each(26_000..27_000, (50, 100), Small::roll, &check);
}

/// Steps from a root to each node, around some nodes.
fn distances(small: &Small, without: u64) -> Vec<Option<usize>> {
    let mut steps = vec![None; small.nodes as usize];
    for root in small.roots.iter().filter(|root| without >> **root & 1 == 0) {
        steps[*root as usize] = Some(0);
    }
    for _ in 0..small.nodes {
        for (from, to) in &small.edges {
            let (Some(step), 0) = (steps[*from as usize], without >> to & 1) else { continue };
            let known = steps[*to as usize];
            steps[*to as usize] = Some(known.map_or(step + 1, |known: usize| known.min(step + 1)));
        }
    }
    steps
}

fn check_path(small: &Small, path: &Path, to: Node) {
    assert!(small.roots.contains(&path.root.0));
    let nodes: Vec<Node> = path.nodes().collect();
    assert_eq!(nodes.last(), Some(&to));
    for (edge, pair) in path.edges.iter().zip(nodes.windows(2)) {
        small.index(*edge);
        assert_eq!((edge.from, edge.to), (pair[0], pair[1]));
    }
    let twice = nodes.iter().filter(|node| nodes.iter().filter(|other| other == node).count() > 1);
    assert_eq!(twice.count(), 0, "{path:?}");
}

#[test]
fn a_path_is_a_shortest_one() {
    every_size(|small| {
        let graph = small.graph();
        let heap = Analysis::new(&graph);
        for (node, steps) in small.all().zip(distances(small, 0)) {
            let path = heap.path(node);
            assert_eq!(path.as_ref().map(|path| path.edges.len()), steps, "{node:?}");
            if let Some(path) = path {
                check_path(small, &path, node);
                assert_eq!(heap.paths(node, 1), [path]);
            }
            assert_eq!(heap.paths(node, 0), []);
        }
    });
}

/// The holders of a node, and how long the way over each is: those reached around the node.
fn holders(small: &Small, node: Node) -> Vec<(Option<Node>, usize)> {
    let around = distances(small, 1 << node.0);
    let mut holders: Vec<(Option<Node>, usize)> = small
        .all()
        .filter(|from| small.edges.contains(&(from.0, node.0)))
        .filter_map(|from| Some((Some(from), around[from.index()]? + 1)))
        .collect();
    if small.roots.contains(&node.0) {
        holders.push((None, 0));
    }
    holders
}

#[test]
fn where_ways_part_there_is_one_for_each_holder() {
    every_size(|small| {
        let graph = small.graph();
        let heap = Analysis::new(&graph);
        for node in small.all() {
            let (mut at, mut tail) = (node, vec![node]);
            let mut wanted = loop {
                match holders(small, at)[..] {
                    [(Some(only), _)] => {
                        at = only;
                        tail.push(at);
                    }
                    _ => break holders(small, at),
                }
            };
            wanted.sort_by_key(|(_, steps)| *steps);
            let all = heap.paths(node, 1000);
            assert_eq!(all.len(), wanted.len(), "{node:?}");
            let mut seen = Vec::new();
            for (path, (_, steps)) in all.iter().zip(&wanted) {
                check_path(small, path, node);
                assert_eq!(path.edges.len(), steps + tail.len() - 1, "{node:?} {path:?}");
                let nodes: Vec<Node> = path.nodes().collect();
                let (front, back) = nodes.split_at(nodes.len() - tail.len());
                assert!(back.iter().rev().eq(&tail), "{node:?} {path:?}");
                let holder = front.last().copied();
                assert!(wanted.contains(&(holder, *steps)) && !seen.contains(&holder));
                seen.push(holder);
            }
            for most in 2..wanted.len() {
                assert_eq!(heap.paths(node, most), all[..most], "the nearest of them");
            }
        }
    });
}
