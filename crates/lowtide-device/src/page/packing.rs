//! Packed pages: 2 MiB of bf16 values in 1.51 MiB, without loss.
//!
//! The exponents of weights lie close together. Four bits tell most of them: how far an exponent is
//! below a base that the page has chosen. The others are *escapes*, which a bounded list names. A page
//! with more escapes than the list holds is not packed, whatever its bytes mean.
//!
//! The device packs and unpacks with `kernels/pack.cu`, the host with this file. Both compute the same
//! bytes.
//!
//! ```
//! use lowtide_device::digest::PAGE_BYTES;
//! use lowtide_device::packing::{self, PACKED_BYTES};
//!
//! let page: Vec<u8> = (0..PAGE_BYTES / 2).flat_map(|i| (0x3c00 + i as u16 % 512).to_le_bytes()).collect();
//! let look = packing::look(&page);
//! assert!(look.packs());
//! let (mut packed, mut again) = (vec![0; PACKED_BYTES], vec![0; PAGE_BYTES]);
//! packing::pack(&page, look.base, &mut packed);
//! packing::check(&packed)?;
//! packing::unpack(&packed, &mut again);
//! assert_eq!(again, page);
//! # Ok::<(), packing::PackedFault>(())
//! ```
//!
//! # The format
//!
//! A page is four segments of 262,144 values. All numbers are little-endian.
//!
//! | bytes | content |
//! |---:|---|
//! | 64 | a record for each segment: mark (4), number of escapes (4), checksum (8) |
//! | 12,224 | for each segment 764 escapes of 4 bytes, by position; unused ones are zero |
//! | 1,048,576 | sign and mantissa of each value, one byte |
//! | 524,288 | the code of each value, four bits, the first of two in the low half |
//!
//! A mark is a constant, the size of all this in units of 4 KiB, the segment's number and the base.
//! Code 0 to 13 means the exponent `base - code`, 14 the exponent 0 (zeros and denormals), 15 an
//! escape. An escape is a position of 18 bits, so that it cannot leave its segment, and in the top byte
//! the exponent.
//!
//! The checksum is the sum of every word of the segment times an odd number of its own. It tells a
//! backup that changed on the host. That a page is right after it was unpacked is told by its digest.

use thiserror::Error;

use super::digest::PAGE_BYTES;

/// The size of a packed page.
pub const PACKED_BYTES: usize = BYTES_AT + VALUES + VALUES / 2;

/// The most pages that a stream packs or unpacks in one call.
pub const PACKED_AT_ONCE: usize = 8;

const VALUES: usize = PAGE_BYTES / 2;
/// The number of segments of a page.
pub const SEGMENTS: usize = 4;
const SEGMENT_VALUES: usize = VALUES / SEGMENTS;
/// The most escapes of a segment.
const ESCAPES_MOST: u32 = 764;

const RECORD_BYTES: usize = 16;
const ESCAPES_AT: usize = SEGMENTS * RECORD_BYTES;
const ESCAPES_BYTES: usize = 4 * ESCAPES_MOST as usize;
const BYTES_AT: usize = ESCAPES_AT + SEGMENTS * ESCAPES_BYTES;
const CODES_AT: usize = BYTES_AT + VALUES;

const MARK: u32 = 0x4c00_0000 | ((PACKED_BYTES / 4096) as u32) << 12;
const POSITION: u32 = SEGMENT_VALUES as u32 - 1;

/// The number of exponents that have a code of their own, apart from zero.
const WINDOW: u32 = 14;
const ZERO: u32 = 14;
const ESCAPE: u32 = 15;
/// Below this base, the last code would mean an exponent that has another.
const BASE_LEAST: u32 = WINDOW;

/// A look takes 4 KiB out of each part of this size to choose a base.
const SAMPLED_PART: usize = 128 << 10;
const SAMPLE: usize = 4096;

// The indices of words in a checksum.
const CODE_WORDS_AT: u64 = SEGMENT_VALUES as u64 / 4;
const ESCAPE_WORDS_AT: u64 = CODE_WORDS_AT + SEGMENT_VALUES as u64 / 8;
const MARK_WORD: u64 = ESCAPE_WORDS_AT + ESCAPES_MOST as u64;
const COUNT_WORD: u64 = MARK_WORD + 1;

