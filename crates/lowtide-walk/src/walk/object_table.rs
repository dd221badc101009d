//! A table from addresses to numbers, for as many objects as an interpreter has.
//!
//! Objects that are created together lie together and refer to each other. So each page of memory
//! that contains an object has a row of numbers, one for each place where an object could begin:
//! what is near in the heap is near here. A hash table by address would miss the cache for each
//! object. The table takes a quarter of the memory of the pages that contain an object. (Larger
//! pages are a few percent faster, and cost more if few objects lie among much else.)

use std::sync::atomic::{AtomicU32, Ordering};

use crate::ask::prefetch::prefetch;
use crate::safety::own_memory::{OutOfMemory, zeroed};

/// Objects lie at multiples of 16, or are at least 16 bytes long: no two begin in the same place.
const PLACE_BITS: u32 = 4;
const PAGE_BITS: u32 = 12;
/// The number of places in a page.
const PLACES: usize = 1 << (PAGE_BITS - PLACE_BITS);

/// How many pages an empty table has room for.
const PAGES_FIRST: usize = 256;

/// A page of memory, and its row.
#[derive(Clone, Copy)]
struct Page {
    /// The number of the page; 0 if this entry is free, because no object lies there.
    page: usize,
    row: usize,
}

const FREE: Page = Page { page: 0, row: 0 };

/// A table from addresses to numbers.
pub(crate) struct ObjectTable {
    /// By hash; if the entry is taken, the next one.
    pages: Vec<Page>,
    len: usize,
    /// How far a hash is shifted to be an index of `pages`.
    shift: u32,
    /// Rows of numbers plus one; 0 if there is none.
    numbers: Vec<u32>,
    /// The page that was added last.
    last: usize,
}

/// The index of the number of an address.
#[derive(Clone, Copy)]
pub(crate) struct TableIndex(usize);

impl ObjectTable {
    /// Creates an empty table.
    pub(crate) fn new() -> Result<ObjectTable, OutOfMemory> {
        ObjectTable::with_pages(PAGES_FIRST)
    }

    /// Adds the page of an address, but not its row.
    #[inline]
    pub(crate) fn add_page(&mut self, address: usize) -> Result<(), OutOfMemory> {
        let page = address >> PAGE_BITS;
        // Most objects are in the same page as the one before.
        if page == self.last { Ok(()) } else { self.add_other_page(page) }
    }

    fn add_other_page(&mut self, page: usize) -> Result<(), OutOfMemory> {
        self.last = page;
        if self.pages[self.slot(page)].page == 0 {
            self.enter(page)?;
        }
        Ok(())
    }

    /// Creates the rows of all pages that were added. No memory is touched: whoever numbers an
    /// object does that.
    pub(crate) fn add_rows(&mut self) -> Result<Numbering<'_>, OutOfMemory> {
        assert!(self.numbers.is_empty(), "no object has a number");
        self.numbers = zeroed(self.len * PLACES)?;
        Ok(Numbering { pages: &self.pages, shift: self.shift, numbers: atomics(&mut self.numbers) })
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) -> Result<(), OutOfMemory> {
        if self.pages.len() > PAGES_FIRST {
            *self = ObjectTable::new()?;
        } else if self.len > 0 {
            self.pages.fill(FREE);
            self.numbers.clear();
            (self.len, self.last) = (0, 0);
        }
        Ok(())
    }

    fn with_pages(pages: usize) -> Result<ObjectTable, OutOfMemory> {
        let shift = u64::BITS - pages.ilog2();
        let mut table =
            ObjectTable { pages: Vec::new(), len: 0, shift, numbers: Vec::new(), last: 0 };
        table.pages.try_reserve_exact(pages)?;
        table.pages.resize(pages, FREE);
        Ok(table)
    }

    /// Returns the number of an address.
    pub(crate) fn get(&self, address: usize) -> Option<u32> {
        self.find(address).and_then(|index| self.number(index))
    }

    /// Returns the index of an address, whether it has a number or not.
    #[inline]
    pub(crate) fn index(&mut self, address: usize) -> Result<TableIndex, OutOfMemory> {
        match self.find(address) {
            Some(index) => Ok(index),
            None => self.add(address),
        }
    }

    /// Returns the index of an address and prefetches it, or `None` if no object of its page has a
    /// number.
    #[inline]
    pub(crate) fn expect(&self, address: usize) -> Option<TableIndex> {
        let index = self.find(address)?;
        prefetch((&raw const self.numbers[index.0]).addr());
        Some(index)
    }

    /// Returns the number at an index.
    #[inline]
    pub(crate) fn number(&self, TableIndex(at): TableIndex) -> Option<u32> {
        self.numbers[at].checked_sub(1)
    }

    /// Sets the number at an index.
    #[inline]
    pub(crate) fn fill(&mut self, TableIndex(at): TableIndex, number: u32) {
        debug_assert_eq!(self.numbers[at], 0, "the index is free");
        self.numbers[at] = number + 1;
    }

    #[inline]
    fn find(&self, address: usize) -> Option<TableIndex> {
        let found = self.pages[self.slot(address >> PAGE_BITS)];
        (found.page != 0).then(|| index_in(found.row, address))
    }

    /// Returns the index of a page in `pages`, whether it is there or not.
    #[inline]
    fn slot(&self, page: usize) -> usize {
        slot(&self.pages, self.shift, page)
    }

    /// Adds a row for the page of an address.
    #[cold]
    fn add(&mut self, address: usize) -> Result<TableIndex, OutOfMemory> {
        self.numbers.try_reserve(PLACES)?;
        let row = self.enter(address >> PAGE_BITS)?;
        self.numbers.resize(self.len * PLACES, 0);
        Ok(index_in(row, address))
    }

    /// Adds a page and returns the number of its row.
    fn enter(&mut self, page: usize) -> Result<usize, OutOfMemory> {
        if self.len * 3 >= self.pages.len() * 2 {
            self.grow()?;
        }
        let (slot, row) = (self.slot(page), self.len);
        self.pages[slot] = Page { page, row };
        self.len += 1;
        Ok(row)
    }

    fn grow(&mut self) -> Result<(), OutOfMemory> {
        let mut larger = ObjectTable::with_pages(self.pages.len() * 2)?;
        for page in self.pages.iter().filter(|page| page.page != 0) {
            let slot = larger.slot(page.page);
            larger.pages[slot] = *page;
        }
        (self.pages, self.shift) = (larger.pages, larger.shift);
        Ok(())
    }
}

