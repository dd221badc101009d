//! The weight of the smallest cut between a source and some sinks: the maximum flow, by Dinic's
//! algorithm, searched backwards from the sinks over referrers.
//!
//! Backwards, because the last search, which does not reach the source, then sees exactly the nodes
//! that every smallest cut leaves on the sinks' side. Those nodes are what we want, and they are few;
//! the other side is the whole heap. Flow is stored only for pairs of ranks that have any: real cuts
//! are small, so almost no reference ever has an entry.

use std::collections::BTreeMap;

use crate::dominators::Sinks;
use crate::indexed::{NEVER, Weighted};
use crate::order::{Order, Rank};

/// One step of a backwards search.
#[derive(Clone, Copy)]
struct BackStep {
    /// The rank that it leads back to.
    from: Rank,
    /// Whether it takes flow back, instead of using a reference.
    undoes: bool,
}

/// A rank on the path that is being searched.
#[derive(Clone, Copy)]
struct OnPath {
    to: Rank,
    /// The position among its back steps that is tried next, or was taken.
    at: usize,
    /// Whether the step that was taken takes flow back.
    undoes: bool,
}

impl OnPath {
    fn new(to: Rank) -> OnPath {
        OnPath { to, at: 0, undoes: false }
    }

    /// The step that was taken from here to the next rank of the path.
    fn step_to(self, next: OnPath) -> BackStep {
        BackStep { from: next.to, undoes: self.undoes }
    }
}

/// In place of a level: the search did not see the rank.
const UNSEEN: u32 = 0;
/// In place of a level: no path leads on from the rank.
const DEAD_END: u32 = u32::MAX;

/// The state of the searches. It is reused: only entries that were written are cleared.
pub(crate) struct Flow {
    /// By rank: the distance from the sinks, which have 1.
    levels: Vec<u32>,
    /// The ranks that have a level, nearest to the sinks first.
    seen: Vec<Rank>,
    /// The flow from one rank to another.
    flows: BTreeMap<(Rank, Rank), u64>,
}

impl Flow {
    pub(crate) fn new(order: &Order) -> Flow {
        Flow { levels: vec![UNSEEN; order.len()], seen: Vec::new(), flows: BTreeMap::new() }
    }

    /// Pushes as much flow as possible from `source`, which dominates the sinks, and returns how
    /// much that is. Afterwards [`seen`](Flow::seen) is the sinks' side of the smallest cut. Returns
    /// `None` if it is more than `most`, or unlimited because a path has no reference that may be
    /// cut.
    pub(crate) fn push(
        &mut self,
        weighted: &Weighted<'_>,
        source: Rank,
        sinks: &Sinks,
        most: u64,
    ) -> Option<u64> {
        self.flows.clear();
        let mut total = 0;
        while self.search(weighted, source, sinks, |flow, from, to| {
            flow.residual(weighted, to, BackStep { from, undoes: false }) > 0
        }) {
            total += self.push_shortest(weighted, source, sinks, most - total)?;
        }
        Some(total)
    }

    /// Sees whatever leads to the sinks over references that may never be cut. Returns whether such
    /// a path begins at the roots.
    pub(crate) fn see_uncuttable(&mut self, weighted: &Weighted<'_>, sinks: &Sinks) -> bool {
        self.flows.clear();
        let is_open = |_: &Flow, from, to| weighted.weight(from, to) == NEVER;
        self.search(weighted, Rank::ROOTS, sinks, is_open)
    }

    /// Returns the ranks that the last search saw.
    pub(crate) fn seen(&self) -> &[Rank] {
        &self.seen
    }

    /// Returns whether the last search saw the rank.
    pub(crate) fn saw(&self, rank: Rank) -> bool {
        self.levels[rank.index()] != UNSEEN
    }

