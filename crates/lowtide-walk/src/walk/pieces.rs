//! What threads have found, put together in the order of the nodes.
//!
//! Each thread walks over a *piece* of the nodes at a time, and finishes in whatever order. A piece is
//! added to the graph once all pieces before it are, by the thread that comes with the next one. So the
//! graph is the same for any number of threads, and few pieces wait.
//!
//! Objects that had no number yet get one here. Some can only be judged by the thread that has the
//! interpreter's lock; their pieces wait for it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lowtide_heap::{GraphBuilder, Node};

use crate::ask::kind::Kind;
use crate::safety::own_memory::OutOfMemory;
use crate::walk::object_table::ObjectTable;

/// An object that a reference leads to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) address: usize,
    pub(crate) kind: Kind,
}

/// What one thread has found about some nodes, which follow each other.
#[derive(Default)]
pub(crate) struct Piece {
    /// Which piece of the range it is.
    pub(crate) number: usize,
    /// By node: what kind of object it is.
    pub(crate) kinds: Vec<Kind>,
    /// By node: where its references end in `targets`.
    pub(crate) ends: Vec<u32>,
    pub(crate) targets: Vec<Node>,
    /// References to objects without a number, in order. Their targets mean nothing yet.
    pub(crate) unknown: Vec<Unknown>,
    /// References whose targets are of another kind because of their holders, in order.
    pub(crate) renames: Vec<Rename>,
}

/// A reference to an object that has no number yet.
pub(crate) struct Unknown {
    /// Its position in `targets`.
    pub(crate) at: u32,
    /// The object, or its address alone if only the calling thread can tell whether it counts.
    pub(crate) object: Result<Seen, usize>,
}

/// A reference whose target is of the kind `to`, if it is of the kind `from` so far.
#[derive(Clone, Copy)]
pub(crate) struct Rename {
    /// Its position in `targets`.
    pub(crate) at: u32,
    pub(crate) from: Kind,
    pub(crate) to: Kind,
}

impl Piece {
    /// Empties it, to be used again.
    pub(crate) fn clear(&mut self, number: usize) {
        self.number = number;
        self.kinds.clear();
        self.ends.clear();
        self.targets.clear();
        self.unknown.clear();
        self.renames.clear();
    }

    fn waits_for_caller(&self) -> bool {
        self.unknown.iter().any(|unknown| unknown.object.is_err())
    }

    /// Removes references by their positions, which are sorted.
    fn remove(&mut self, positions: &[u32]) {
        if positions.is_empty() {
            return;
        }
        let mut to = positions[0] as usize;
        for (at, gone) in positions.iter().enumerate() {
            let next = positions.get(at + 1).map_or(self.targets.len(), |next| *next as usize);
            let stay = *gone as usize + 1..next;
            let count = stay.len();
            self.targets.copy_within(stay, to);
            to += count;
        }
        self.targets.truncate(to);
        let mut before = 0;
        for end in &mut self.ends {
            before += positions[before..].iter().take_while(|gone| *gone < end).count();
            *end -= before as u32;
        }
        let mut before = 0;
        self.renames.retain_mut(|rename| {
            before += positions[before..].iter().take_while(|gone| **gone < rename.at).count();
            let is_gone = positions.get(before) == Some(&rename.at);
            rename.at -= before as u32;
            !is_gone
        });
    }
}

/// Looks at an object that only the calling thread may look at.
pub(crate) type Look<'l> = &'l dyn Fn(usize) -> Option<Seen>;

/// An object that was met for the first time.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) seen: Seen,
    /// References to it that are not explained yet, without its count: that is added when it is asked.
    pub(crate) unexplained: i32,
}

/// The pieces of a range of nodes, put together.
pub(crate) struct Pieces<'w> {
    assembly: Mutex<Assembly<'w>>,
}

