//! Modules and launches.
//!
//! The double runs no PTX. A module is the set of `.entry` names in its text, and
//! the one kernel with a host implementation is lowtide's own page digest. Its
//! arguments are copied at the launch; the memory they name is looked up when it runs.

use std::sync::Arc;

use lowtide_device::digest::{Keys, PAGE_BYTES};

use super::code::{
    ILLEGAL_ADDRESS, INVALID_DEVICE_FUNCTION, INVALID_HANDLE, INVALID_PTX, INVALID_VALUE, NOT_FOUND,
};
use super::copy::{Opened, Work};
use super::entry::{Out, Outcome, Params, Text, entry};
use super::state::{self, READ, READ_WRITE, to_usize};

const MAX_BLOCK_THREADS: u64 = 1024;
/// A count of pages beyond this is a wild argument.
const MAX_PAGES: u64 = 1 << 32;

pub(super) struct Module {
    pub(super) device: usize,
    entries: Vec<String>,
}

pub(super) struct Function {
    pub(super) module: u64,
    name: String,
}

/// `lowtide_digest(const u64 *pages, u64 *out, u64 count, Keys keys)`, with the
/// arguments as they were at the launch.
pub(super) struct Launch {
    pages: u64,
    out: u64,
    count: u64,
    keys: Keys,
}

impl Launch {
    /// Runs it; memory that is not there is an illegal address.
    pub(super) fn run(&self, device: usize) -> Outcome {
        self.digest_all(device).ok_or(ILLEGAL_ADDRESS)
    }

    fn digest_all(&self, device: usize) -> Option<()> {
        let count = Some(self.count).filter(|count| *count <= MAX_PAGES)?;
        let list = Opened::by_kernel(device, self.pages, count * 8, READ)?;
        let out = Opened::by_kernel(device, self.out, count * 16, READ_WRITE)?;
        let mut content = vec![0; PAGE_BYTES];
        for index in 0..to_usize(count) {
            let mut address = [0; 8];
            list.read(index * 8, &mut address).then_some(())?;
            let address = u64::from_ne_bytes(address);
            let page = Opened::by_kernel(device, address, PAGE_BYTES as u64, READ)?;
            page.read(0, &mut content).then_some(())?;
            let halves = self.keys.digest(&content).0;
            let halves: Vec<u8> = halves.iter().flat_map(|half| half.to_ne_bytes()).collect();
            out.write(index * 16, &halves).then_some(())?;
            page.is_still_there().then_some(())?;
        }
        (list.is_still_there() && out.is_still_there()).then_some(())
    }
}

/// The names after each `.entry` of a PTX text.
fn entries_of(image: &str) -> Vec<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '$';
    image
        .split(".entry")
        .skip(1)
        .map(|rest| rest.trim_start().chars().take_while(|letter| is_name(*letter)).collect())
        .filter(|name: &String| !name.is_empty())
        .collect()
}

entry! {
    fn cuModuleLoadData(module: Out<u64>, image: Text) {
        let mut state = state::lock();
        let device = state.healthy()?;
        let entries = entries_of(&image.get()?);
        if entries.is_empty() {
            return Err(INVALID_PTX);
        }
        let id = state.new_id();
        state.modules.insert(id, Module { device, entries });
        module.put(id)
    }

    fn cuModuleUnload(module: u64) {
        let mut state = state::lock();
        state.healthy()?;
        state.modules.remove(&module).ok_or(INVALID_HANDLE)?;
        state.functions.retain(|_, function| function.module != module);
        Ok(())
    }

    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: Text) {
        let mut state = state::lock();
        state.healthy()?;
        let name = name.get()?;
        let entries = &state.modules.get(&module).ok_or(INVALID_HANDLE)?.entries;
        if !entries.contains(&name) {
            return Err(NOT_FOUND);
        }
        let id = state.new_id();
        state.functions.insert(id, Function { module, name });
        function.put(id)
    }

    fn cuLaunchKernel(
        function: u64,
        grid_x: u32, grid_y: u32, grid_z: u32,
        block_x: u32, block_y: u32, block_z: u32,
        _shared_bytes: u32,
        stream: u64,
        params: Params,
        extra: usize,
    ) {
        let mut state = state::lock();
        let device = state.healthy()?;
        let threads = [block_x, block_y, block_z].into_iter().map(u64::from).product::<u64>();
        let blocks = [grid_x, grid_y, grid_z];
        if threads == 0 || threads > MAX_BLOCK_THREADS || blocks.contains(&0) || extra != 0 {
            return Err(INVALID_VALUE);
        }
        if state.functions.get(&function).ok_or(INVALID_HANDLE)?.name != "lowtide_digest" {
            return Err(INVALID_DEVICE_FUNCTION);
        }
        let launch = Launch {
            pages: params.get(0)?,
            out: params.get(1)?,
            count: params.get(2)?,
            keys: params.get(3)?,
        };
        state.submit(device, stream, Work::Launch(Arc::new(launch))).map(drop)
    }
}
