//! Releases that are under way: a caller that asks for the same one gets its receipt.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

use lowtide_types::{Receipt, RungName};

use super::request::{Logging, Request};
use crate::fork::ForkGuard;
use crate::sync::unpoisoned;

/// The releases of a releaser that have not ended: each climbs, or waits for the gate or its turn.
#[derive(Default)]
pub(crate) struct Flights {
    list: Mutex<Vec<Arc<Flight>>>,
    landed: Condvar,
    /// No lock is touched in another process.
    made_in: ForkGuard,
}

struct Flight {
    request: Request,
    /// The names of its rungs. They are code of the caller, and not asked with the lock held.
    names: Vec<RungName>,
    /// Set when the release has ended; never, if it panicked.
    receipt: OnceLock<Arc<Receipt>>,
}

/// A release of this caller. Dropping it ends the flight, also when its climb panicked.
pub(crate) struct Flying<'a> {
    flights: &'a Flights,
    flight: Arc<Flight>,
}

impl Flights {
    /// Begins a release.
    ///
    /// # Errors
    /// The receipt of the same release, if that was under way; waits for its end.
    pub(crate) fn begin(&self, request: Request) -> Result<Flying<'_>, Arc<Receipt>> {
        let names = request.ladder.names();
        let flight = Arc::new(Flight { request, names, receipt: OnceLock::new() });
        let mut list = self.list();
        while let Some(same) = list.iter().find(|other| other.answers(&flight)).cloned() {
            while list.iter().any(|other| Arc::ptr_eq(other, &same)) {
                list = unpoisoned(self.landed.wait(list));
            }
            // Without the lock: the last reference to the other drops rungs of its caller.
            drop(list);
            if let Some(receipt) = same.receipt.get() {
                return Err(Arc::clone(receipt));
            }
            drop(same);
            list = self.list();
        }
        list.push(Arc::clone(&flight));
        drop(list);
        Ok(Flying { flights: self, flight })
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Flight>>> {
        unpoisoned(self.list.lock())
    }
}

impl Flight {
    fn answers(&self, other: &Flight) -> bool {
        self.request.is_like(&other.request) && self.names == other.names
    }
}

impl Flying<'_> {
    pub(crate) fn request(&self) -> &Request {
        &self.flight.request
    }

    /// Ends the release with its receipt, for everybody who waits for it. Returns the receipt, and what
    /// is written to the log.
    pub(crate) fn land(self, receipt: Receipt) -> (Arc<Receipt>, Logging) {
        let receipt = Arc::clone(self.flight.receipt.get_or_init(|| Arc::new(receipt)));
        let logging = self.flight.request.logging;
        (receipt, logging)
    }
}

impl Drop for Flying<'_> {
    fn drop(&mut self) {
        if !self.flights.made_in.is_inherited() {
            self.flights.list().retain(|flight| !Arc::ptr_eq(flight, &self.flight));
            self.flights.landed.notify_all();
        }
    }
}
