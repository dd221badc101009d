//! Pages as models have them, and as they do not: for tests of packed pages.

use lowtide_device::digest::PAGE_BYTES;

use super::dice::Dice;

/// A kind of page, and whether it packs.
#[derive(Debug, Clone, Copy)]
pub struct PageKind {
    /// The name, for messages.
    pub name: &'static str,
    /// Set where every page of the kind packs, or none does.
    pub packs: bool,
    value: fn(&mut Dice, usize) -> u16,
}

impl PageKind {
    /// Makes a page of this kind.
    pub fn page(&self, seed: u64) -> Vec<u8> {
        let mut dice = Dice::new(seed);
        (0..PAGE_BYTES / 2).flat_map(|index| (self.value)(&mut dice, index).to_le_bytes()).collect()
    }
}

/// The kinds of pages that packing must bring back, each bit of them.
pub const PAGE_KINDS: &[PageKind] = &[
    PageKind { name: "weights", packs: true, value: |dice, _| weight(dice, 0.02) },
    PageKind {
        name: "weights of several scales with outliers",
        packs: true,
        value: |dice, index| {
            let scale = 0.01 * f32::from(1 + (index / 200_000) as u16);
            let is_outlier = dice.one_in(1000);
            weight(dice, if is_outlier { 20.0 * scale } else { scale })
        },
    },
    PageKind { name: "zeros", packs: true, value: |_, _| 0 },
    PageKind {
        name: "half zeros of either sign",
        packs: true,
        value: |dice, _| match dice.roll(4) {
            0 => 0,
            1 => 0x8000,
            _ => weight(dice, 1.0),
        },
    },
    PageKind {
        name: "a tail of zeros",
        packs: true,
        value: |dice, index| if index < 700_001 { weight(dice, 3e-5) } else { 0 },
    },
    PageKind {
        name: "denormals, infinities and all kinds of NaN",
        packs: true,
        value: |dice, _| match dice.roll(2000) {
            0 => 0x7f80 | dice.roll(0x80) as u16 | (dice.roll(2) as u16) << 15,
            1..=99 => dice.roll(0x80) as u16 | (dice.roll(2) as u16) << 15,
            _ => weight(dice, 1e-3),
        },
    },
    PageKind {
        name: "the largest exponents",
        packs: true,
        value: |dice, _| ((242 + dice.roll(14)) << 7 | dice.roll(0x80)) as u16,
    },
    PageKind {
        name: "the smallest exponents",
        packs: true,
        value: |dice, _| (dice.roll(15) << 7 | dice.roll(0x80)) as u16 | 0x8000,
    },
    PageKind { name: "one value", packs: true, value: |_, _| 0x3f80 },
    PageKind {
        name: "764 escapes at the ends of segments",
        packs: true,
        value: |dice, index| if is_in_list(index, 764) { 1 << 7 } else { near(dice) },
    },
    PageKind {
        name: "765 escapes at the ends of segments",
        packs: false,
        value: |dice, index| if is_in_list(index, 765) { 1 << 7 } else { near(dice) },
    },
    PageKind { name: "random bytes", packs: false, value: |dice, _| dice.roll(1 << 16) as u16 },
    PageKind {
        name: "nothing but escapes around a sample",
        packs: false,
        value: |dice, index| {
            if index % 65_536 < 2048 { 0x3f80 } else { dice.roll(128) as u16 | 128 }
        },
    },
];

// A value of one of four exponents.
fn near(dice: &mut Dice) -> u16 {
    0x4f00 + dice.roll(512) as u16
}

// The last so many values of the first segment, and the first ones of the last.
fn is_in_list(index: usize, count: usize) -> bool {
    let segment = PAGE_BYTES / 8;
    (segment - count..segment).contains(&index)
        || (3 * segment..3 * segment + count).contains(&index)
}

/// Returns a bf16 value of a bell-shaped distribution of this width.
#[expect(clippy::cast_precision_loss, reason = "seventeen bits")]
pub fn weight(dice: &mut Dice, scale: f32) -> u16 {
    // Four uniform numbers are bell-shaped enough; their sum has a third of the variance of twelve.
    let (one, two) = (dice.roll(1 << 30), dice.roll(1 << 30));
    let sum = (one & 0x7fff) + (one >> 15) + (two & 0x7fff) + (two >> 15);
    let value = (sum as f32 / 32_768.0 - 2.0) * 1.732 * scale;
    (value.to_bits() >> 16) as u16
}
