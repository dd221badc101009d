//! What a pool tells of itself: its numbers, and what a sleep or a wake did.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, DeviceId, words};

words! {
    /// What a sleep does with the blocks of a tag.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum SleepPolicy {
        /// Their content is saved to the host and comes back with the wake.
        Offload = "offload",
        /// Their content is lost; their addresses stay.
        Discard = "discard",
        /// They stay on the device.
        Keep = "keep",
    }
}

/// Whether the memory of a tag is on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The memory is on the device.
    Awake,
    /// A sleep or a wake is under way.
    Turning,
    /// The memory is off the device; the addresses stay.
    Asleep,
}

/// The result of a sleep, in bytes of whole pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SleepReport {
    /// The number of tags that fell asleep.
    pub tags: usize,
    /// Copied to the host.
    #[serde(rename = "copied_bytes")]
    pub copied: Bytes,
    /// Not copied, because the backup has the same content already.
    #[serde(rename = "unchanged_bytes")]
    pub unchanged: Bytes,
    /// Not copied, because the pages are all zeros.
    #[serde(rename = "zero_bytes")]
    pub zero: Bytes,
    /// The number of times that a page was copied again, because it changed during the sleep.
    #[serde(default)]
    pub copied_again: usize,
    /// Device memory given back.
    #[serde(rename = "freed_bytes")]
    pub freed: Bytes,
}

impl fmt::Display for SleepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SleepReport { copied, unchanged, zero, copied_again, freed, .. } = self;
        write!(f, "{freed} freed, {} fell asleep: {copied} copied", tags(self.tags))?;
        write!(f, ", {unchanged} unchanged since the last backup, {zero} all zeros")?;
        copies_again(f, *copied_again)
    }
}

impl fmt::Display for WakeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WakeReport { mapped, copied, copied_again, lost, .. } = self;
        write!(f, "{mapped} taken, {} woke: {copied} copied and verified", tags(self.tags))?;
        copies_again(f, *copied_again)?;
        let sizes: Bytes = lost.iter().map(|block| block.size).sum();
        match lost.len() {
            0 => Ok(()),
            1 => write!(f, ", 1 block of {sizes} lost"),
            count => write!(f, ", {count} blocks of {sizes} lost"),
        }
    }
}

fn tags(count: usize) -> String {
    format!("{count} {}", if count == 1 { "tag" } else { "tags" })
}

fn copies_again(f: &mut fmt::Formatter<'_>, count: usize) -> fmt::Result {
    match count {
        0 => Ok(()),
        1 => f.write_str(", 1 page copied again"),
        count => write!(f, ", {count} pages copied again"),
    }
}

/// The result of a wake, in bytes of whole pages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WakeReport {
    /// The number of tags that woke.
    pub tags: usize,
    /// Memory taken from the device.
    #[serde(rename = "mapped_bytes")]
    pub mapped: Bytes,
    /// Copied from the host, every page checked against its digest.
    #[serde(rename = "copied_bytes")]
    pub copied: Bytes,
    /// The number of pages that were right only after a second copy.
    pub copied_again: usize,
    /// Blocks whose content is lost, because a backup page of theirs was bad. Empty unless the caller
    /// accepted that.
    #[serde(default)]
    pub lost: Vec<LostBlock>,
}

/// A block whose content did not come back. Its address is still valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LostBlock {
    /// The name of the block's tag.
    pub tag: String,
    /// The address of the block.
    pub address: u64,
    /// The size of the block, rounded up as the pool does.
    #[serde(rename = "size_bytes")]
    pub size: Bytes,
}

/// The numbers of a pool at one moment, by tag. Its JSON schema is
/// `docs/schemas/pool-snapshot.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolSnapshot {
    /// The device that the pool takes memory from.
    pub device: DeviceId,
    /// Bytes in blocks that callers have, asleep or awake.
    pub live_bytes: Bytes,
    /// The highest value that `live_bytes` ever had.
    pub live_peak_bytes: Bytes,
    /// The part of `live_bytes` that is asleep: it has no memory on the device.
    pub asleep_bytes: Bytes,
    /// Memory taken from the device that is in no caller's block.
    pub cached_bytes: Bytes,
    /// Memory taken from the device.
    pub physical_bytes: Bytes,
    /// The highest value that `physical_bytes` ever had.
    pub physical_peak_bytes: Bytes,
    /// Host memory that holds backups.
    pub backup_bytes: Bytes,
    /// Host memory taken for backups, used or not.
    pub host_bytes: Bytes,
    /// The number of blocks that callers have.
    pub blocks: u64,
    /// The tags, in the order in which they were made.
    pub tags: Vec<TagSnapshot>,
}

/// The numbers of one tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TagSnapshot {
    /// The name of the tag.
    pub name: String,
    /// What a sleep does with its blocks.
    pub policy: SleepPolicy,
    /// Whether its memory is on the device.
    pub phase: Phase,
    /// Bytes in blocks that callers have, asleep or awake.
    pub live_bytes: Bytes,
    /// The highest value that `live_bytes` ever had.
    pub live_peak_bytes: Bytes,
    /// The part of `live_bytes` that is asleep: it has no memory on the device.
    pub asleep_bytes: Bytes,
    /// Memory taken from the device that is in no caller's block.
    pub cached_bytes: Bytes,
    /// Memory taken from the device.
    pub physical_bytes: Bytes,
    /// Host memory that holds backups.
    pub backup_bytes: Bytes,
    /// The number of blocks that callers have.
    pub blocks: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_and_a_wake_say_in_one_line_what_they_did() {
        let slept = SleepReport {
            tags: 1,
            copied: Bytes::mib(20),
            unchanged: Bytes::mib(4),
            zero: Bytes::mib(8),
            copied_again: 2,
            freed: Bytes::mib(32),
        };
        assert_eq!(
            slept.to_string(),
            "32.0 MiB freed, 1 tag fell asleep: 20.0 MiB copied, 4.0 MiB unchanged since the last \
             backup, 8.0 MiB all zeros, 2 pages copied again"
        );
        let block =
            || LostBlock { tag: "weights".to_owned(), address: 0x7000, size: Bytes::mib(2) };
        let mut woken = WakeReport {
            tags: 2,
            mapped: Bytes::mib(32),
            copied: Bytes::mib(24),
            copied_again: 1,
            lost: vec![block()],
        };
        assert_eq!(
            woken.to_string(),
            "32.0 MiB taken, 2 tags woke: 24.0 MiB copied and verified, 1 page copied again, \
             1 block of 2.0 MiB lost"
        );
        woken.lost.push(block());
        assert!(woken.to_string().ends_with(", 2 blocks of 4.0 MiB lost"), "{woken}");
    }
}
