//! What each thread of a copy does, until the hand-over says that nothing will come.
//!
//! The loops are generic over the work itself, so that `lowtide-models` runs the same loops.
#![allow(unreachable_pub, reason = "public for lowtide-models, which compiles this file, too")]

use std::collections::VecDeque;

use crate::Result;
use crate::copy::handover::{Handover, Job, LaneRoom, Load, Staged, ToCopy, ToSend, Way};

/// The work of a copy: what its threads do to memory, and whom they tell.
pub trait Haul<D, S, B> {
    /// A copy in flight.
    type Sent;

    /// Returns how many pieces the lane may have in flight now.
    fn room(&self) -> LaneRoom;
    /// Fails where the copy is to stop.
    fn go_on(&self) -> Result<()>;
    /// Makes a staging buffer.
    fn buffer(&self) -> Result<B>;
    /// Gives a copy between the device and a buffer, or a direct piece's memory, to the driver.
    fn send(&self, load: &Load<D, S, B>) -> Result<Self::Sent>;
    /// Waits until such a copy has arrived.
    fn wait(&self, load: &Load<D, S, B>, sent: Self::Sent) -> Result<()>;
    /// Copies a part between a buffer and pages of the host.
    fn copy(&self, job: &Job<S, B>, part: usize) -> Result<()>;
    /// Tells that a direct piece has arrived.
    fn direct_arrived(&self, direct: &D);
    /// Tells that a staged piece has arrived.
    fn staged_arrived(&self, staged: &S);
}

/// Runs a thread that speaks with the driver, until nothing will come or its lane takes no more.
///
/// # Errors
/// What the work refused.
pub fn drive<D, S: Staged, B: Clone, H: Haul<D, S, B>>(
    handover: &Handover<D, S, B>,
    work: &H,
) -> Result<()> {
    let mut in_flight = VecDeque::<(Load<D, S, B>, H::Sent)>::new();
    loop {
        if let Some(next) = handover.next_to_send(in_flight.len(), work.room()) {
            work.go_on()?;
            let load = match next {
                ToSend::Load(load) => load,
                ToSend::Begin(staged) => Load::Staged(Job::new(staged, work.buffer()?)),
            };
            let sent = work.send(&load)?;
            in_flight.push_back((load, sent));
            continue;
        }
        let Some((load, sent)) = in_flight.pop_front() else { return Ok(()) };
        work.wait(&load, sent)?;
        match (load, handover.way()) {
            (Load::Direct(direct), _) => work.direct_arrived(&direct),
            (Load::Staged(job), Way::Out) => handover.share(&job, 0),
            (Load::Staged(job), Way::In) => {
                handover.emptied(&job.buffer);
                work.staged_arrived(&job.staged);
            }
        }
    }
}

/// Runs a thread that copies between buffers and pages of the host, until nothing will come.
///
/// # Errors
/// What the work refused.
pub fn copy<D, S: Staged, B: Clone>(
    handover: &Handover<D, S, B>,
    work: &impl Haul<D, S, B>,
) -> Result<()> {
    while let Some(next) = handover.next_to_copy() {
        work.go_on()?;
        let (job, part) = match next {
            ToCopy::Part(job, part) => (job, part),
            ToCopy::Begin(staged) => {
                let job = Job::new(staged, work.buffer()?);
                handover.share(&job, 1);
                (job, 0)
            }
        };
        work.copy(&job, part)?;
        match handover.way() {
            Way::Out if job.copied_one() => {
                handover.emptied(&job.buffer);
                work.staged_arrived(&job.staged);
            }
            Way::In if job.copied_one() => handover.filled(job),
            Way::Out | Way::In => {}
        }
    }
    Ok(())
}
