//! Hands that touch a block's bytes on any device: through a stream and a little host memory.
#![allow(dead_code, reason = "not every program uses all of it")]

use std::sync::Arc;

use lowtide_device::{Address, Bytes, Device, HostMemory, Result, Stream};
use lowtide_pool::Pool;

const AT_ONCE: u64 = 4 << 20;

pub(crate) struct Hands {
    stream: Stream,
    memory: Arc<HostMemory>,
}

impl Hands {
    pub(crate) fn new(device: &Device) -> Hands {
        let (stream, memory) = (device.stream().unwrap(), device.host_memory(Bytes(AT_ONCE)));
        Hands { stream, memory: memory.unwrap() }
    }

    /// Writes bytes into a block.
    pub(crate) fn write(&self, pool: &Pool, block: Address, offset: u64, bytes: &[u8]) {
        let (reservation, at) = pool.place_of(block).unwrap();
        for (index, part) in bytes.chunks(AT_ONCE as usize).enumerate() {
            let to = (&reservation, at + Bytes(offset + index as u64 * AT_ONCE));
            let size = Bytes(part.len() as u64);
            self.memory.write(Bytes::ZERO, part).unwrap();
            patiently(|| self.stream.copy_in((&self.memory, Bytes::ZERO), to, size));
            patiently(|| self.stream.synchronize());
        }
    }

    /// Reads bytes from a block.
    pub(crate) fn read(&self, pool: &Pool, block: Address, offset: u64, size: usize) -> Vec<u8> {
        let (reservation, at) = pool.place_of(block).unwrap();
        let mut bytes = vec![0; size];
        for (index, part) in bytes.chunks_mut(AT_ONCE as usize).enumerate() {
            let from = (&reservation, at + Bytes(offset + index as u64 * AT_ONCE));
            let size = Bytes(part.len() as u64);
            patiently(|| self.stream.copy_out(from, (&self.memory, Bytes::ZERO), size));
            patiently(|| self.stream.synchronize());
            self.memory.read(Bytes::ZERO, part).unwrap();
        }
        bytes
    }
}

// A fault that was meant for the pool may hit these hands: then once more.
fn patiently(mut work: impl FnMut() -> Result<()>) {
    for _ in 0..4 {
        if work().is_ok() {
            return;
        }
    }
    work().unwrap();
}
