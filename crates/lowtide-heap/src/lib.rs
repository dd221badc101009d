//! Object graphs, language-neutral: who holds what, and which references to cut.
//!
//! Somebody walks the objects of a program and tells a [`GraphBuilder`] who refers to whom, which
//! objects are alive by themselves, and which few of them hold device memory. An [`Analysis`] of the
//! [`Graph`] says why something is still there and what would free it:
//!
//! ```
//! use lowtide_types::Bytes;
//! use lowtide_heap::{Analysis, Class, Edge, GraphBuilder};
//!
//! // main.runner.model and main.cache[0] are the same model; so is model.owner.model.
//! let mut builder = GraphBuilder::default();
//! let [main, runner, cache, model, owner] = std::array::from_fn(|_| builder.node());
//! builder.edge(main, runner);
//! builder.edge(main, cache);
//! builder.edge(runner, model);
//! builder.edge(cache, model);
//! builder.edge(model, owner);
//! builder.edge(owner, model);
//! builder.bytes(model, Bytes::gib(2));
//! builder.root(main);
//! let graph = builder.finish();
//!
//! let heap = Analysis::new(&graph);
//! let paths = heap.paths(model, 5);
//! assert_eq!(paths.len(), 2, "the model's owner is reached only through the model");
//! assert_eq!(paths[0].nodes().collect::<Vec<_>>(), [main, runner, model]);
//! assert_eq!(heap.retained(runner).bytes, Bytes::ZERO, "the cache holds it, too");
//! assert_eq!(heap.retained(main).bytes, Bytes::gib(2));
//!
//! let cut = heap.smallest_cut(&[model], 16, |_| Class::Cuttable(1)).unwrap();
//! let holders: Vec<_> = cut.edges.iter().map(|edge| edge.from).collect();
//! assert_eq!(holders, [runner, cache]);
//! assert_eq!((cut.freed.bytes, cut.freed.nodes), (Bytes::gib(2), 2));
//! assert_eq!(cut.beside.nodes, 0, "nothing goes but the model and its owner");
//!
//! // Where nobody may touch what is in the cache, the cache has to go.
//! let class = |edge: Edge| if edge.from == cache { Class::Never } else { Class::Cuttable(1) };
//! let cut = heap.smallest_cut(&[model], 16, class).unwrap();
//! assert!(cut.edges.iter().any(|edge| edge.to == cache));
//! assert_eq!(cut.beside.nodes, 1, "the cache itself");
//! ```
//!
//! Nothing in here recurs, so a graph may be as deep as it is large. Every answer is the same each
//! time: ties go to what the walker named first.

mod analysis;
mod cut;
mod dead;
mod dominators;
mod flow;
mod graph;
mod ground;
mod hubs;
mod lost;
mod marks;
mod order;
mod paths;
mod reach;
mod tree;

pub use analysis::Analysis;
pub use cut::{Cut, NoCut};
pub use dead::Island;
pub use graph::{Edge, Graph, GraphBuilder, Node};
pub use ground::Class;
pub use paths::Path;
pub use tree::Freed;
