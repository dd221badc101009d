//! Object graphs for any language: which references keep an object alive, and which to cut.
//!
//! A walker visits the objects of a program and adds them to a [`GraphBuilder`]: the references
//! between them, the roots, and the device memory that a few of them hold. An [`Analysis`] of the
//! [`Graph`] then answers why an object is still alive and what would free it:
//!
//! ```
//! use lowtide_heap::{Analysis, CutCost, Edge, GraphBuilder};
//! use lowtide_types::Bytes;
//!
//! // main.runner.model, main.cache[0] and model.owner.model are the same model.
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
//! assert_eq!(paths.len(), 2, "the owner is reached only through the model");
//! assert_eq!(paths[0].nodes().collect::<Vec<_>>(), [main, runner, model]);
//! assert_eq!(heap.retained(runner).bytes, Bytes::ZERO, "the cache holds the model, too");
//! assert_eq!(heap.retained(main).bytes, Bytes::gib(2));
//!
//! let cuts = heap.cuts(&[model], 16, |_| CutCost::Cost(1)).unwrap();
//! let holders: Vec<_> = cuts[0].edges.iter().map(|edge| edge.from).collect();
//! assert_eq!(holders, [runner, cache]);
//! assert_eq!((cuts[0].freed.bytes, cuts[0].freed.nodes), (Bytes::gib(2), 2));
//! assert_eq!(cuts[0].collateral.nodes, 0, "only the model and its owner are lost");
//!
//! // If nothing may be removed from the cache, the cache itself has to go.
//! let cost = |edge: Edge| if edge.from == cache { CutCost::Never } else { CutCost::Cost(1) };
//! let cuts = heap.cuts(&[model], 16, cost).unwrap();
//! assert!(cuts[0].edges.iter().any(|edge| edge.to == cache));
//! assert_eq!(cuts[0].collateral.nodes, 1, "the cache");
//! ```
//!
//! Nothing in this crate recurses, so a graph may be as deep as it is large. Every answer is the
//! same each time: ties are decided by the order in which the walker named nodes and references.

mod analysis;
mod builder;
mod cut;
mod dominators;
mod flow;
mod graph;
mod indexed;
mod islands;
mod lost;
mod order;
mod parallel_reach;
mod paths;
mod reach;

pub use analysis::Analysis;
pub use builder::GraphBuilder;
pub use cut::{Cut, NoCut};
pub use graph::{Edge, Graph, Node, Size};
pub use indexed::CutCost;
pub use islands::Island;
pub use paths::Path;
