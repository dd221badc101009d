//! The execution of lowtide's own kernels, by the host functions that compute the same.

use std::cell::RefCell;

use lowtide_device::digest::PAGE_BYTES;
use lowtide_device::packing::{self, PACKED_BYTES};

use super::code::ILLEGAL_ADDRESS;
use super::objects::{Launch, READ, READ_WRITE};
use super::pointers::CallResult;
use super::run::Opened;
use super::tables::to_usize;

/// A count of pages beyond this is a wild argument.
const MAX_PAGES: u64 = 1 << 32;
const PAGE: u64 = PAGE_BYTES as u64;
const PACKED: u64 = PACKED_BYTES as u64;

/// What kernels read and write, a page at a time. Each thread keeps its own: new memory of this size is
/// filled with zeros at every use, which takes as long as many kernels.
#[derive(Default)]
struct Pages {
    from: Vec<u8>,
    other: Vec<u8>,
}

thread_local! {
    static PAGES: RefCell<Pages> = RefCell::default();
}

impl Launch {
    /// Runs it; memory that is not there is an illegal address.
    pub(super) fn run(&self, device: usize) -> CallResult {
        PAGES.with_borrow_mut(|pages| self.run_with(device, pages)).ok_or(ILLEGAL_ADDRESS)
    }

    fn run_with(&self, device: usize, Pages { from, other }: &mut Pages) -> Option<()> {
        match self {
            Launch::Digest { pages, out, count, keys } => {
                each_page(device, (*pages, *count), (*out, 16), from, |page| {
                    keys.digest(page).0.iter().flat_map(|half| half.to_ne_bytes()).collect()
                })
            }
            Launch::CopyIn { from, to, size } => {
                let from = Opened::by_kernel(device, *from, *size, READ)?;
                let to = Opened::by_kernel(device, *to, *size, READ_WRITE)?;
                to.copy_from(&from, to_usize(*size)).then_some(())?;
                (from.is_still_there() && to.is_still_there()).then_some(())
            }
            Launch::Look { pages, out, count } => {
                each_page(device, (*pages, *count), (*out, 4), from, |page| {
                    packing::look(page).to_word().to_ne_bytes().to_vec()
                })
            }
            Launch::Pack { pages, packed, bases, count } => (0..*count).try_for_each(|page| {
                let (at, to) = (pages + page * PAGE, packed + page * PACKED);
                let content = read(&Opened::by_kernel(device, at, PAGE, READ)?, PAGE_BYTES, from)?;
                let packed = zeros(other, PACKED_BYTES);
                packing::pack(content, (bases >> (8 * page)) as u8, packed);
                write(device, to, packed)
            }),
            Launch::Unpack { packed, pages, count } => (0..*count).try_for_each(|page| {
                let (at, to) = (packed + page * PACKED, pages + page * PAGE);
                let packed =
                    read(&Opened::by_kernel(device, at, PACKED, READ)?, PACKED_BYTES, from)?;
                let content = zeros(other, PAGE_BYTES);
                packing::unpack(packed, content);
                write(device, to, content)
            }),
        }
    }
}

// Computes so many bytes for each page of a list.
fn each_page(
    device: usize,
    (pages, count): (u64, u64),
    (out, bytes): (u64, usize),
    into: &mut Vec<u8>,
    compute: impl Fn(&[u8]) -> Vec<u8>,
) -> Option<()> {
    let count = Some(count).filter(|count| *count <= MAX_PAGES)?;
    let list = Opened::by_kernel(device, pages, count * 8, READ)?;
    let out = Opened::by_kernel(device, out, count * bytes as u64, READ_WRITE)?;
    let mut of_zeros = None;
    for index in 0..to_usize(count) {
        let mut address = [0; 8];
        list.read(index * 8, &mut address).then_some(())?;
        let page = Opened::by_kernel(device, u64::from_ne_bytes(address), PAGE, READ)?;
        let computed = if page.is_blank() {
            of_zeros.get_or_insert_with(|| compute(zeros(into, PAGE_BYTES))).clone()
        } else {
            compute(read(&page, PAGE_BYTES, into)?)
        };
        (page.is_still_there() && out.write(index * bytes, &computed)).then_some(())?;
    }
    (list.is_still_there() && out.is_still_there()).then_some(())
}

fn read<'a>(from: &Opened, bytes: usize, into: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    let content = at_least(into, bytes);
    (from.read(0, content) && from.is_still_there()).then_some(content)
}

fn zeros(memory: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    let memory = at_least(memory, bytes);
    memory.fill(0);
    memory
}

fn at_least(memory: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    // New memory, because the kernel fills it: without optimisation, `resize` does so byte by byte.
    if memory.len() < bytes {
        *memory = vec![0; bytes];
    }
    &mut memory[..bytes]
}

fn write(device: usize, at: u64, content: &[u8]) -> Option<()> {
    let to = Opened::by_kernel(device, at, content.len() as u64, READ_WRITE)?;
    (to.write(0, content) && to.is_still_there()).then_some(())
}
