//! What the driver and NVML say of the same device.

use lowtide_device::Usage;
use lowtide_device::nvml::Nvml;

use super::fixture::{Fixture, Rule, SUCCESS};

pub(super) const RULES: &[Rule] = &[
    ("a_devices_total_leaves_out_what_nvml_calls_reserved", a_devices_total),
    ("a_contexts_total_leaves_out_what_nvml_calls_reserved", a_contexts_total),
    ("nvml_and_the_driver_agree_on_what_is_free", agree_on_what_is_free),
];

/// Loads NVML and returns it with the UUID of the first GPU.
pub(super) fn nvml() -> (Nvml, String) {
    let nvml = Nvml::load().expect("NVML comes with the driver");
    let uuid = nvml.uuids().expect("the GPUs").remove(0);
    (nvml, uuid)
}

fn usage() -> Usage {
    let (nvml, uuid) = nvml();
    nvml.usage(&uuid).expect("the usage")
}

fn a_devices_total(gpu: &Fixture) {
    let (mut total, usage) = (0, usage());
    assert_eq!(gpu.raw.cuDeviceTotalMem_v2(&mut total, 0), SUCCESS);
    assert_eq!(total, usage.total.0 - usage.reserved.0, "{usage:?}");
}

fn a_contexts_total(gpu: &Fixture) {
    let (mut total, usage) = (0, usage());
    assert_eq!(gpu.raw.cuMemGetInfo_v2(&mut 0, &mut total), SUCCESS);
    assert_eq!(total, usage.total.0 - usage.reserved.0, "{usage:?}");
}

fn agree_on_what_is_free(gpu: &Fixture) {
    let usage = usage();
    assert_eq!(gpu.free_bytes(), usage.free.0, "{usage:?}");
}