/// The result of a look at a page: whether it packs, and with which base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// The largest exponent with a code.
    pub base: u8,
    /// The escapes of the segment that has most.
    pub escapes: u32,
}

impl Look {
    /// Returns whether the escapes of every segment fit its list.
    pub fn packs(self) -> bool {
        self.escapes <= ESCAPES_MOST
    }

    /// Reads a look as a device writes it: the base in the low byte, the escapes above.
    pub fn from_word(word: u32) -> Look {
        Look { base: (word & 0xff) as u8, escapes: word >> 8 }
    }

    /// Writes a look as a device does.
    pub fn to_word(self) -> u32 {
        self.escapes << 8 | u32::from(self.base)
    }
}

/// The first thing that is wrong with a packed page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PackedFault {
    /// The mark is not one of this format, size and segment.
    #[error("segment {segment} of a packed page begins with {found:#010x}, which is no mark of it")]
    Mark {
        /// Which quarter of the page it is, counted from 0.
        segment: usize,
        /// The mark that was found.
        found: u32,
    },
    /// There are more escapes than fit.
    #[error("segment {segment} of a packed page has {escapes} escapes; {ESCAPES_MOST} fit")]
    TooManyEscapes {
        /// Which quarter of the page it is, counted from 0.
        segment: usize,
        /// The number that the page states.
        escapes: u32,
    },
    /// The escapes are not those of the codes, in order.
    #[error("escape {index} of segment {segment} of a packed page belongs to no code")]
    Escape {
        /// Which quarter of the page it is, counted from 0.
        segment: usize,
        /// The number of the first escape that is wrong.
        index: usize,
    },
    /// The checksum is another one.
    #[error("segment {segment} of a packed page does not match its checksum")]
    Checksum {
        /// Which quarter of the page it is, counted from 0.
        segment: usize,
    },
}

/// Looks whether a page packs: chooses the base that covers most of a sample, and counts the escapes.
///
/// # Panics
/// If `page` is not a page.
pub fn look(page: &[u8]) -> Look {
    assert_eq!(page.len(), PAGE_BYTES, "a look is at one whole page");
    let base = base_of(page);
    let escapes = page.chunks_exact(PAGE_BYTES / SEGMENTS).map(|segment| {
        let codes = segment.as_chunks().0.iter().map(|value| code(exponent(*value), base));
        codes.map(|code| u32::from(code == ESCAPE)).sum::<u32>()
    });
    Look { base: base as u8, escapes: escapes.max().unwrap_or(0) }
}

// The smallest base whose window covers most of the sample. Weights are bell-shaped: below what was
// seen there is more to come than above.
fn base_of(page: &[u8]) -> u32 {
    let mut counts = [0u32; 256];
    for part in page.chunks_exact(SAMPLED_PART) {
        for value in part[..SAMPLE].as_chunks().0 {
            counts[exponent(*value) as usize] += 1;
        }
    }
    let covered = |base: u32| -> u32 {
        (base + 1 - WINDOW..=base).map(|exponent| counts[exponent as usize]).sum()
    };
    let bases = BASE_LEAST..=255;
    bases.max_by_key(|base| (covered(*base), 255 - base)).unwrap_or(BASE_LEAST)
}

