//! A driver built from entry points that were handed over, in a context of the caller's: how a library
//! that interposes the driver uses a device.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use lowtide_device::cuda::{BorrowedContext, Context, Driver};
use lowtide_device::{Device, Error, Result};

use super::fixture::{NamedCase, START, host_memory, noise, pages, read, ready, write};
use crate::keys;
use crate::raw::Raw;
use crate::suite::Target;

pub(super) const CASES: &[NamedCase] = &[
    ("a_device_works_in_a_context_of_the_caller", works_in_a_context_of_the_caller),
    ("a_driver_without_kernels_does_all_but_digests", does_all_but_digests),
    ("a_missing_group_is_an_error_with_a_name", a_missing_group_has_a_name),
    ("a_driver_without_a_core_function_is_refused", without_a_core_function),
    ("a_primary_context_needs_its_functions", a_primary_context_needs_its_functions),
];

/// A context that the test creates and destroys itself.
struct OwnContext {
    raw: Raw,
    context: u64,
}

impl OwnContext {
    fn create() -> OwnContext {
        let raw = Raw::load();
        let mut context = 0;
        assert_eq!(raw.cuCtxCreate_v2(&mut context, 0, 0), 0);
        assert_eq!(raw.cuCtxPopCurrent_v2(&mut 0), 0);
        OwnContext { raw, context }
    }

    fn is_primary_active(&self) -> bool {
        let (mut flags, mut active) = (0, 0);
        assert_eq!(self.raw.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active), 0);
        active != 0
    }

    #[allow(unsafe_code, reason = "borrows the context")]
    fn device(&self, driver: Driver) -> Result<Device> {
        let context = std::ptr::with_exposed_provenance_mut(self.context as usize);
        let context = NonNull::new(context).expect("a context is not null");
        // SAFETY: the test destroys the context after it dropped the device.
        let context = unsafe { BorrowedContext::new(context) };
        Device::cuda_with(Arc::new(driver), Context::Borrowed(context))
    }

    /// Destroys the context, after checking that it still works and that nothing of ours is stacked.
    fn destroy(self) {
        assert_eq!(self.raw.cuCtxPushCurrent_v2(self.context), 0);
        assert_eq!(self.raw.cuMemGetInfo_v2(&mut 0, &mut 0), 0, "the context is alive");
        assert_eq!(self.raw.cuCtxDestroy_v2(self.context), 0);
        let mut current = 1;
        assert_eq!(self.raw.cuCtxGetCurrent(&mut current), 0);
        assert_eq!(current, 0, "nothing is left on the stack");
    }
}

/// Builds the target's driver from its entry points, without those that begin with one of `hidden`.
#[allow(unsafe_code, reason = "hands the driver's own functions over")]
fn driver_without(hidden: &[&str]) -> Result<Driver> {
    let raw = Raw::load();
    let is_hidden = |name: &CStr| {
        let name = name.to_str().expect("names are ASCII");
        hidden.iter().any(|hidden| name.starts_with(hidden))
    };
    let look_up = |name: &CStr| if is_hidden(name) { None } else { raw.entry_point(name) };
    // SAFETY: the functions are the driver's own, and its library is never unloaded.
    unsafe { Driver::from_entry_points(look_up) }
}

/// The functions that create, retain or destroy a context.
const CONTEXT_MAKERS: &[&str] = &["cuDevicePrimaryCtx", "cuCtxCreate", "cuCtxDestroy"];

fn works_in_a_context_of_the_caller(_: Target) {
    let own = OwnContext::create();
    let was_active = own.is_primary_active();
    let device = own.device(driver_without(CONTEXT_MAKERS).unwrap()).unwrap();
    assert_eq!(device.info().id.to_string(), "cuda:0", "the context's device");
    let (reservation, stream) = (ready(&device, pages(2)), device.stream().unwrap());
    let bytes = noise(7, pages(2));
    write(&device, &stream, (&reservation, START), &bytes);
    assert_eq!(read(&device, &stream, (&reservation, START), pages(2)), bytes);
    let digests = stream.digest((&reservation, START), pages(2), keys::fixed()).unwrap();
    let expected: Vec<_> =
        bytes.chunks(pages(1).as_usize()).map(|page| keys::fixed().digest(page)).collect();
    assert_eq!(digests.wait().unwrap(), expected);
    assert_eq!(own.is_primary_active(), was_active, "no other context was created");
    drop((reservation, stream, device));
    own.destroy();
}

fn does_all_but_digests(_: Target) {
    let own = OwnContext::create();
    let device = own.device(driver_without(&["cuLaunchKernel"]).unwrap()).unwrap();
    let (reservation, stream) = (ready(&device, pages(1)), device.stream().unwrap());
    let bytes = noise(8, pages(1));
    write(&device, &stream, (&reservation, START), &bytes);
    let refused = stream.digest((&reservation, START), pages(1), keys::fixed()).map(drop);
    assert!(
        matches!(refused, Err(Error::MissingEntryPoint { name: "cuLaunchKernel", .. })),
        "{refused:?}"
    );
    stream.synchronize().unwrap();
    assert_eq!(read(&device, &stream, (&reservation, START), pages(1)), bytes);
    drop((host_memory(&device, pages(1)), reservation, stream, device));
    own.destroy();
}

fn a_missing_group_has_a_name(_: Target) {
    let driver = driver_without(&["cuCheckpointProcessRestore"]).unwrap();
    driver.kernels().expect("the other groups are there");
    driver.primary_context().expect("the other groups are there");
    let error = driver.checkpoint().map(drop).unwrap_err().to_string();
    assert_eq!(
        error,
        "the CUDA driver has no cuCheckpointProcessRestore, which came with CUDA 12.8; install \
         driver 570 or newer"
    );
}

fn without_a_core_function(_: Target) {
    let error = driver_without(&["cuMemMap"]).map(drop).unwrap_err();
    assert!(matches!(error, Error::MissingEntryPoint { name: "cuMemMap", .. }), "{error}");
}

fn a_primary_context_needs_its_functions(_: Target) {
    let driver = driver_without(CONTEXT_MAKERS).unwrap();
    let error = Device::cuda_with(Arc::new(driver), Context::Primary(0)).map(drop).unwrap_err();
    assert!(
        matches!(error, Error::MissingEntryPoint { name: "cuDevicePrimaryCtxRetain", .. }),
        "{error}"
    );
}
