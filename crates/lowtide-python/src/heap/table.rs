//! Addresses to numbers, for as many objects as an interpreter has.
//!
//! Objects that are made together lie together, and refer to each other. So each page of memory that has
//! an object has a row of numbers, one for each place where an object could begin, and what is near in
//! the heap is near here; a table of places by hash would ask for a cache line that nobody has for each.
//! It takes a quarter of the pages that have an object. (Larger pages are some hundredths faster, and cost
//! more where few objects lie among much else.)

use super::object::prefetch;

/// Objects lie at multiples of 16, or are at least as long: none begins where another does.
const PLACE_BITS: u32 = 4;
const PAGE_BITS: u32 = 12;
/// Places of a page.
const PLACES: usize = 1 << (PAGE_BITS - PLACE_BITS);

/// A page of memory, and where its numbers begin, counted in rows.
#[derive(Clone, Copy)]
struct Page {
    /// 0 where this is free: nothing is ever there.
    page: usize,
    row: usize,
}

const FREE: Page = Page { page: 0, row: 0 };

/// Addresses and their numbers.
pub(crate) struct Table {
    /// By hash, the next one where that is taken.
    pages: Vec<Page>,
    len: usize,
    /// How far a product is shifted to be a place in `pages`.
    shift: u32,
    /// Rows of numbers, each one higher than it is; 0 where there is none.
    numbers: Vec<u32>,
}

/// Where the number of an address is, or would be.
#[derive(Clone, Copy)]
pub(crate) struct Place(usize);

impl Table {
    /// With room for the numbers of so many objects of the usual size, before it has to grow.
    pub(crate) fn with_room(objects: usize) -> Table {
        let mut table = Table::with_pages(256);
        table.numbers.reserve(objects * 5);
        table
    }

    fn with_pages(pages: usize) -> Table {
        let shift = u64::BITS - pages.ilog2();
        Table { pages: vec![FREE; pages], len: 0, shift, numbers: Vec::new() }
    }

    /// The number of an address.
    pub(crate) fn get(&self, address: usize) -> Option<u32> {
        self.find(address).and_then(|place| self.number(place))
    }

    /// Where an address has its number, whether it has one or not. Asks for the memory there.
    #[inline]
    pub(crate) fn place(&mut self, address: usize) -> Place {
        let place = self.find(address).unwrap_or_else(|| self.add(address));
        prefetch(&raw const self.numbers[place.0]);
        place
    }

    /// The number at a place.
    #[inline]
    pub(crate) fn number(&self, Place(at): Place) -> Option<u32> {
        self.numbers[at].checked_sub(1)
    }

    /// Gives the address of a place a number.
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

    /// Where a page is, or would be.
    #[inline]
    fn slot(&self, page: usize) -> usize {
        let product = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut at = (product >> self.shift) as usize;
        while self.pages[at].page != page && self.pages[at].page != 0 {
            at = (at + 1) & (self.pages.len() - 1);
        }
        at
    }

    /// A row for the page of an address.
    #[cold]
    fn add(&mut self, address: usize) -> Place {
        if self.len * 3 >= self.pages.len() * 2 {
            self.grow();
        }
        let page = address >> PAGE_BITS;
        let (slot, row) = (self.slot(page), self.len);
        self.pages[slot] = Page { page, row };
        self.len += 1;
        self.numbers.resize(self.len * PLACES, 0);
        place(row, address)
    }

    fn grow(&mut self) {
        let mut larger = Table::with_pages(self.pages.len() * 2);
        for page in self.pages.iter().filter(|page| page.page != 0) {
            let slot = larger.slot(page.page);
            larger.pages[slot] = *page;
        }
        (self.pages, self.shift) = (larger.pages, larger.shift);
    }
}

fn place(row: usize, address: usize) -> Place {
    Place(row * PLACES + (address >> PLACE_BITS) % PLACES)
}
