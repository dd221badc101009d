//! What an earlier helper left unfinished.
//!
//! | asked | state now | what is done |
//! |---|---|---|
//! | to suspend | running | nothing: it is forgotten |
//! | to suspend | locked | it is unlocked: nobody waits for the rest |
//! | to suspend | off the device | it stays so |
//! | to resume | off the device | it comes back if there is room, else it stays so |
//! | to resume | locked | it is unlocked |
//!
//! A driver that is still at work in the target answers when it is done; the state counts that it then has.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_proto::helper::{ProcessState, Refusal, Resume};

use crate::operation::journal::{Asked, Record};
use crate::operation::lock_table::{Exclusive, Operation, Resource};
use crate::operation::service::{Journaled, Service};
use crate::process::handle;

/// The pause between two looks at a process that is stopped: the driver's calls would hang.
const PAUSE: Duration = Duration::from_millis(50);
/// The time in which a process that was asked to come back gets its devices.
const LIMIT: Duration = Duration::from_secs(900);
/// The number of looks at a process whose state changes while it is looked at.
const LOOKS: usize = 3;

/// Finishes what was begun, each process in a thread of its own. Questions about these processes wait.
pub(crate) fn begin(service: &Arc<Service>) {
    for record in service.journal.all() {
        let (service, operation) = (Arc::clone(service), Operation::new(record.target));
        let pid = record.target.pid;
        let own = BTreeSet::from([Resource::Process(pid)]);
        // Nothing else is under way yet.
        let Ok(exclusive) = service.lock_table.take(own, &operation, Instant::now()) else {
            continue;
        };
        let started = thread::Builder::new().name(format!("recovery {pid}")).spawn(move || {
            finish(&service, &record, &operation, exclusive);
        });
        if let Err(error) = started {
            tracing::warn!(%error, pid, "what was begun is left to the next helper");
        }
    }
}

fn finish(service: &Service, record: &Record, operation: &Arc<Operation>, exclusive: Exclusive) {
    let pid = record.target.pid;
    // The process can stay so for as long as its user wants. It ends or goes on.
    while handle::is_stopped(pid) {
        thread::sleep(PAUSE);
    }
    let mut journaled = Journaled::new(service, operation, record.clone());
    for _ in 0..LOOKS {
        let state = service.find(record.target).and_then(|_| service.driver.state(pid));
        let done = match state {
            Ok(ProcessState::Running)
            | Err(Refusal::Ended { .. } | Refusal::NotOnDevice { .. }) => {
                service.journal.remove(record.target);
                Ok(())
            }
            Ok(ProcessState::Locked) => journaled.bring_back(),
            Ok(ProcessState::Checkpointed) => match record.asked {
                Asked::Suspend => {
                    journaled.is_suspended();
                    Ok(())
                }
                Asked::Resume => {
                    drop(exclusive);
                    return bring_back(service, record, operation);
                }
            },
            // Nothing can be done; the record says what it was.
            Ok(ProcessState::Failed | ProcessState::Unknown) | Err(_) => Ok(()),
        };
        match done {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, pid, "what was begun is not finished"),
        }
    }
}

fn bring_back(service: &Service, record: &Record, operation: &Arc<Operation>) {
    let target = record.target;
    let ask = Resume { target, needs: Vec::new(), maps: Vec::new(), wait_ms: 0, limit_ms: 0 };
    if let Err(error) = service.resume(&ask, operation, Instant::now() + LIMIT) {
        tracing::info!(%error, pid = target.pid, "it stays suspended");
        Journaled::new(service, operation, record.clone()).is_suspended();
    }
}
