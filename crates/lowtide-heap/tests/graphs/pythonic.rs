//! A heap like an interpreter's after its imports: modules, functions with their globals (so that
//! nearly everything reaches nearly everything), classes, instances, lists of lists, and more leaves
//! than all of these. Somewhere in it a model, eight references deep, that a cache holds, too.

use lowtide_heap::{CutCost, Edge, Graph, GraphBuilder, Node};
use lowtide_types::Bytes;

/// What an object is, as far as cutting is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A dict or list that people put things into: its references can be cut.
    Container,
    /// Where the interpreter keeps its modules: never touched.
    Modules,
    /// Functions, tuples, types, instances: what they refer to is theirs.
    Fixed,
}

/// Objects as the interpreter has them: anywhere, in no order.
pub(crate) struct Objects {
    kinds: Vec<Kind>,
    rows: Vec<Vec<u32>>,
    dice: u64,
}

/// The same, walked.
pub(crate) struct Heap {
    pub(crate) graph: Graph,
    pub(crate) kinds: Vec<Kind>,
    /// What we want to be rid of.
    pub(crate) model: Node,
}

impl Heap {
    /// The cost of cutting a reference, as a person would judge it.
    pub(crate) fn cost(&self, edge: Edge) -> CutCost {
        match self.kinds[edge.from.index()] {
            Kind::Container => CutCost::Cost(1),
            Kind::Modules | Kind::Fixed => CutCost::Never,
        }
    }
}