struct Assembly<'w> {
    builder: &'w mut GraphBuilder,
    kinds: &'w mut Vec<Kind>,
    /// The first node of the next piece.
    first: Node,
    /// The next piece.
    next: usize,
    waiting: Vec<Piece>,
    spare: Vec<Piece>,
    /// The numbers of new objects in `new`.
    numbers: &'w mut ObjectTable,
    /// The node of the first new object.
    first_new: Node,
    found: Found,
}

/// What was found in a range of nodes.
#[derive(Default)]
pub(crate) struct Found {
    /// New objects, whose nodes follow each other.
    pub(crate) new: Vec<Met>,
    /// Nodes that are of the second kind, if they are of the first so far; in order.
    pub(crate) renames: Vec<(Node, Kind, Kind)>,
}

impl<'w> Pieces<'w> {
    /// Begins with the node `first`. `numbers` is empty.
    pub(crate) fn new(
        builder: &'w mut GraphBuilder,
        kinds: &'w mut Vec<Kind>,
        numbers: &'w mut ObjectTable,
        first: Node,
    ) -> Pieces<'w> {
        let first_new = builder.nodes(0);
        let (waiting, spare, found) = Default::default();
        let assembly =
            Assembly { builder, kinds, first, next: 0, waiting, spare, numbers, first_new, found };
        Pieces { assembly: Mutex::new(assembly) }
    }

    fn assembly(&self) -> MutexGuard<'_, Assembly<'w>> {
        self.assembly.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a piece, and those that waited for it. Returns an empty one. Only the calling thread of
    /// the walk has a `look`.
    pub(crate) fn put(&self, piece: Piece, look: Option<Look<'_>>) -> Result<Piece, OutOfMemory> {
        let mut assembly = self.assembly();
        assembly.waiting.try_reserve(1)?;
        assembly.waiting.push(piece);
        assembly.go_on(look)?;
        Ok(assembly.spare.pop().unwrap_or_default())
    }

    /// Adds what still waits, and returns what was found.
    pub(crate) fn finish(self, look: Look<'_>) -> Result<Found, OutOfMemory> {
        let mut assembly = self.assembly.into_inner().unwrap_or_else(PoisonError::into_inner);
        assembly.go_on(Some(look))?;
        assert!(assembly.waiting.is_empty(), "every piece was added");
        Ok(assembly.found)
    }
}

