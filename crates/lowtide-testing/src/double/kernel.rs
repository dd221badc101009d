//! Modules and launches.
//!
//! The double runs no PTX. A module is the set of `.entry` names in its text, and the kernels with a
//! host implementation are lowtide's own. Their arguments are copied at the launch; the memory they
//! name is looked up when they run.

use std::sync::Arc;

use super::code::{INVALID_DEVICE_FUNCTION, INVALID_HANDLE, INVALID_PTX, INVALID_VALUE, NOT_FOUND};
use super::entry::entry;
use super::objects::{Current, Function, Launch, Module, Work};
use super::pointers::{Out, Params, Text};
use super::tables;

const MAX_BLOCK_THREADS: u64 = 1024;

/// Returns the names after each `.entry` of a PTX text.
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
        let mut state = tables::lock();
        let Current { context, .. } = state.healthy()?;
        let entries = entries_of(&image.get()?);
        if entries.is_empty() {
            return Err(INVALID_PTX);
        }
        let id = state.new_id();
        state.modules.insert(id, Module { context, entries });
        module.put(id)
    }

    fn cuModuleUnload(module: u64) {
        let mut state = tables::lock();
        state.healthy()?;
        state.modules.remove(&module).ok_or(INVALID_HANDLE)?;
        state.functions.retain(|_, function| function.module != module);
        Ok(())
    }

    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: Text) {
        let mut state = tables::lock();
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
        let mut state = tables::lock();
        let current = state.healthy()?;
        let threads = [block_x, block_y, block_z].into_iter().map(u64::from).product::<u64>();
        let blocks = [grid_x, grid_y, grid_z];
        if threads == 0 || threads > MAX_BLOCK_THREADS || blocks.contains(&0) || extra != 0 {
            return Err(INVALID_VALUE);
        }
        let count = u64::from(grid_x) / 4;
        let launch = match state.functions.get(&function).ok_or(INVALID_HANDLE)?.name.as_str() {
            "lowtide_digest" => Launch::Digest {
                pages: params.get(0)?,
                out: params.get(1)?,
                count: params.get(2)?,
                keys: Box::new(params.get(3)?),
            },
            "lowtide_copy_in" => {
                let count: u64 = params.get(2)?;
                let size = count.saturating_mul(16);
                Launch::CopyIn { from: params.get(0)?, to: params.get(1)?, size }
            }
            "lowtide_look" => {
                Launch::Look { pages: params.get(0)?, out: params.get(1)?, count: params.get(2)? }
            }
            "lowtide_pack" => Launch::Pack {
                pages: params.get(0)?,
                packed: params.get(1)?,
                bases: params.get(2)?,
                count,
            },
            "lowtide_unpack" => {
                Launch::Unpack { packed: params.get(0)?, pages: params.get(1)?, count }
            }
            _ => return Err(INVALID_DEVICE_FUNCTION),
        };
        state.submit(current, stream, Work::Launch(Arc::new(launch))).map(drop)
    }
}