impl Objects {
    fn roll(&mut self, sides: usize) -> usize {
        self.dice ^= self.dice >> 12;
        self.dice ^= self.dice << 25;
        self.dice ^= self.dice >> 27;
        (self.dice.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides
    }

    fn make(&mut self, kind: Kind, row: &[u32]) -> u32 {
        self.kinds.push(kind);
        self.rows.push(row.to_vec());
        self.kinds.len() as u32 - 1
    }

    fn add(&mut self, from: u32, to: u32) {
        self.rows[from as usize].push(to);
    }

    /// A small integer that everybody shares, or a value of one's own.
    fn leaf(&mut self, shared: &[u32]) -> u32 {
        if self.roll(5) > 0 { shared[self.roll(shared.len())] } else { self.make(Kind::Fixed, &[]) }
    }

    fn function(&mut self, globals: u32, shared: &[u32]) -> u32 {
        let names: Vec<u32> = (0..10).map(|_| shared[self.roll(shared.len())]).collect();
        let constants: Vec<u32> = (0..3).map(|_| self.leaf(shared)).collect();
        let (names, constants) =
            (self.make(Kind::Fixed, &names), self.make(Kind::Fixed, &constants));
        let code = self.make(Kind::Fixed, &[names, constants, shared[0], shared[1]]);
        self.make(Kind::Fixed, &[code, globals, shared[2], names])
    }

    /// A class and its dict full of methods.
    fn class(&mut self, globals: u32, base: u32, shared: &[u32]) -> u32 {
        let methods: Vec<u32> = (0..6).map(|_| self.function(globals, shared)).collect();
        let dict = self.make(Kind::Fixed, &methods);
        let class = self.make(Kind::Fixed, &[base, dict]);
        let order = self.make(Kind::Fixed, &[class, base]);
        self.add(class, order);
        class
    }

    fn instance(&mut self, class: u32, fields: &[u32]) -> u32 {
        let dict = self.make(Kind::Container, fields);
        self.make(Kind::Fixed, &[class, dict])
    }

    fn module(&mut self, modules: u32, base: u32, shared: &[u32]) -> (u32, Vec<u32>) {
        let globals = self.make(Kind::Container, &[]);
        let module = self.make(Kind::Fixed, &[globals]);
        self.add(modules, module);
        // `import sys`, and with it everything.
        self.add(globals, modules);
        let classes: Vec<u32> = (0..8).map(|_| self.class(globals, base, shared)).collect();
        let functions: Vec<u32> = (0..12).map(|_| self.function(globals, shared)).collect();
        self.rows[globals as usize].extend(classes.iter().chain(&functions));
        (globals, classes)
    }

    /// A model in `main`, eight references from the root, that a cache elsewhere holds, too.
    fn model(&mut self, main: u32, other: u32, class: u32) -> u32 {
        let storage = self.make(Kind::Fixed, &[]);
        let tensor = self.make(Kind::Fixed, &[storage, class]);
        let model = self.instance(class, &[tensor]);
        let pooling = self.instance(class, &[model]);
        let runner = self.instance(class, &[pooling]);
        self.add(main, runner);
        let entry = self.make(Kind::Fixed, &[model]);
        let entries = self.make(Kind::Container, &[entry]);
        let cache = self.instance(class, &[entries]);
        self.add(other, cache);
        // It knows its runner, and each of a thousand hooks knows it.
        let dict = self.rows[model as usize][1];
        self.add(dict, runner);
        for _ in 0..1000 {
            let hook = self.make(Kind::Fixed, &[model, class]);
            self.add(dict, hook);
        }
        model
    }
}

/// About so many objects, with four references each on average.
pub(crate) fn objects(about: usize, seed: u64) -> (Objects, u32, u32) {
    let mut objects = Objects { kinds: Vec::new(), rows: Vec::new(), dice: seed };
    let shared: Vec<u32> = (0..2000).map(|_| objects.make(Kind::Fixed, &[])).collect();
    let modules = objects.make(Kind::Modules, &[]);
    let interpreter = objects.make(Kind::Fixed, &[modules]);
    let base = objects.make(Kind::Fixed, &[]);
    let known: Vec<(u32, Vec<u32>)> =
        (0..about / 2500).map(|_| objects.module(modules, base, &shared)).collect();
    let (main, classes) = known[0].clone();
    let model = objects.model(main, known[known.len() / 2].0, classes[0]);
    while objects.kinds.len() < about {
        // A list of instances that mostly hold leaves, and sometimes each other.
        let (globals, classes) = &known[objects.roll(known.len())];
        let list = objects.make(Kind::Container, &[]);
        objects.add(*globals, list);
        let class = classes[objects.roll(classes.len())];
        let mut last = objects.leaf(&shared);
        for _ in 0..objects.roll(400) {
            let mut fields = vec![last];
            for _ in 0..objects.roll(44) {
                fields.push(objects.leaf(&shared));
            }
            let instance = objects.instance(class, &fields);
            objects.add(list, instance);
            last = if objects.roll(8) == 0 { instance } else { shared[objects.roll(2000)] };
        }
    }
    (objects, interpreter, model)
}

impl Objects {
    /// As a walker meets them: node after node, each new object when somebody first refers to it.
    pub(crate) fn order(&self, root: u32) -> (Vec<u32>, Vec<u32>) {
        let mut numbers = vec![u32::MAX; self.rows.len()];
        numbers[root as usize] = 0;
        let mut met = vec![root];
        let mut next = 0;
        while let Some(object) = met.get(next).copied() {
            next += 1;
            for to in &self.rows[object as usize] {
                if numbers[*to as usize] == u32::MAX {
                    numbers[*to as usize] = met.len() as u32;
                    met.push(*to);
                }
            }
        }
        (met, numbers)
    }

    /// What a walk says, as fast as it can be said.
    pub(crate) fn build(&self, met: &[u32], numbers: &[u32], model: u32) -> Heap {
        let mut builder = GraphBuilder::default();
        let root = builder.node();
        builder.root(root);
        let (mut made, mut from) = (1, 0);
        for object in met {
            for to in &self.rows[*object as usize] {
                let to = numbers[*to as usize];
                if to == made {
                    builder.node();
                    made += 1;
                }
                builder.edge(Node(from), Node(to));
            }
            from += 1;
        }
        let dict = self.rows[model as usize][1];
        let tensor = self.rows[dict as usize][0];
        let storage = self.rows[tensor as usize][0];
        builder.bytes(Node(numbers[storage as usize]), Bytes::gib(2));
        let kinds = met.iter().map(|object| self.kinds[*object as usize]).collect();
        Heap { graph: builder.finish(), kinds, model: Node(numbers[model as usize]) }
    }
}
