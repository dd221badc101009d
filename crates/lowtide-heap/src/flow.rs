//! How much must be cut between a source and some sinks: the largest flow, pushed along shortest
//! ways that are looked for from the sinks backwards (Dinic's algorithm over referrers).
//!
//! Backwards, because then the last search, the one that does not arrive, sees exactly the nodes
//! that every smallest cut leaves on the sinks' side. These are what we want to know, and they are
//! few, while the other side is the whole heap. Flow is kept for pairs of nodes that have any:
//! real cuts are small, so almost no reference ever has an entry.

use std::collections::BTreeMap;

use crate::graph::Edge;
use crate::ground::{Class, NEVER, Priced, Sinks};
use crate::order::Order;

/// A step of a search: from whom we come if we go backwards.
#[derive(Clone, Copy)]
struct Step {
    from: u32,
    /// Not over a reference: by taking flow back.
    undo: bool,
}

/// A number on the way that is being looked for.
#[derive(Clone, Copy)]
struct Way {
    to: u32,
    /// Which of its steps backwards is looked at, or was taken.
    at: usize,
    /// Whether it was taken by taking flow back.
    undo: bool,
}

impl Way {
    fn to(to: u32) -> Way {
        Way { to, at: 0, undo: false }
    }

    fn taken(self, from: Way) -> Step {
        Step { from: from.to, undo: self.undo }
    }
}

/// In place of a level: not seen.
const UNSEEN: u32 = 0;
/// In place of a level: no way on from here.
const LOST: u32 = u32::MAX;

/// A search's memory, used again and again: it is cleared where it was written.
pub(crate) struct Flow {
    /// By number: steps from the sinks, which have 1.
    levels: Vec<u32>,
    /// Whatever has a level, nearest to the sinks first.
    seen: Vec<u32>,
    /// How much flows from one number to another.
    flows: BTreeMap<(u32, u32), u64>,
}

impl Flow {
    pub(crate) fn new(order: &Order) -> Flow {
        Flow { levels: vec![UNSEEN; order.len()], seen: Vec::new(), flows: BTreeMap::new() }
    }

    /// Pushes all that goes from `source`, which dominates the sinks: how much, and the last search
    /// has then seen the sinks' side. None, where more than `most` goes, or where there is no limit
    /// because a way has nothing on it that may be cut.
    pub(crate) fn push<C: Fn(Edge) -> Class>(
        &mut self,
        priced: &Priced<'_, C>,
        source: u32,
        sinks: &Sinks,
        most: u64,
    ) -> Option<u64> {
        self.flows.clear();
        let mut total = 0;
        while self.search(priced, source, sinks, |flow, from, to| {
            flow.room(priced, to, Step { from, undo: false }) > 0
        }) {
            total += self.push_shortest(priced, source, sinks, most - total)?;
        }
        Some(total)
    }

    /// Sees whatever leads to the sinks over references that may never be cut; whether the roots
    /// do.
    pub(crate) fn never<C: Fn(Edge) -> Class>(
        &mut self,
        priced: &Priced<'_, C>,
        sinks: &Sinks,
    ) -> bool {
        self.flows.clear();
        self.search(priced, 0, sinks, |_, from, to| priced.weight(from, to) == NEVER)
    }

    /// What the last search saw.
    pub(crate) fn seen(&self) -> &[u32] {
        &self.seen
    }

    /// Whether the last search saw it.
    pub(crate) fn saw(&self, number: u32) -> bool {
        self.levels[number as usize] != UNSEEN
    }