/// Packs a page with the base of its look. Where a segment has more escapes than fit, which a page has
/// that changed since, the result is one that [`check`] refuses.
///
/// # Panics
/// If a slice has the wrong size.
pub fn pack(page: &[u8], base: u8, packed: &mut [u8]) {
    assert_eq!((page.len(), packed.len()), (PAGE_BYTES, PACKED_BYTES), "one whole page");
    let base = u32::from(base);
    for (segment, values) in page.chunks_exact(PAGE_BYTES / SEGMENTS).enumerate() {
        let (mut escapes, mut count) = ([0u32; ESCAPES_MOST as usize], 0);
        let at = Segment(segment);
        let (head, codes) = packed.split_at_mut(CODES_AT);
        let codes = &mut codes[segment * SEGMENT_VALUES / 2..][..SEGMENT_VALUES / 2];
        let bytes = &mut head[at.bytes()..][..SEGMENT_VALUES];
        let bytes = bytes.as_chunks_mut::<2>().0.iter_mut();
        let pairs = values.as_chunks::<4>().0.iter().zip(bytes).zip(codes.iter_mut());
        for (index, ((values, bytes), codes)) in pairs.enumerate() {
            *codes = 0;
            for half in 0..2 {
                let value = [values[2 * half], values[2 * half + 1]];
                let exponent = exponent(value);
                let code = code(exponent, base);
                bytes[half] = value[1] & 0x80 | value[0] & 0x7f;
                *codes |= (code as u8) << (4 * half);
                if code == ESCAPE {
                    if let Some(escape) = escapes.get_mut(count) {
                        *escape = exponent << 24 | (2 * index + half) as u32;
                    }
                    count += 1;
                }
            }
        }
        for (index, escape) in escapes.iter().enumerate() {
            put(packed, at.escapes() + 4 * index, *escape);
        }
        put(packed, at.record(), at.mark(base));
        put(packed, at.record() + 4, count as u32);
        let sum = at.checksum(packed);
        packed[at.record() + 8..][..8].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Unpacks a page. Writes every byte of `page` and no other, whatever `packed` holds: whether the page
/// is right, its digest tells.
///
/// # Panics
/// If a slice has the wrong size.
pub fn unpack(packed: &[u8], page: &mut [u8]) {
    assert_eq!((page.len(), packed.len()), (PAGE_BYTES, PACKED_BYTES), "one whole page");
    for (segment, values) in page.chunks_exact_mut(PAGE_BYTES / SEGMENTS).enumerate() {
        let at = Segment(segment);
        let exponents = at.exponents(packed);
        let bytes = packed[at.bytes()..][..SEGMENT_VALUES].as_chunks::<2>().0;
        let pairs = values.as_chunks_mut::<4>().0.iter_mut().zip(bytes).zip(&packed[at.codes()..]);
        for ((values, bytes), codes) in pairs {
            let first = join(bytes[0], exponents[usize::from(codes & 0xf)]);
            let second = join(bytes[1], exponents[usize::from(codes >> 4)]);
            *values = [first[0], first[1], second[0], second[1]];
        }
        for (position, exponent) in at.listed(packed) {
            let byte = packed[at.bytes() + position];
            values[2 * position..][..2].copy_from_slice(&join(byte, exponent));
        }
    }
}

/// Checks a packed page by itself: its marks, the bounds of its lists and its checksums.
///
/// # Errors
/// The first thing that is wrong.
///
/// # Panics
/// If `packed` has the wrong size.
pub fn check(packed: &[u8]) -> Result<(), PackedFault> {
    assert_eq!(packed.len(), PACKED_BYTES, "one whole page");
    (0..SEGMENTS).try_for_each(|segment| {
        let at = Segment(segment);
        let sum = packed[at.record() + 8..][..8].try_into().map_or(0, u64::from_le_bytes);
        if let Some(fault) = at.has_fault(packed) {
            return Err(fault);
        }
        if sum == at.checksum(packed) { Ok(()) } else { Err(PackedFault::Checksum { segment }) }
    })
}

/// The places of a segment in a packed page.
#[derive(Clone, Copy)]
struct Segment(usize);

impl Segment {
    fn record(self) -> usize {
        self.0 * RECORD_BYTES
    }

    fn escapes(self) -> usize {
        ESCAPES_AT + self.0 * ESCAPES_BYTES
    }

    fn bytes(self) -> usize {
        BYTES_AT + self.0 * SEGMENT_VALUES
    }

    fn codes(self) -> usize {
        CODES_AT + self.0 * SEGMENT_VALUES / 2
    }

    fn mark(self, base: u32) -> u32 {
        MARK | (self.0 as u32) << 8 | base
    }

    /// Returns the exponent of each code; that of an escape is in the list.
    fn exponents(self, packed: &[u8]) -> [u32; 16] {
        let base = word(packed, self.record()) & 0xff;
        std::array::from_fn(|code| match code as u32 {
            ZERO | ESCAPE => 0,
            code => base.wrapping_sub(code) & 0xff,
        })
    }

    /// Returns the positions of codes that say escape.
    fn coded(self, packed: &[u8]) -> impl Iterator<Item = usize> + use<'_> {
        let codes = packed[self.codes()..][..SEGMENT_VALUES / 2].iter().enumerate();
        let some = codes.filter(|(_, codes)| **codes & 0xf == 0xf || **codes >> 4 == 0xf);
        some.flat_map(|(index, codes)| {
            let halves = [(2 * index, codes & 0xf), (2 * index + 1, codes >> 4)];
            halves.into_iter().filter(|(_, code)| *code == 0xf).map(|(position, _)| position)
        })
    }

    /// Returns the positions and exponents of as many escapes as are stated and fit.
    fn listed(self, packed: &[u8]) -> impl Iterator<Item = (usize, u32)> + use<'_> {
        let count = word(packed, self.record() + 4).min(ESCAPES_MOST) as usize;
        (0..count).map(move |index| {
            let escape = word(packed, self.escapes() + 4 * index);
            ((escape & POSITION) as usize, escape >> 24)
        })
    }

    /// Finds what is wrong with the record and the list.
    fn has_fault(self, packed: &[u8]) -> Option<PackedFault> {
        let segment = self.0;
        let (found, escapes) = (word(packed, self.record()), word(packed, self.record() + 4));
        if found & !0xff != self.mark(0) || found & 0xff < BASE_LEAST {
            return Some(PackedFault::Mark { segment, found });
        }
        if escapes > ESCAPES_MOST {
            return Some(PackedFault::TooManyEscapes { segment, escapes });
        }
        let mut coded = self.coded(packed);
        let wrong = self.listed(packed).position(|(position, _)| coded.next() != Some(position));
        let extra = || coded.next().map(|_| escapes as usize);
        wrong.or_else(extra).map(|index| PackedFault::Escape { segment, index })
    }

    fn checksum(self, packed: &[u8]) -> u64 {
        let sum = |at: usize, bytes: usize, first: u64| {
            let words = packed[at..][..bytes].as_chunks().0.iter().zip(first..);
            words.fold(0u64, |sum, (word, index)| {
                sum.wrapping_add(weighted(u32::from_le_bytes(*word), index))
            })
        };
        sum(self.bytes(), SEGMENT_VALUES, 0)
            .wrapping_add(sum(self.codes(), SEGMENT_VALUES / 2, CODE_WORDS_AT))
            .wrapping_add(sum(self.escapes(), ESCAPES_BYTES, ESCAPE_WORDS_AT))
            .wrapping_add(weighted(word(packed, self.record()), MARK_WORD))
            .wrapping_add(weighted(word(packed, self.record() + 4), COUNT_WORD))
    }
}

