//! The driver's numbers, and what of the free memory is promised.

use std::collections::BTreeMap;
use std::time::Duration;

use lowtide_types::Bytes;

use super::amounts::{Amounts, signed, unsigned};
use super::member::MemberId;

/// The memory that is never granted: launches that load code take it, and cannot wait. Of a small device an eighth.
pub const RESERVE: Bytes = Bytes::mib(512);
const RESERVED_PART: u64 = 8;

/// The time by which a free number may be late. A used lease counts on for so long, unless the number shows it.
pub const LATE: Duration = Duration::from_millis(550);

/// The time that a call has to take what was granted, and a second more for each 4 GiB.
const LEASE: Duration = Duration::from_secs(5);
const LEASED_A_SECOND: Bytes = Bytes::gib(4);

/// The largest part of a lease that may be missing in the driver's number when it counts as shown.
const UNSHOWN: Bytes = Bytes::mib(64);

/// The driver's numbers of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFree {
    /// The UUID of the GPU.
    pub uuid: String,
    /// The most that programs can have there.
    pub capacity: Bytes,
    /// The memory that is free.
    pub free: Bytes,
    /// The programs there that do not share, as far as they are known.
    pub others: Vec<Other>,
}

impl DeviceFree {
    /// Returns the memory of it that is never granted.
    pub(super) fn reserve(&self) -> Bytes {
        RESERVE.min(Bytes(self.capacity.0 / RESERVED_PART))
    }
}

/// A program that does not share, and has memory on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// Its process.
    pub pid: u32,
    /// Its command.
    pub command: String,
    /// Its memory there; `None` where the driver does not tell.
    pub bytes: Option<Bytes>,
}

/// Room that was granted.
#[derive(Debug)]
struct Lease {
    member: MemberId,
    ticket: u64,
    room: Amounts,
    /// The free number at which the driver shows that the lease was used, if all leases before it were.
    shown_at: Amounts,
    until: Duration,
    /// The moment at which it was used or ran out.
    ended: Option<Duration>,
}

/// The memory of the devices.
#[derive(Debug, Default)]
pub(super) struct Room {
    pub(super) devices: BTreeMap<String, DeviceFree>,
    leases: Vec<Lease>,
}

impl Room {
    /// Takes the driver's numbers of this moment. Forgets ended leases that they show.
    pub(super) fn read(&mut self, now: Duration, numbers: &[DeviceFree]) {
        self.devices = numbers.iter().map(|it| (it.uuid.clone(), it.clone())).collect();
        let devices = &self.devices;
        let free = |uuid: &str| devices.get(uuid).map_or(0, |device| signed(device.free));
        let is_shown = |lease: &Lease| lease.shown_at.iter().all(|(uuid, at)| free(uuid) <= at);
        let counts = |lease: &Lease| match lease.ended {
            Some(ended) => now < ended + LATE && !is_shown(lease),
            None => true,
        };
        self.leases.retain(counts);
    }

    /// Returns what may be granted now: free, not leased, not in reserve.
    pub(super) fn left(&self) -> Amounts {
        let free = self.devices.values().map(|device| (device.uuid.as_str(), device.free));
        let mut left = Amounts::of(free).minus(&self.leased());
        for (uuid, device) in &self.devices {
            left.put(uuid, left.at(uuid) - signed(device.reserve()));
        }
        left
    }

    /// Returns what is leased and not known to be used.
    pub(super) fn leased(&self) -> Amounts {
        Amounts::sum(self.leases.iter().map(|lease| lease.room.clone()))
    }

    /// Grants room. Returns the time of the lease.
    pub(super) fn lease(
        &mut self,
        now: Duration,
        member: MemberId,
        ticket: u64,
        room: Amounts,
    ) -> Duration {
        let leased = self.leased();
        let mut shown_at = Amounts::default();
        for (uuid, bytes) in room.iter().filter(|(_, bytes)| *bytes > 0) {
            let free = self.devices.get(uuid).map_or(0, |device| signed(device.free));
            let unshown = (bytes / 16).min(signed(UNSHOWN));
            shown_at.put(uuid, free - leased.at(uuid) - bytes + unshown);
        }
        let seconds = unsigned(room.total()).0 / LEASED_A_SECOND.0;
        let time = LEASE + Duration::from_secs(seconds);
        self.leases.push(Lease { member, ticket, room, shown_at, until: now + time, ended: None });
        time
    }

    /// Returns whether a program holds a lease that it has not used.
    pub(super) fn is_lent_to(&self, member: MemberId) -> bool {
        self.leases.iter().any(|lease| lease.member == member && lease.ended.is_none())
    }

    /// Ends a lease that was used.
    pub(super) fn used(&mut self, now: Duration, member: MemberId, ticket: u64) {
        let leases = self.leases.iter_mut().filter(|lease| lease.is_of(member, ticket));
        leases.for_each(|lease| lease.ended = Some(now));
    }

    /// Ends a lease that was not used: nothing was taken.
    pub(super) fn dropped(&mut self, member: MemberId, ticket: u64) {
        self.leases.retain(|lease| !lease.is_of(member, ticket));
    }

    /// Ends the leases of a program that is gone.
    pub(super) fn left_by(&mut self, member: MemberId) {
        self.leases.retain(|lease| lease.member != member);
    }

    /// Ends the leases whose time is over. They count on like used ones: their calls may be taking the memory now.
    pub(super) fn expire(&mut self, now: Duration) {
        let over = self.leases.iter_mut();
        over.filter(|it| it.ended.is_none() && it.until <= now).for_each(|it| it.ended = Some(now));
    }
}

impl Lease {
    fn is_of(&self, member: MemberId, ticket: u64) -> bool {
        self.member == member && self.ticket == ticket && self.ended.is_none()
    }
}
