//! A shelf: freed blocks kept whole, in their size, until somebody asks for something else.
//!
//! Programs free a block and soon ask for one of the same size on the same stream. Such a block is
//! found here at once, without splitting, joining or searching. The first request that finds nothing
//! here sends everything back to the arena, where it is joined with its neighbours; so memory is as
//! tight as if every free had gone there at once.

use crate::state::handles::Handles;

const SLOTS: usize = 1024;

/// Resting blocks of one arena.
pub(crate) struct Shelf {
    /// Found by size and owner; each a list through the handles.
    lists: Box<[List; SLOTS]>,
    /// Which of them were used since the last clearing.
    used: Vec<u16>,
    /// Blocks whose place in `lists` was another size's.
    others: u64,
}

#[derive(Clone, Copy)]
struct List {
    grains: u32,
    owner: u32,
    /// An address, or zero.
    head: u64,
}

impl Default for Shelf {
    fn default() -> Shelf {
        let empty = List { grains: 0, owner: 0, head: 0 };
        Shelf { lists: Box::new([empty; SLOTS]), used: Vec::new(), others: 0 }
    }
}

fn place(grains: u32, owner: u32) -> usize {
    let mixed = (u64::from(grains) << 20 ^ u64::from(owner)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 54) as usize
}

impl Shelf {
    /// Takes a resting block of this very size that its owner may have again.
    pub(crate) fn take(&mut self, handles: &mut Handles, grains: u32, owner: u32) -> Option<u64> {
        let list = &mut self.lists[place(grains, owner)];
        if list.head == 0 || list.grains != grains || list.owner != owner {
            return None;
        }
        let address = list.head;
        let handle = handles.get_mut(address).expect("what rests has a handle");
        list.head = handle.next;
        handle.resting = false;
        Some(address)
    }

    /// Lets a block rest that was just freed; its handle says so already.
    pub(crate) fn put(&mut self, handle: &mut crate::state::handles::Handle) {
        let index = place(handle.grains, handle.owner);
        let list = &mut self.lists[index];
        if list.head == 0 {
            if list.grains == 0 {
                self.used.push(index as u16);
            }
            (list.grains, list.owner) = (handle.grains, handle.owner);
        } else if list.grains != handle.grains || list.owner != handle.owner {
            handle.next = std::mem::replace(&mut self.others, handle.address);
            return;
        }
        handle.next = std::mem::replace(&mut list.head, handle.address);
    }

    /// Takes everything off: the heads of lists through the handles.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = u64> + '_ {
        let others = std::mem::take(&mut self.others);
        let lists = &mut self.lists;
        let heads = self.used.drain(..).map(|index| {
            let list = &mut lists[usize::from(index)];
            list.grains = 0;
            std::mem::take(&mut list.head)
        });
        heads.chain([others]).filter(|head| *head != 0)
    }
}
