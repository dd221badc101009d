//! What was begun, written down before each step.
//!
//! A helper can be killed at any moment. The driver's work goes on in the target, so the next helper needs to
//! know only whom it was about and what was asked for; the driver knows the rest.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use lowtide_device::private_files::{PrivateFileError, PrivateFolder};
use lowtide_proto::helper::{DeviceBytes, Refusal, Step, Target};
use serde::{Deserialize, Serialize};

use crate::operation::lock_table::lock;

/// The most bytes that a journal has.
const MOST: u64 = 16 << 20;

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asked {
    /// To take the process off the device.
    Suspend,
    /// To bring it back.
    Resume,
}

/// A process that is suspended, or on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The process.
    pub target: Target,
    /// What was asked for.
    pub asked: Asked,
    /// The step that was begun last; `None` if the process is suspended and nothing is under way.
    pub step: Option<Step>,
    /// The memory that must be free before it can come back, by device.
    pub needs: Vec<DeviceBytes>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    boot: String,
    records: Vec<Record>,
}

impl Content {
    fn records_of(self, boot: &str) -> Vec<Record> {
        if self.boot == boot { self.records } else { Vec::new() }
    }
}

/// The journal of this helper.
#[derive(Debug)]
pub(crate) struct Journal {
    /// The reason instead, where there is none: then nothing is begun, and what is suspended comes back.
    pub(crate) folder: Result<PrivateFolder, String>,
    name: String,
    boot: String,
    records: Mutex<BTreeMap<Target, Record>>,
    /// The file does not say what `records` says.
    is_behind: AtomicBool,
    writes: AtomicU32,
    /// The numbers of the writes that fail as on a full disk, for tests.
    refused_writes: Vec<u32>,
}

impl Journal {
    /// Reads the journal that an earlier helper left. One of another boot is empty: its processes are gone. One
    /// that cannot be read is kept under another name, for a person or another version.
    pub(crate) fn open(
        folder: PrivateFolder,
        name: String,
        refused_writes: Vec<u32>,
    ) -> Result<Journal, PrivateFileError> {
        let boot = boot();
        let records = match read(&folder, &name)? {
            Ok(content) => content.records_of(&boot),
            Err(Unreadable { error, bytes }) => {
                tracing::warn!(%error, "the journal cannot be read, and is kept aside");
                folder.replace(&aside(&name), &bytes)?;
                Vec::new()
            }
        };
        let records = records.into_iter().map(|record| (record.target, record)).collect();
        let (folder, records) = (Ok(folder), Mutex::new(records));
        Ok(Journal {
            folder,
            name,
            boot,
            records,
            refused_writes,
            ..Journal::nowhere(String::new())
        })
    }

    /// Makes a journal that cannot be written, for this reason.
    pub(crate) fn nowhere(why: String) -> Journal {
        Journal {
            folder: Err(why),
            name: String::new(),
            boot: String::new(),
            records: Mutex::default(),
            is_behind: AtomicBool::new(false),
            writes: AtomicU32::new(0),
            refused_writes: Vec::new(),
        }
    }

    /// Returns all records.
    pub(crate) fn all(&self) -> Vec<Record> {
        lock(&self.records).values().cloned().collect()
    }

    /// Returns the memory that must be free before a process can come back; empty if it is not written down.
    pub(crate) fn needs_of(&self, target: Target) -> Vec<DeviceBytes> {
        lock(&self.records).get(&target).map(|record| record.needs.clone()).unwrap_or_default()
    }

    /// Writes down a record in the place of the process's last one, before a process is locked.
    ///
    /// # Errors
    /// [`Refusal::NoJournal`]. What is not written down is not begun.
    pub(crate) fn write(&self, record: &Record) -> Result<(), Refusal> {
        let mut records = lock(&self.records);
        let before = records.insert(record.target, record.clone());
        let written = self.store(&records);
        if written.is_err() {
            match before {
                Some(before) => records.insert(before.target, before),
                None => records.remove(&record.target),
            };
        }
        written.map_err(|why| Refusal::NoJournal { why })
    }

    /// Notes how far a process has come that is written down already. A disk that is full does not matter: the next
    /// helper asks the driver for the state, and [`catch_up`](Self::catch_up) writes this later.
    pub(crate) fn note(&self, record: &Record) {
        let mut records = lock(&self.records);
        records.insert(record.target, record.clone());
        self.store_or_later(&records);
    }

    /// Removes the record of a process that runs or has ended. Where that cannot be written, the next
    /// helper finds out by itself.
    pub(crate) fn remove(&self, target: Target) {
        let mut records = lock(&self.records);
        if records.remove(&target).is_some() {
            self.store_or_later(&records);
        }
    }

    /// Writes down what could not be written when it was noted.
    pub(crate) fn catch_up(&self) {
        if self.is_behind.load(SeqCst) {
            self.store_or_later(&lock(&self.records));
        }
    }

    fn store_or_later(&self, records: &BTreeMap<Target, Record>) {
        if let Err(error) = self.store(records)
            && !self.is_behind.swap(true, SeqCst)
        {
            tracing::warn!(%error, "the journal is written later");
        }
    }