impl Assembly<'_> {
    fn go_on(&mut self, look: Option<Look<'_>>) -> Result<(), OutOfMemory> {
        while let Some(at) = self.waiting.iter().position(|piece| piece.number == self.next) {
            if look.is_none() && self.waiting[at].waits_for_caller() {
                break;
            }
            let mut piece = self.waiting.swap_remove(at);
            self.add(&mut piece, look)?;
            self.next += 1;
            self.spare.try_reserve(1)?;
            self.spare.push(piece);
        }
        Ok(())
    }

    fn add(&mut self, piece: &mut Piece, look: Option<Look<'_>>) -> Result<(), OutOfMemory> {
        let mut gone = Vec::new();
        for Unknown { at, object } in piece.unknown.drain(..) {
            let address = object.map_or_else(|address| address, |seen| seen.address);
            let index = self.numbers.index(address)?;
            let number = if let Some(number) = self.numbers.number(index) {
                number
            } else {
                let seen = match (object, look) {
                    (Ok(seen), _) => Some(seen),
                    (Err(address), Some(look)) => look(address),
                    (Err(_), None) => None,
                };
                let Some(seen) = seen else {
                    gone.try_reserve(1)?;
                    gone.push(at);
                    continue;
                };
                let number = self.found.new.len() as u32;
                self.found.new.try_reserve(1)?;
                self.found.new.push(Met { seen, unexplained: 0 });
                self.builder.nodes(1);
                self.numbers.fill(index, number);
                number
            };
            self.found.new[number as usize].unexplained -= 1;
            piece.targets[at as usize] = Node(self.first_new.0 + number);
        }
        piece.remove(&gone);
        self.builder.try_reserve(0, piece.targets.len())?;
        self.builder.rows(self.first, &piece.ends, &piece.targets);
        self.kinds.try_reserve(piece.kinds.len())?;
        self.kinds.extend_from_slice(&piece.kinds);
        self.found.renames.try_reserve(piece.renames.len())?;
        let renames = piece.renames.iter();
        self.found.renames.extend(
            renames.map(|Rename { at, from, to }| (piece.targets[*at as usize], *from, *to)),
        );
        self.first.0 += piece.ends.len() as u32;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn piece(number: usize, ends: &[u32], targets: &[u32]) -> Piece {
        Piece {
            number,
            kinds: vec![Kind::Dict; ends.len()],
            ends: ends.to_vec(),
            targets: targets.iter().copied().map(Node).collect(),
            ..Piece::default()
        }
    }

    fn seen(address: usize) -> Seen {
        Seen { address, kind: Kind::Immutable }
    }

    #[test]
    fn references_are_removed_from_rows_and_renames() {
        for gone in 0..1_u32 << 6 {
            let is_gone = |at: u32| gone >> at & 1 == 1;
            let stay = |end: u32| (0..end).filter(|at| !is_gone(*at)).count() as u32;
            let positions: Vec<u32> = (0..6).filter(|at| is_gone(*at)).collect();
            let mut piece = piece(0, &[0, 2, 2, 5, 6], &[10, 11, 12, 13, 14, 15]);
            let rename = |at| Rename { at, from: Kind::Dict, to: Kind::Namespace };
            piece.renames = [1, 2, 5].map(rename).to_vec();
            piece.remove(&positions);
            assert_eq!(piece.ends, [0, 2, 2, 5, 6].map(stay));
            let targets: Vec<Node> =
                (0..6).filter(|at| !is_gone(*at)).map(|at| Node(at + 10)).collect();
            assert_eq!(piece.targets, targets);
            let renames: Vec<u32> =
                [1, 2, 5].into_iter().filter(|at| !is_gone(*at)).map(stay).collect();
            assert_eq!(piece.renames.iter().map(|one| one.at).collect::<Vec<_>>(), renames);
        }
    }

    #[test]
    fn pieces_come_in_any_order_and_new_objects_are_numbered_in_theirs() {
        let mut builder = GraphBuilder::default();
        builder.nodes(4);
        let (mut kinds, mut numbers) = (Vec::new(), ObjectTable::new().unwrap());
        let pieces = Pieces::new(&mut builder, &mut kinds, &mut numbers, Node(0));
        let mut last = piece(1, &[2, 3], &[0, 0, 2]);
        last.unknown = vec![
            Unknown { at: 0, object: Ok(seen(0x2000)) },
            Unknown { at: 1, object: Ok(seen(0x1000)) },
        ];
        assert!(pieces.put(last, None).unwrap().kinds.is_empty());
        let mut first = piece(0, &[3, 4], &[0, 1, 0, 3]);
        first.unknown =
            vec![Unknown { at: 0, object: Err(0x5000) }, Unknown { at: 2, object: Err(0x1000) }];
        first.renames = vec![Rename { at: 2, from: Kind::Immutable, to: Kind::Defaults }];
        let looked = RefCell::new(Vec::new());
        let look = |address| {
            looked.borrow_mut().push(address);
            (address == 0x1000).then(|| seen(address))
        };
        pieces.put(first, None).unwrap();
        let found = pieces.finish(&look).unwrap();
        assert_eq!(looked.into_inner(), [0x5000, 0x1000]);
        let new: Vec<_> = found.new.iter().map(|met| (met.seen.address, met.unexplained)).collect();
        assert_eq!(new, [(0x1000, -2), (0x2000, -1)]);
        assert_eq!(found.renames, [(Node(4), Kind::Immutable, Kind::Defaults)]);
        let rows = (0..4).map(|node| builder.row(Node(node)).iter().map(|to| to.0).collect());
        let rows: Vec<Vec<u32>> = rows.collect();
        assert_eq!(rows, [&[1, 4][..], &[3], &[5, 4], &[2]]);
        assert_eq!((kinds.len(), builder.len()), (4, (6, 6)));
    }
}
