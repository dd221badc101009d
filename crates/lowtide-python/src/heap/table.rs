//! A table from addresses to numbers, for as many objects as an interpreter has.
//!
//! Objects that are created together lie together and refer to each other. So each page of memory
//! that contains an object has a row of numbers, one for each place where an object could begin:
//! what is near in the heap is near here. A hash table by address would miss the cache for each
//! object. The table takes a quarter of the memory of the pages that contain an object. (Larger
//! pages are a few percent faster, and cost more if few objects lie among much else.)

use super::object::prefetch;
use super::out_of_memory::OutOfMemory;

/// Objects lie at multiples of 16, or are at least 16 bytes long: no two begin in the same place.
const PLACE_BITS: u32 = 4;
const PAGE_BITS: u32 = 12;
/// The number of places in a page.
const PLACES: usize = 1 << (PAGE_BITS - PLACE_BITS);

/// A page of memory, and its row.
#[derive(Clone, Copy)]
struct Page {
    /// The number of the page; 0 if this entry is free, because no object lies there.
    page: usize,
    row: usize,
}

const FREE: Page = Page { page: 0, row: 0 };

/// A table from addresses to numbers.
pub(crate) struct Table {
    /// By hash; if the entry is taken, the next one.
    pages: Vec<Page>,
    len: usize,
    /// How far a hash is shifted to be an index of `pages`.
    shift: u32,
    /// Rows of numbers plus one; 0 if there is none.
    numbers: Vec<u32>,
}

/// The index of the number of an address.
#[derive(Clone, Copy)]
pub(crate) struct Place(usize);

impl Table {
    /// Creates a table with room for so many objects of the usual size.
    pub(crate) fn with_room(objects: usize) -> Result<Table, OutOfMemory> {
        let mut table = Table::with_pages(256)?;
        table.numbers.try_reserve(objects * 5)?;
        Ok(table)
    }

    fn with_pages(pages: usize) -> Result<Table, OutOfMemory> {
        let shift = u64::BITS - pages.ilog2();
        let mut table = Table { pages: Vec::new(), len: 0, shift, numbers: Vec::new() };
        table.pages.try_reserve_exact(pages)?;
        table.pages.resize(pages, FREE);
        Ok(table)
    }

    /// Returns the number of an address.
    pub(crate) fn get(&self, address: usize) -> Option<u32> {
        self.find(address).and_then(|place| self.number(place))
    }

    /// Returns the place of an address, whether it has a number or not.
    #[inline]
    pub(crate) fn place(&mut self, address: usize) -> Result<Place, OutOfMemory> {
        match self.find(address) {
            Some(place) => Ok(place),
            None => self.add(address),
        }
    }

    /// Returns the place of an address and prefetches it, or `None` if no object of its page has a
    /// number.
    #[inline]
    pub(crate) fn expect(&self, address: usize) -> Option<Place> {
        let place = self.find(address)?;
        prefetch(&raw const self.numbers[place.0]);
        Some(place)
    }

    /// Returns the number at a place.
    #[inline]
    pub(crate) fn number(&self, Place(at): Place) -> Option<u32> {
        self.numbers[at].checked_sub(1)
    }

    /// Sets the number at a place.
    #[inline]
    pub(crate) fn fill(&mut self, Place(at): Place, number: u32) {
        debug_assert_eq!(self.numbers[at], 0, "the place is free");
        self.numbers[at] = number + 1;
    }

    #[inline]
    fn find(&self, address: usize) -> Option<Place> {
        let found = self.pages[self.slot(address >> PAGE_BITS)];
        (found.page != 0).then(|| place(found.row, address))
    }

    /// Returns the index of a page in `pages`, whether it is there or not.
    #[inline]
    fn slot(&self, page: usize) -> usize {
        let product = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut at = (product >> self.shift) as usize;
        while self.pages[at].page != page && self.pages[at].page != 0 {
            at = (at + 1) & (self.pages.len() - 1);
        }
        at
    }

    /// Adds a row for the page of an address.
    #[cold]
    fn add(&mut self, address: usize) -> Result<Place, OutOfMemory> {
        if self.len * 3 >= self.pages.len() * 2 {
            self.grow()?;
        }
        self.numbers.try_reserve(PLACES)?;
        let page = address >> PAGE_BITS;
        let (slot, row) = (self.slot(page), self.len);
        self.pages[slot] = Page { page, row };
        self.len += 1;
        self.numbers.resize(self.len * PLACES, 0);
        Ok(place(row, address))
    }

    fn grow(&mut self) -> Result<(), OutOfMemory> {
        let mut larger = Table::with_pages(self.pages.len() * 2)?;
        for page in self.pages.iter().filter(|page| page.page != 0) {
            let slot = larger.slot(page.page);
            larger.pages[slot] = *page;
        }
        (self.pages, self.shift) = (larger.pages, larger.shift);
        Ok(())
    }
}

fn place(row: usize, address: usize) -> Place {
    Place(row * PLACES + (address >> PLACE_BITS) % PLACES)
}
