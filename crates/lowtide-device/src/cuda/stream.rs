//! A stream of a CUDA device, and the launch of kernels on it.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUstream};

use super::context::{Session, call, twice};
use super::driver;
use super::kernels::Kernel;
use crate::backend::{BackendStream, RawMark};
use crate::page::digest::{Digest, Keys};
use crate::page::packing;
use crate::{Address, Bytes, Result};

/// The flag of a stream that neither waits for the legacy default stream nor holds it up.
const NON_BLOCKING: u32 = 1;
/// The flag of an event that takes no times, which is faster.
const NO_TIMING: u32 = 2;
const LANES: u32 = 256;
/// The bytes that a lane of a copy reads at a time.
const VECTOR_BYTES: u64 = 16;
/// The blocks of a copy. Each has 32 KiB under way, and the link needs less than 1 MiB to be busy.
const COPY_BLOCKS: u32 = 32;
/// The number of blocks of 256 lanes that a multiprocessor holds at once.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

pub(super) struct CudaStream {
    session: Arc<Session>,
    stream: CUstream,
    id: u64,
}

// SAFETY: a stream is a name that the driver accepts from any thread.
unsafe impl Send for CudaStream {}
// SAFETY: as above; the driver orders concurrent calls.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    pub(super) fn new(session: &Arc<Session>) -> Result<CudaStream> {
        let mut stream = ptr::null_mut();
        // SAFETY: writes one pointer.
        unsafe { call!(session, cuStreamCreate(&raw mut stream, NON_BLOCKING)) }?;
        let mut made = CudaStream { session: Arc::clone(session), stream, id: 0 };
        // Asked now, because a stream that is being captured does not tell.
        // SAFETY: writes one number; the stream was just made.
        let told = unsafe { call!(session, cuStreamGetId(stream, &raw mut made.id)) };
        if let Err(error) = told {
            // SAFETY: the stream was just made and nobody else has it.
            twice("cuStreamDestroy", || unsafe { made.destroy() });
            return Err(error);
        }
        Ok(made)
    }

    // Enough blocks for so many pages, one for each, or as many as the device holds at once.
    fn resident(&self, pages: u64) -> u32 {
        let resident =
            self.session.card.multiprocessors.cast_unsigned() * BLOCKS_PER_MULTIPROCESSOR;
        u32::try_from(pages).unwrap_or(u32::MAX).min(resident.max(1))
    }

    // The parameters are those of the kernel, and what they name stays valid until the work is done.
    unsafe fn launch(
        &self,
        kernel: Kernel,
        blocks: u32,
        parameters: &mut [*mut c_void],
    ) -> Result<()> {
        let (function, calls) = (self.session.function(kernel)?, self.session.driver.kernels()?);
        let (stream, parameters) = (self.stream, parameters.as_mut_ptr());
        self.session.call("cuLaunchKernel", |_| {
            let none = ptr::null_mut();
            // SAFETY: by the caller; the parameters are read before the call returns.
            unsafe {
                (calls.cuLaunchKernel)(
                    function, blocks, 1, 1, LANES, 1, 1, 0, stream, parameters, none,
                )
            }
        })
    }
}

// The address of a kernel's parameter, which is read before the launch returns.
fn parameter<T>(value: &T) -> *mut c_void {
    ptr::from_ref(value).cast_mut().cast()
}

// One block for each segment of so many pages.
fn segments(pages: usize) -> u32 {
    (pages * packing::SEGMENTS) as u32
}

// SAFETY: the driver's own promise for streams and events.
unsafe impl BackendStream for CudaStream {
    fn id(&self) -> u64 {
        self.id
    }

    unsafe fn copy_out(&self, from: Address, to: *mut u8, size: Bytes) -> Result<()> {
        let (to, size) = (to.cast(), size.as_usize());
        // SAFETY: both ranges stay valid until the work is done, by the contract of `BackendStream`.
        unsafe { call!(self.session, cuMemcpyDtoHAsync_v2(to, from.0, size, self.stream)) }
    }

    unsafe fn copy_in(&self, from: *const u8, to: Address, size: Bytes) -> Result<()> {
        let (from, size) = (from.cast(), size.as_usize());
        // SAFETY: as in `copy_out`.
        unsafe { call!(self.session, cuMemcpyHtoDAsync_v2(to.0, from, size, self.stream)) }
    }

    unsafe fn copy_in_by_kernel(&self, from: *const u8, to: Address, size: Bytes) -> Result<()> {
        let count = size.0 / VECTOR_BYTES;
        let mut parameters = [parameter(&from), parameter(&to.0), parameter(&count)];
        // SAFETY: three parameters of the kernel's types; both ranges stay valid until the work is done,
        // and host memory has the same address on the device: `copies_by_kernel` says so.
        unsafe { self.launch(Kernel::CopyIn, COPY_BLOCKS, &mut parameters) }
    }

