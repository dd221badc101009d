//! The content of blocks: a function of a block's number, its version and the offset.
//!
//! Real content changes in parts, and some of it is zero. So a block is made of segments: a new version
//! changes a quarter of them, and one in eight is all zeros. A sleep then meets changed, unchanged and
//! zero pages.

const SEGMENT: u64 = 256 << 10;
/// A segment changes with every so many versions.
const CHANGES: u64 = 4;

/// What a block contains. Two blocks, and two versions of one, differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content {
    /// The number of the block, unlike that of any other block of the world.
    pub(crate) block: u64,
    pub(crate) version: u64,
}

impl Content {
    /// Returns the bytes from `offset` on.
    pub(crate) fn bytes(self, offset: u64, length: usize) -> Vec<u8> {
        let end = offset + length as u64;
        let first = offset / 8;
        let mut bytes = Vec::with_capacity(length + 16);
        let (mut segment, mut key) = (u64::MAX, None);
        for word in first..end.div_ceil(8) {
            if word * 8 / SEGMENT != segment {
                segment = word * 8 / SEGMENT;
                key = self.key(segment);
            }
            let value = key.map_or(0, |key| mix(key ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        let start = (offset - first * 8) as usize;
        bytes.drain(..start);
        bytes.truncate(length);
        bytes
    }

    /// Returns the key of a segment; `None` if it is all zeros.
    fn key(self, segment: u64) -> Option<u64> {
        let version = self.version.saturating_sub((self.version + segment) % CHANGES);
        let key = mix(mix(self.block) ^ mix(version << 32 ^ segment));
        (!key.is_multiple_of(8)).then_some(key)
    }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Describes how bytes differ from those that they should be.
pub(crate) fn difference(found: &[u8], expected: &[u8], offset: u64) -> String {
    let wrong = || found.iter().zip(expected).enumerate().filter(|(_, (one, other))| one != other);
    let Some((first, (is, should))) = wrong().next() else { return "no difference".to_owned() };
    let last = wrong().next_back().map_or(first, |(at, _)| at);
    format!(
        "{} of {} bytes are wrong, between offsets {} and {}; the first is {is:#04x} and should be \
         {should:#04x}",
        wrong().count(),
        found.len(),
        offset + first as u64,
        offset + last as u64,
    )
}