    /// Searches breadth first from the sinks, over references that are open and over flow that can
    /// be taken back. Returns whether it reaches the source.
    fn search(
        &mut self,
        weighted: &Weighted<'_>,
        source: Rank,
        sinks: &Sinks,
        is_open: impl Fn(&Flow, Rank, Rank) -> bool,
    ) -> bool {
        for seen in self.seen.drain(..) {
            self.levels[seen.index()] = UNSEEN;
        }
        for sink in sinks.ranks() {
            self.see(*sink, 1);
        }
        let mut next = 0;
        while let Some(to) = self.seen.get(next).copied() {
            next += 1;
            let level = self.levels[to.index()] + 1;
            for from in weighted.indexed.order.referrers(to) {
                // The cost is asked last: that is what takes time here.
                if self.saw(*from)
                    || sinks.dominate(weighted.indexed.tree, *from)
                    || !is_open(self, *from, to)
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
            let flows = self.flows.range((to, Rank(0))..=(to, Rank(u32::MAX)));
            for ((_, back), _) in flows.filter(|(_, flow)| **flow > 0) {
                if self.levels[back.index()] == UNSEEN {
                    self.levels[back.index()] = level;
                    self.seen.push(*back);
                }
            }
        }
        false
    }

    fn see(&mut self, rank: Rank, level: u32) {
        self.levels[rank.index()] = level;
        self.seen.push(rank);
    }

    /// Pushes flow until no path is left that is as short as the last search's. Returns how much, or
    /// `None` as for [`push`](Flow::push).
    fn push_shortest(
        &mut self,
        weighted: &Weighted<'_>,
        source: Rank,
        sinks: &Sinks,
        most: u64,
    ) -> Option<u64> {
        let mut total = 0;
        let mut path: Vec<OnPath> = Vec::new();
        for sink in sinks.ranks() {
            path.push(OnPath::new(*sink));
            while let Some(last) = path.last_mut() {
                let Some((at, step)) = self.step(weighted, last.to, last.at) else {
                    self.levels[last.to.index()] = DEAD_END;
                    path.pop();
                    continue;
                };
                let is_nearer = self.levels[step.from.index()] == self.levels[last.to.index()] + 1;
                if !is_nearer || self.residual(weighted, last.to, step) == 0 {
                    last.at = at + 1;
                    continue;
                }
                (last.at, last.undoes) = (at, step.undoes);
                path.push(OnPath::new(step.from));
                if step.from != source {
                    continue;
                }
                total += self.push_along(weighted, &mut path)?;
                if total > most {
                    return None;
                }
            }
        }
        Some(total)
    }

    /// Returns the next back step from position `at` on, and its position. First come the
    /// referrers, in order; then flow that can be taken back, whose positions are the ranks it goes
    /// to.
    fn step(&self, weighted: &Weighted<'_>, to: Rank, at: usize) -> Option<(usize, BackStep)> {
        let referrers = weighted.indexed.order.referrers(to);
        if let Some(from) = referrers.get(at) {
            return Some((at, BackStep { from: *from, undoes: false }));
        }
        let first = Rank(u32::try_from(at - referrers.len()).ok()?);
        let ((_, from), _) = self.flows.range((to, first)..=(to, Rank(u32::MAX))).next()?;
        Some((referrers.len() + from.index(), BackStep { from: *from, undoes: true }))
    }

    /// Returns how much more flow the step can take.
    fn residual(&self, weighted: &Weighted<'_>, to: Rank, step: BackStep) -> u64 {
        let flow = |from, to| self.flows.get(&(from, to)).copied().unwrap_or(0);
        if step.undoes {
            return flow(to, step.from);
        }
        match weighted.weight(step.from, to) {
            NEVER => NEVER,
            weight => weight - flow(step.from, to),
        }
    }

    /// Pushes what the whole path can take, and shortens the path to the part that can take more.
    /// Returns how much, or `None` if there is no limit.
    fn push_along(&mut self, weighted: &Weighted<'_>, path: &mut Vec<OnPath>) -> Option<u64> {
        let (mut pushed, mut narrowest) = (NEVER, 0);
        for (at, pair) in path.windows(2).enumerate() {
            let residual = self.residual(weighted, pair[0].to, pair[0].step_to(pair[1]));
            if residual < pushed {
                (pushed, narrowest) = (residual, at);
            }
        }
        if pushed == NEVER {
            return None;
        }
        for pair in path.windows(2) {
            let (from, to) = (pair[1].to, pair[0].to);
            if pair[0].undoes {
                self.flows.entry((to, from)).and_modify(|flow| *flow -= pushed);
            } else {
                *self.flows.entry((from, to)).or_default() += pushed;
            }
        }
        path.truncate(narrowest + 1);
        Some(pushed)
    }
}