fn weighted(word: u32, index: u64) -> u64 {
    u64::from(word).wrapping_mul(2 * index + 1)
}

fn exponent(value: [u8; 2]) -> u32 {
    u32::from(u16::from_le_bytes(value) >> 7 & 0xff)
}

fn code(exponent: u32, base: u32) -> u32 {
    let below = base.wrapping_sub(exponent);
    match exponent {
        0 => ZERO,
        _ if below < WINDOW => below,
        _ => ESCAPE,
    }
}

fn join(byte: u8, exponent: u32) -> [u8; 2] {
    (u16::from(byte & 0x80) << 8 | (exponent as u16) << 7 | u16::from(byte & 0x7f)).to_le_bytes()
}

fn word(packed: &[u8], at: usize) -> u32 {
    packed[at..][..4].try_into().map_or(0, u32::from_le_bytes)
}

fn put(packed: &mut [u8], at: usize, word: u32) {
    packed[at..][..4].copy_from_slice(&word.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use lowtide_testing::noise::Dice;
    use lowtide_testing::noise::weights::PAGE_KINDS;

    use super::*;

    fn packed_of(page: &[u8], base: u8) -> Vec<u8> {
        // What was there before does not matter.
        let mut packed = vec![0xa5; PACKED_BYTES];
        pack(page, base, &mut packed);
        packed
    }

    fn unpacked(packed: &[u8]) -> Vec<u8> {
        let mut page = vec![0x5a; PAGE_BYTES];
        unpack(packed, &mut page);
        page
    }

    #[test]
    fn the_format_has_the_size_it_states() {
        assert_eq!((BYTES_AT, PACKED_BYTES), (12_288, 1_585_152));
        assert_eq!(PACKED_BYTES % 4096, 0);
    }

    #[test]
    fn every_kind_of_page_comes_back_or_is_refused() {
        for (seed, kind) in (0u64..).zip(PAGE_KINDS) {
            let page = kind.page(seed);
            let look = look(&page);
            assert_eq!(look.packs(), kind.packs, "{}: {look:?}, seed {seed}", kind.name);
            assert_eq!(Look::from_word(look.to_word()), look);
            let packed = packed_of(&page, look.base);
            assert_eq!(check(&packed).is_ok(), kind.packs, "{}: {:?}", kind.name, check(&packed));
            assert_eq!(unpacked(&packed) == page, kind.packs, "{}", kind.name);
        }
    }

    #[test]
    fn any_base_is_right_or_refused() {
        let mut dice = Dice::new(11);
        for kind in PAGE_KINDS.iter().take(4) {
            let page = kind.page(12);
            for _ in 0..6 {
                let base = dice.roll(256) as u8;
                let packed = packed_of(&page, base);
                if check(&packed).is_ok() {
                    assert!(unpacked(&packed) == page, "{}, base {base}", kind.name);
                }
            }
        }
    }

    #[test]
    fn outliers_are_escapes_and_do_not_move_the_window() {
        let page = PAGE_KINDS[1].page(3);
        let Look { base, escapes } = look(&page);
        assert!((118..=124).contains(&base), "{base}");
        assert!((50..600).contains(&escapes), "{escapes}");
    }

    // Flips bits anywhere, most of all in the records and lists, and whole words there. Nothing may be
    // written beside the page, and whatever is not found here gives another page, which its digest tells.
    #[test]
    fn a_corrupt_page_is_found_and_writes_only_itself() {
        let (page, mut dice) = (PAGE_KINDS[1].page(5), Dice::new(6));
        let good = packed_of(&page, look(&page).base);
        for round in 0..120 {
            let mut bad = good.clone();
            for _ in 0..=dice.roll(3) {
                let most = dice.pick(&[ESCAPES_AT, BYTES_AT, PACKED_BYTES]);
                match dice.roll(3) {
                    0 => bad[dice.index(most)] ^= 1 << dice.roll(8),
                    1 => {
                        let at = dice.index(most / 4) * 4;
                        put(&mut bad, at, dice.roll(1 << 31) as u32 * 2);
                    }
                    _ => {
                        let at = dice.index(most / 4) * 4;
                        bad[at..at + 4].fill(0xff);
                    }
                }
            }
            if bad == good {
                continue;
            }
            assert!(check(&bad).is_err(), "round {round}");
            let mut around = vec![0x77; PAGE_BYTES + 8192];
            unpack(&bad, &mut around[4096..][..PAGE_BYTES]);
            let (before, rest) = around.split_at(4096);
            assert!(before.iter().chain(&rest[PAGE_BYTES..]).all(|byte| *byte == 0x77));
        }
    }

    #[test]
    fn each_fault_has_its_name() {
        let page = PAGE_KINDS[1].page(7);
        let good = packed_of(&page, look(&page).base);
        let fault = |at: usize, byte: u8| {
            let mut bad = good.clone();
            bad[at] ^= byte;
            check(&bad).unwrap_err()
        };
        assert!(matches!(fault(3, 1), PackedFault::Mark { segment: 0, .. }));
        assert!(matches!(fault(16 + 1, 1), PackedFault::Mark { segment: 1, .. }));
        assert!(matches!(fault(32 + 6, 1), PackedFault::TooManyEscapes { segment: 2, .. }));
        assert!(matches!(fault(32 + 4, 1), PackedFault::Escape { segment: 2, .. }));
        assert!(matches!(fault(ESCAPES_AT, 1), PackedFault::Escape { segment: 0, index: 0 }));
        assert_eq!(fault(ESCAPES_AT + 3, 1), PackedFault::Checksum { segment: 0 });
        assert_eq!(fault(BYTES_AT - 1, 1), PackedFault::Checksum { segment: 3 });
        assert_eq!(fault(BYTES_AT, 1), PackedFault::Checksum { segment: 0 });
        assert!(fault(PACKED_BYTES - 1, 0x10).to_string().contains("segment 3"));
    }

    #[test]
    fn a_fixed_page_has_fixed_bytes() {
        // Pinned: a change of the format must be made in `kernels/pack.cu` too.
        let page = PAGE_KINDS[1].page(1);
        let packed = packed_of(&page, look(&page).base);
        let sum = packed.iter().fold(0xcbf2_9ce4_8422_2325_u64, |state, byte| {
            (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!((look(&page).base, sum), (124, 10_434_565_189_900_963_958));
    }
}