    /// Breadth first from the sinks, over references that are `open` and over flow that can be
    /// taken back; whether it arrives at the source.
    fn search<C: Fn(Edge) -> Class>(
        &mut self,
        priced: &Priced<'_, C>,
        source: u32,
        sinks: &Sinks,
        open: impl Fn(&Flow, u32, u32) -> bool,
    ) -> bool {
        for seen in self.seen.drain(..) {
            self.levels[seen as usize] = UNSEEN;
        }
        for sink in sinks.numbers() {
            self.see(*sink, 1);
        }
        let mut next = 0;
        while let Some(to) = self.seen.get(next).copied() {
            next += 1;
            let level = self.levels[to as usize] + 1;
            for from in priced.ground.order.referrers(to) {
                // Whoever is seen is not asked about again: prices are what takes time here.
                if self.saw(*from)
                    || sinks.dominate(priced.ground.tree, *from)
                    || !open(self, *from, to)
                {
                    continue;
                }
                self.see(*from, level);
                if *from == source {
                    return true;
                }
            }
            if self.flows.is_empty() {
                continue;
            }
            let flows = self.flows.range((to, 0)..=(to, u32::MAX));
            for ((_, back), _) in flows.filter(|(_, flow)| **flow > 0) {
                if self.levels[*back as usize] == UNSEEN {
                    self.levels[*back as usize] = level;
                    self.seen.push(*back);
                }
            }
        }
        false
    }

    fn see(&mut self, number: u32, level: u32) {
        self.levels[number as usize] = level;
        self.seen.push(number);
    }

    /// Pushes until no way is left that is as short as the last search's.
    fn push_shortest<C: Fn(Edge) -> Class>(
        &mut self,
        priced: &Priced<'_, C>,
        source: u32,
        sinks: &Sinks,
        most: u64,
    ) -> Option<u64> {
        let mut total = 0;
        let mut path: Vec<Way> = Vec::new();
        for sink in sinks.numbers() {
            path.push(Way::to(*sink));
            while let Some(way) = path.last_mut() {
                let Some((at, step)) = self.step(priced, way.to, way.at) else {
                    self.levels[way.to as usize] = LOST;
                    path.pop();
                    continue;
                };
                let nearer = self.levels[step.from as usize] == self.levels[way.to as usize] + 1;
                if !nearer || self.room(priced, way.to, step) == 0 {
                    way.at = at + 1;
                    continue;
                }
                (way.at, way.undo) = (at, step.undo);
                path.push(Way::to(step.from));
                if step.from != source {
                    continue;
                }
                total += self.push_along(priced, &mut path)?;
                if total > most {
                    return None;
                }
            }
        }
        Some(total)
    }

    /// The next step backwards, and where it is: at first over the referrers, in order; from there
    /// on over flow, and to whom it goes is how far on.
    fn step<C>(&self, priced: &Priced<'_, C>, to: u32, at: usize) -> Option<(usize, Step)> {
        let referrers = priced.ground.order.referrers(to);
        if let Some(from) = referrers.get(at) {
            return Some((at, Step { from: *from, undo: false }));
        }
        let first = u32::try_from(at - referrers.len()).ok()?;
        let ((_, from), _) = self.flows.range((to, first)..=(to, u32::MAX)).next()?;
        Some((referrers.len() + *from as usize, Step { from: *from, undo: true }))
    }

    /// How much the step can still take.
    fn room<C: Fn(Edge) -> Class>(&self, priced: &Priced<'_, C>, to: u32, step: Step) -> u64 {
        let flow = |from, to| self.flows.get(&(from, to)).copied().unwrap_or(0);
        if step.undo {
            return flow(to, step.from);
        }
        match priced.weight(step.from, to) {
            NEVER => NEVER,
            weight => weight - flow(step.from, to),
        }
    }

    /// Pushes what the whole path can take, and leaves of the path what can take more. How much;
    /// none, if there is no limit.
    fn push_along<C: Fn(Edge) -> Class>(
        &mut self,
        priced: &Priced<'_, C>,
        path: &mut Vec<Way>,
    ) -> Option<u64> {
        let (mut pushed, mut narrowest) = (NEVER, 0);
        for (at, pair) in path.windows(2).enumerate() {
            let room = self.room(priced, pair[0].to, pair[0].taken(pair[1]));
            if room < pushed {
                (pushed, narrowest) = (room, at);
            }
        }
        if pushed == NEVER {
            return None;
        }
        for pair in path.windows(2) {
            let (from, to) = (pair[1].to, pair[0].to);
            if pair[0].undo {
                self.flows.entry((to, from)).and_modify(|flow| *flow -= pushed);
            } else {
                *self.flows.entry((from, to)).or_default() += pushed;
            }
        }
        path.truncate(narrowest + 1);
        Some(pushed)
    }
}
