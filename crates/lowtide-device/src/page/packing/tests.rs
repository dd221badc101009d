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
        assert_eq!(differs(&packed, &page) == [false; 4], kind.packs, "{}", kind.name);
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
        let is_other = rest[..PAGE_BYTES] != page[..];
        assert!(!is_other || differs(&bad, &page) != [false; 4], "round {round}");
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
fn a_change_behind_the_pack_is_seen_in_its_segment() {
    let (page, mut dice) = (PAGE_KINDS[1].page(8), Dice::new(9));
    let packed = packed_of(&page, look(&page).base);
    for _ in 0..40 {
        let (mut other, at) = (page.clone(), dice.index(PAGE_BYTES));
        other[at] ^= 1 << dice.roll(8);
        let mut expected = [false; 4];
        expected[at / (PAGE_BYTES / 4)] = true;
        assert_eq!(differs(&packed, &other), expected, "byte {at}");
    }
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
