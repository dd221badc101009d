//! How long the answers take on a heap of two million objects, and in how much memory:
//! `cargo run --release -p lowtide-heap --example two_million`

#[path = "../tests/graphs/counting.rs"]
mod counting;
#[path = "../tests/graphs/pythonic.rs"]
mod pythonic;

use std::time::Instant;

use lowtide_heap::{Analysis, Graph, Node};

/// Processor seconds of every step, and the memory at its highest.
struct Watch {
    before: isize,
    highest: usize,
    seconds: f64,
}

impl Watch {
    fn timed<T>(&mut self, what: &str, work: impl FnOnce() -> T) -> T {
        counting::begin();
        let (start, wall) = (processor_seconds(), Instant::now());
        let done = work();
        let (seconds, wall) = (processor_seconds() - start, wall.elapsed().as_secs_f64());
        let highest = counting::highest_above(self.before);
        let mib = highest >> 20;
        println!("{what:<20} {seconds:>6.3} s of {wall:>6.3} s   {mib:>4} MiB at the highest");
        self.seconds += seconds;
        self.highest = self.highest.max(highest);
        done
    }
}

/// What this thread had of a processor: the machine may be busy with other things.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("this is Linux");
    let spent = text.split(' ').next().and_then(|spent| spent.parse::<u64>().ok());
    spent.expect("nanoseconds come first") as f64 / 1e9
}

/// The node that most references lead to.
fn most_shared(graph: &Graph) -> Node {
    let mut counts = vec![0; graph.len()];
    let nodes = (0..graph.len() as u32).map(Node);
    for edge in nodes.clone().flat_map(|node| graph.references(node)) {
        counts[edge.to.index()] += 1;
    }
    nodes.max_by_key(|node| counts[node.index()]).expect("there are nodes")
}

fn main() {
    let about = std::env::args().nth(1).map_or(2_000_000, |count| count.parse().expect("a number"));
    let (objects, root, model) = pythonic::objects(about, 1);
    let (met, numbers) = objects.order(root);
    let mut watch = Watch { before: counting::begin(), highest: 0, seconds: 0.0 };
    let heap = watch.timed("build", || objects.build(&met, &numbers, model));
    let analysis = Analysis::new(&heap.graph);
    let (target, cost) = ([heap.model], |edge| heap.cost(edge));

    watch.seconds = 0.0;
    let path = watch.timed("path", || analysis.path(heap.model)).expect("the model is reached");
    let retained = watch.timed("dominators", || analysis.retained(heap.model));
    let paths = watch.timed("paths", || analysis.paths(heap.model, 5));
    let smallest = watch.timed("smallest cut", || analysis.smallest_cut(&target, 64, cost));
    let cuts = watch.timed("cuts", || analysis.cuts(&target, 64, cost)).expect("there are some");
    let freed = watch.timed("freed by it", || analysis.freed_by(&cuts[0].edges));
    let shared = most_shared(&heap.graph);
    let none = watch.timed("cut off a shared int", || analysis.cuts(&[shared], 64, cost));
    let islands = watch.timed("islands", || analysis.islands().len());

    let (nodes, edges) = (heap.graph.len(), heap.graph.edges());
    println!("all answers          {:>6.3} s", watch.seconds);
    println!("{nodes} nodes, {edges} references, {} bytes a node", watch.highest / nodes);
    println!("{} references deep, {} ways, {islands} islands", path.edges.len(), paths.len());
    println!("retained by the model: {retained:?}, freed: {freed:?}");
    println!("smallest: {smallest:?}\nto choose from: {cuts:?}\nshared: {none:?}");
}