    unsafe fn copy_within(&self, from: Address, to: Address, size: Bytes) -> Result<()> {
        // SAFETY: as in `copy_out`.
        unsafe {
            call!(self.session, cuMemcpyDtoDAsync_v2(to.0, from.0, size.as_usize(), self.stream))
        }
    }

    unsafe fn fill(&self, at: Address, byte: u8, size: Bytes) -> Result<()> {
        // SAFETY: as in `copy_out`.
        unsafe { call!(self.session, cuMemsetD8Async(at.0, byte, size.as_usize(), self.stream)) }
    }

    unsafe fn digest(
        &self,
        pages: *const Address,
        out: *mut Digest,
        count: usize,
        keys: &Keys,
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let count = count as u64;
        let mut parameters =
            [parameter(&pages), parameter(&out), parameter(&count), parameter(keys)];
        // SAFETY: four parameters of the kernel's types; the staged memory and the pages stay valid
        // until the work is done, by the contract.
        unsafe { self.launch(Kernel::Digest, self.resident(count), &mut parameters) }
    }

    unsafe fn look(&self, pages: *const Address, out: *mut u32, count: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let count = count as u64;
        let mut parameters = [parameter(&pages), parameter(&out), parameter(&count)];
        // SAFETY: as in `digest`, with three parameters.
        unsafe { self.launch(Kernel::Look, self.resident(count), &mut parameters) }
    }

    unsafe fn pack(&self, from: Address, to: Address, bases: &[u8]) -> Result<()> {
        let mut packed_bases = [0; packing::PACKED_AT_ONCE];
        packed_bases[..bases.len()].copy_from_slice(bases);
        let packed_bases = u64::from_le_bytes(packed_bases);
        let mut parameters = [parameter(&from.0), parameter(&to.0), parameter(&packed_bases)];
        // SAFETY: three parameters of the kernel's types; both ranges stay valid until the work is
        // done, and host memory has the same address on the device: `packs` says so.
        unsafe { self.launch(Kernel::Pack, segments(bases.len()), &mut parameters) }
    }

    unsafe fn unpack(&self, from: Address, to: Address, count: usize) -> Result<()> {
        let mut parameters = [parameter(&from.0), parameter(&to.0)];
        // SAFETY: as in `pack`, with two parameters.
        unsafe { self.launch(Kernel::Unpack, segments(count), &mut parameters) }
    }

    fn mark(&self) -> Result<RawMark> {
        let mut event = ptr::null_mut();
        // SAFETY: writes one pointer.
        unsafe { call!(self.session, cuEventCreate(&raw mut event, NO_TIMING)) }?;
        let mark = RawMark(event.expose_provenance() as u64);
        // SAFETY: the event was just made; the stream lives.
        let recorded = unsafe { call!(self.session, cuEventRecord(event, self.stream)) };
        if let Err(error) = recorded {
            // SAFETY: the event was just made and nobody else has it.
            twice("cuEventDestroy", || unsafe { self.forget(mark) });
            return Err(error);
        }
        Ok(mark)
    }

    unsafe fn wait(&self, mark: RawMark) -> Result<()> {
        // SAFETY: an event made by `mark` and not forgotten, by the contract.
        unsafe { call!(self.session, cuEventSynchronize(event(mark))) }
    }

    unsafe fn forget(&self, mark: RawMark) -> Result<()> {
        // SAFETY: as in `wait`.
        unsafe { call!(self.session, cuEventDestroy_v2(event(mark))) }
    }

    fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives: it is destroyed only by its last user.
        unsafe { call!(self.session, cuStreamSynchronize(self.stream)) }
    }

    fn is_done(&self) -> Result<bool> {
        let mut done = true;
        self.session.call("cuStreamQuery", |api| {
            // SAFETY: as in `synchronize`.
            let code = unsafe { (api.cuStreamQuery)(self.stream) };
            done = code != driver::NOT_READY;
            if done { code } else { driver::SUCCESS }
        })?;
        Ok(done)
    }

    unsafe fn destroy(&self) -> Result<()> {
        // SAFETY: made by `new`; the caller uses it no more.
        unsafe { call!(self.session, cuStreamDestroy_v2(self.stream)) }
    }
}

fn event(mark: RawMark) -> CUevent {
    ptr::with_exposed_provenance_mut(usize::try_from(mark.0).expect("a pointer of this process"))
}