/// Numbers the objects of a table in several threads.
pub(crate) struct Numbering<'t> {
    pages: &'t [Page],
    shift: u32,
    numbers: &'t [AtomicU32],
}

impl Numbering<'_> {
    /// Sets the numbers of some objects, the first of which is `first`. Their pages were added.
    pub(crate) fn fill(&self, first: u32, addresses: &[usize]) {
        let (mut last, mut row) = (0, 0);
        for (number, address) in (first..).zip(addresses) {
            let page = address >> PAGE_BITS;
            if page != last {
                (last, row) = (page, self.pages[slot(self.pages, self.shift, page)].row);
            }
            let TableIndex(at) = index_in(row, *address);
            self.numbers[at].store(number + 1, Ordering::Relaxed);
        }
    }
}

/// Returns the index of a page in a table of pages, whether it is there or not.
#[inline]
fn slot(pages: &[Page], shift: u32, page: usize) -> usize {
    let product = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut at = (product >> shift) as usize;
    while pages[at].page != page && pages[at].page != 0 {
        at = (at + 1) & (pages.len() - 1);
    }
    at
}

/// Returns numbers that only this caller has, to be written by several threads.
fn atomics(numbers: &mut [u32]) -> &[AtomicU32] {
    let numbers: *mut [u32] = numbers;
    // SAFETY: both types have the same layout, and for as long as this exists nobody uses the
    // numbers otherwise.
    unsafe { &*(numbers as *const [AtomicU32]) }
}

fn index_in(row: usize, address: usize) -> TableIndex {
    TableIndex(row * PLACES + (address >> PLACE_BITS) % PLACES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_numbered_together_and_one_by_one() {
        // Several to a page, and more pages than the first table has.
        let addresses: Vec<usize> = (0..5000).map(|at| 0x7f00_0000_0000 + at * 1040).collect();
        let mut table = ObjectTable::new().unwrap();
        for address in &addresses {
            table.add_page(*address).unwrap();
        }
        let numbering = table.add_rows().unwrap();
        let (front, back) = addresses.split_at(2000);
        std::thread::scope(|scope| {
            scope.spawn(|| numbering.fill(0, front));
            numbering.fill(2000, back);
        });
        let beside = addresses[7] + 16;
        assert_eq!(table.get(beside), None, "its page is there");
        assert_eq!(table.get(1 << 40), None, "its page is not");
        for address in [beside, 1 << 40] {
            let index = table.index(address).unwrap();
            table.fill(index, 6000);
            assert_eq!(table.get(address), Some(6000));
        }
        assert!((0..).zip(&addresses).all(|(at, address)| table.get(*address) == Some(at)));
        table.clear().unwrap();
        assert!(addresses.iter().all(|address| table.get(*address).is_none()));
    }
}
