//! The execution of lowtide's own kernels, by the host functions that compute the same.

use lowtide_device::digest::PAGE_BYTES;
use lowtide_device::packing::{self, PACKED_BYTES};

use super::code::ILLEGAL_ADDRESS;
use super::objects::{Launch, READ, READ_WRITE};
use super::pointers::CallResult;
use super::run::Opened;
use super::state::to_usize;

/// A count of pages beyond this is a wild argument.
const MAX_PAGES: u64 = 1 << 32;
const PAGE: u64 = PAGE_BYTES as u64;
const PACKED: u64 = PACKED_BYTES as u64;

impl Launch {
    /// Runs it; memory that is not there is an illegal address.
    pub(super) fn run(&self, device: usize) -> CallResult {
        let done = match self {
            Launch::Digest { pages, out, count, keys } => {
                each_page(device, (*pages, *count), (*out, 16), |page| {
                    keys.digest(page).0.iter().flat_map(|half| half.to_ne_bytes()).collect()
                })
            }
            Launch::CopyIn { from, to, size } => {
                read(device, *from, *size).and_then(|bytes| write(device, *to, &bytes))
            }
            Launch::Look { pages, out, count } => {
                each_page(device, (*pages, *count), (*out, 4), |page| {
                    packing::look(page).to_word().to_ne_bytes().to_vec()
                })
            }
            Launch::Pack { pages, packed, bases, count } => (0..*count).try_for_each(|page| {
                let (from, to) = (pages + page * PAGE, packed + page * PACKED);
                let mut into = vec![0; PACKED_BYTES];
                packing::pack(&read(device, from, PAGE)?, (bases >> (8 * page)) as u8, &mut into);
                write(device, to, &into)
            }),
            Launch::Unpack { packed, pages, count } => (0..*count).try_for_each(|page| {
                let (from, to) = (packed + page * PACKED, pages + page * PAGE);
                let mut into = vec![0; PAGE_BYTES];
                packing::unpack(&read(device, from, PACKED)?, &mut into);
                write(device, to, &into)
            }),
            Launch::Differs { packed, pages, out, count } => (0..*count).try_for_each(|page| {
                let from = read(device, packed + page * PACKED, PACKED)?;
                let differs = packing::differs(&from, &read(device, pages + page * PAGE, PAGE)?);
                let words: Vec<u8> =
                    differs.iter().flat_map(|differs| u32::from(*differs).to_ne_bytes()).collect();
                write(device, out + page * 16, &words)
            }),
        };
        done.ok_or(ILLEGAL_ADDRESS)
    }
}

// Computes so many bytes for each page of a list.
fn each_page(
    device: usize,
    (pages, count): (u64, u64),
    (out, bytes): (u64, usize),
    compute: impl Fn(&[u8]) -> Vec<u8>,
) -> Option<()> {
    let count = Some(count).filter(|count| *count <= MAX_PAGES)?;
    let list = Opened::by_kernel(device, pages, count * 8, READ)?;
    let out = Opened::by_kernel(device, out, count * bytes as u64, READ_WRITE)?;
    for index in 0..to_usize(count) {
        let mut address = [0; 8];
        list.read(index * 8, &mut address).then_some(())?;
        let content = read(device, u64::from_ne_bytes(address), PAGE)?;
        out.write(index * bytes, &compute(&content)).then_some(())?;
    }
    (list.is_still_there() && out.is_still_there()).then_some(())
}

fn read(device: usize, at: u64, bytes: u64) -> Option<Vec<u8>> {
    let from = Opened::by_kernel(device, at, bytes, READ)?;
    let mut content = vec![0; to_usize(bytes)];
    (from.read(0, &mut content) && from.is_still_there()).then_some(content)
}

fn write(device: usize, at: u64, content: &[u8]) -> Option<()> {
    let to = Opened::by_kernel(device, at, content.len() as u64, READ_WRITE)?;
    (to.write(0, content) && to.is_still_there()).then_some(())
}