    fn store(&self, records: &BTreeMap<Target, Record>) -> Result<(), String> {
        let content =
            Content { boot: self.boot.clone(), records: records.values().cloned().collect() };
        // Plain data with names for keys: there is nothing that JSON could not hold.
        let bytes = serde_json::to_vec(&content).unwrap_or_default();
        let number = self.writes.fetch_add(1, SeqCst) + 1;
        // A folder that is not there refuses as a full one does.
        let is_refused = self.refused_writes.contains(&number);
        let name = if is_refused { "missing/journal" } else { &self.name };
        let folder = self.folder.as_ref().map_err(Clone::clone)?;
        folder.replace(name, &bytes).map_err(|error| error.to_string())?;
        self.is_behind.store(false, SeqCst);
        Ok(())
    }
}

/// Reads the journal of a helper, running or not: the processes that are suspended or on their way. Returns
/// none if there is no journal.
///
/// # Errors
/// Those of the folder and of the file.
pub fn records(folder: &Path) -> Result<Vec<Record>, PrivateFileError> {
    let Some(folder) = PrivateFolder::open(folder)? else { return Ok(Vec::new()) };
    Ok(read(&folder, &name_of_journal())?.unwrap_or_default().records_of(&boot()))
}

/// Returns the file with a journal of a helper that cannot be read, if there is one. The processes in it may be
/// suspended.
///
/// # Errors
/// Those of the folder and of the file.
pub fn unreadable(folder: &Path) -> Result<Option<PathBuf>, PrivateFileError> {
    let Some(folder) = PrivateFolder::open(folder)? else { return Ok(None) };
    let (name, aside) = (name_of_journal(), aside(&name_of_journal()));
    let found = match (read(&folder, &name)?, folder.read(&aside, MOST)?) {
        (Err(_), _) => Some(name),
        (Ok(_), kept) => kept.map(|_| aside),
    };
    Ok(found.map(|name| folder.path().join(name)))
}

/// Returns the name under which a journal is kept that cannot be read.
fn aside(name: &str) -> String {
    format!("{name}.unreadable")
}

/// Returns the name of the journal in the folder of the user.
pub(crate) fn name_of_journal() -> String {
    format!("{}.json", name_of_socket())
}

/// Returns the name of the socket in the folder of the user.
pub(crate) fn name_of_socket() -> String {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    lowtide_proto::helper::socket_name(&namespace.to_string_lossy())
}

/// A journal of another version, or one that somebody wrote to: a helper replaces it as a whole.
struct Unreadable {
    error: serde_json::Error,
    bytes: Vec<u8>,
}

fn read(
    folder: &PrivateFolder,
    name: &str,
) -> Result<Result<Content, Unreadable>, PrivateFileError> {
    let Some(bytes) = folder.read(name, MOST)? else { return Ok(Ok(Content::default())) };
    Ok(serde_json::from_slice(&bytes).map_err(|error| Unreadable { error, bytes }))
}

fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use lowtide_types::Bytes;

    use super::*;

    #[test]
    fn the_next_helper_reads_what_was_begun_since_the_boot() {
        let place = tempfile::tempdir().expect("a folder");
        let open = || {
            let folder = PrivateFolder::create(&place.path().join("own")).expect("a folder");
            Journal::open(folder, name_of_journal(), Vec::new()).expect("a journal")
        };
        let record = |pid, step| Record {
            target: Target { pid, start_ticks: 5 },
            asked: Asked::Suspend,
            step,
            needs: vec![DeviceBytes { uuid: "GPU-0".to_owned(), bytes: Bytes::mib(70) }],
        };
        let journal = open();
        journal.write(&record(3, Some(Step::Lock))).expect("written");
        journal.write(&record(3, None)).expect("written");
        journal.write(&record(9, Some(Step::Checkpoint))).expect("written");
        assert_eq!(open().all(), [record(3, None), record(9, Some(Step::Checkpoint))]);
        journal.remove(record(3, None).target);
        assert_eq!(open().all(), [record(9, Some(Step::Checkpoint))]);
        assert_eq!(records(&place.path().join("own")).expect("read").len(), 1);
        let path = place.path().join("own").join(name_of_journal());
        let text = fs::read_to_string(&path).expect("a file").replace(&boot(), "another boot");
        fs::write(&path, text).expect("written");
        assert_eq!(open().all(), []);
        assert_eq!(unreadable(&place.path().join("own")).expect("read"), None);
        for text in ["{", "", "[7]"] {
            fs::write(&path, text).expect("written");
            assert_eq!(unreadable(&place.path().join("own")).expect("read"), Some(path.clone()));
            let journal = open();
            assert_eq!(journal.all(), [], "{text}: a file that is no journal");
            journal.write(&record(3, None)).expect("written");
            let kept = unreadable(&place.path().join("own")).expect("read").expect("kept");
            assert_eq!(fs::read_to_string(kept).expect("kept"), text);
        }
    }
}
