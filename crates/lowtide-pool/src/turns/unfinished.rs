//! The rest of a sleep: tags that are asleep and still have memory on the device.
//!
//! A sleep that fails brings back what has left. Where that is refused, too (the room is taken by now), the
//! tag is asleep: some of its pages are in backups, the others on the device. The next sleep takes these.
//! It does not wake the tag for that, because a full device has no room to wake it.

use std::sync::Arc;

use lowtide_types::{Phase, SleepPolicy, SleepReport};

use crate::Result;
use crate::copy::carriers::Carriers;
use crate::lock::limit::Limit;
use crate::pool::Pool;
use crate::state::State;
use crate::state::room::RoomId;
use crate::state::tag::{Scope, Tag};
use crate::turns::Turn;
use crate::turns::sleep_part::SleepPart;
use crate::turns::wake_part::{WakePart, without};

impl Pool {
    /// Takes away what sleeping tags still have on the device. On failure they are asleep as before, and
    /// nothing is lost.
    pub(crate) fn finish_sleep(&self, tags: &[Tag], limit: Limit<'_>) -> Result<SleepReport> {
        if tags.is_empty() {
            return Ok(SleepReport::default());
        }
        let Some(mut turn) = self.begin_turn(Scope::Tags(tags), Phase::Asleep, limit)? else {
            return Ok(SleepReport::default());
        };
        let _change = self.shared.monitor.change("the rest of a sleep");
        let (all, policy): (Vec<usize>, _) = ((0..turn.tags.len()).collect(), &self.shared.policy);
        let rooms = self.state()?.plan_wake(&turn, &all, policy);
        let outcome = self.take_rest(&mut turn, &rooms, limit);
        if outcome.is_err() {
            // What its streams were given keeps pages pinned until they are waited for.
            let settled = turn.carriers.as_ref().map_or(Ok(()), Carriers::settle);
            if let Err(error) = settled {
                tracing::warn!(%error, "work of a failed sleep may keep pages pinned for now");
            }
        }
        let mut state = self.state()?;
        for room in &rooms {
            state.stay_asleep(room);
        }
        drop(state);
        Ok(SleepReport { tags: all.len(), ..outcome? })
    }

    fn take_rest(
        &self,
        turn: &mut Turn<'_>,
        rooms: &[WakePart],
        limit: Limit<'_>,
    ) -> Result<SleepReport> {
        rooms.iter().try_for_each(WakePart::clear_the_way)?;
        let parts = self.state()?.plan_rest(turn, rooms);
        self.apply_sleep(turn, &parts, limit)
    }
}

impl State {
    /// Lists tags that are asleep and still have memory on the device, which could not be taken away.
    pub(crate) fn unfinished(&self, scope: Scope<'_>) -> Result<Vec<Tag>> {
        let mut tags = self.tags.of(scope)?;
        tags.retain(|tag| {
            let mapped = |room: RoomId| self.rooms[room].arena.mapped() > 0;
            self.tags[*tag].phase() == Phase::Asleep && RoomId::of_tag(*tag).into_iter().any(mapped)
        });
        Ok(tags)
    }

    fn plan_rest(&self, turn: &Turn<'_>, rooms: &[WakePart]) -> Vec<SleepPart> {
        let plan = |room: &WakePart| {
            let (tag, live) = (&turn.tags[room.turning], self.rooms[room.room].arena.live_pages());
            let left = without(live.clone(), &room.kept);
            SleepPart {
                turning: room.turning,
                room: room.room,
                name: Arc::clone(&self.tags[tag.tag].name),
                saves: tag.policy == SleepPolicy::Offload,
                reservation: room.reservation.clone(),
                chunks: room.kept.clone(),
                pages: without(live, &left),
                left,
            }
        };
        rooms.iter().map(plan).collect()
    }
}
