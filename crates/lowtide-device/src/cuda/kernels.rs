//! lowtide's own kernels, in modules of PTX.

use std::ffi::CStr;

// Compiled from the sources beside them; `cargo xtask ptx` makes them anew.
const DIGEST_PTX: &str = concat!(include_str!("../../kernels/digest.ptx"), "\0");
const COPY_PTX: &str = concat!(include_str!("../../kernels/copy.ptx"), "\0");
const PACK_PTX: &str = concat!(include_str!("../../kernels/pack.ptx"), "\0");

/// A kernel of lowtide's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    Digest,
    CopyIn,
    Look,
    Pack,
    Unpack,
}

/// The kernels of a module, in the order of its functions.
const MODULES: [(&str, &[Kernel]); 3] = [
    (DIGEST_PTX, &[Kernel::Digest]),
    (COPY_PTX, &[Kernel::CopyIn]),
    (PACK_PTX, &[Kernel::Look, Kernel::Pack, Kernel::Unpack]),
];

impl Kernel {
    /// Returns the module that the kernel is in: its PTX, and all its kernels.
    pub(super) fn module(self) -> (&'static str, &'static [Kernel]) {
        let has = |(_, kernels): &&(&str, &[Kernel])| kernels.contains(&self);
        *MODULES.iter().find(has).expect("each kernel is in a module")
    }

    /// Returns the name of its function in the module.
    pub(super) fn name(self) -> &'static CStr {
        match self {
            Kernel::Digest => c"lowtide_digest",
            Kernel::CopyIn => c"lowtide_copy_in",
            Kernel::Look => c"lowtide_look",
            Kernel::Pack => c"lowtide_pack",
            Kernel::Unpack => c"lowtide_unpack",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_compiled_from(ptx: &str, name: &str, source: &[u8]) {
        let hash = source.iter().fold(0xcbf2_9ce4_8422_2325_u64, |state, byte| {
            (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let expected = format!("// compiled from {name}, FNV-1a {hash:016x}");
        assert_eq!(ptx.lines().next(), Some(expected.as_str()), "run `cargo xtask ptx`");
    }

    #[test]
    fn the_ptx_was_compiled_from_the_source_beside_it() {
        let source = include_bytes!("../../kernels/digest.cu");
        assert_compiled_from(DIGEST_PTX, "digest.cu", source);
        assert_compiled_from(COPY_PTX, "copy.cu", include_bytes!("../../kernels/copy.cu"));
        assert_compiled_from(PACK_PTX, "pack.cu", include_bytes!("../../kernels/pack.cu"));
    }

    #[test]
    fn each_module_has_its_kernels() {
        for (image, kernels) in MODULES {
            for kernel in kernels {
                let entry = format!(".entry {}(", kernel.name().to_str().unwrap());
                assert!(image.contains(&entry), "{entry}");
            }
        }
    }
}
