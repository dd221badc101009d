//! lowtide's own kernels: three modules, each loaded when one of its kernels is first needed.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::CStr;
use std::ptr;

use cudarc::driver::sys::{CUfunction, CUmodule};

use super::context::{Session, twice};
use crate::Result;

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
    Differs,
}

/// The kernels of a module, in the order of its functions.
const MODULES: [(&str, &[Kernel]); 3] = [
    (DIGEST_PTX, &[Kernel::Digest]),
    (COPY_PTX, &[Kernel::CopyIn]),
    (PACK_PTX, &[Kernel::Look, Kernel::Pack, Kernel::Unpack, Kernel::Differs]),
];

impl Kernel {
    fn name(self) -> &'static CStr {
        match self {
            Kernel::Digest => c"lowtide_digest",
            Kernel::CopyIn => c"lowtide_copy_in",
            Kernel::Look => c"lowtide_look",
            Kernel::Pack => c"lowtide_pack",
            Kernel::Unpack => c"lowtide_unpack",
            Kernel::Differs => c"lowtide_differs",
        }
    }
}

/// The kernels that were loaded.
#[derive(Default)]
pub(super) struct Kernels {
    modules: Vec<CUmodule>,
    functions: Vec<(Kernel, CUfunction)>,
}

impl Kernels {
    /// Returns a kernel, loaded with its module if it is not.
    pub(super) fn function(&mut self, wanted: Kernel, session: &Session) -> Result<CUfunction> {
        if let Some((_, function)) = self.functions.iter().find(|(kernel, _)| *kernel == wanted) {
            return Ok(*function);
        }
        let (image, kernels) = match wanted {
            Kernel::Digest => MODULES[0],
            Kernel::CopyIn => MODULES[1],
            Kernel::Look | Kernel::Pack | Kernel::Unpack | Kernel::Differs => MODULES[2],
        };
        let calls = session.driver.kernels()?;
        let mut module = ptr::null_mut();
        session.call("cuModuleLoadData", |_| {
            // SAFETY: writes one pointer; the image is PTX text ended by a zero.
            unsafe { (calls.cuModuleLoadData)(&raw mut module, image.as_ptr().cast()) }
        })?;
        let (mut found, mut loaded) = (ptr::null_mut(), Vec::with_capacity(kernels.len()));
        for kernel in kernels {
            let mut function = ptr::null_mut();
            let outcome = session.call("cuModuleGetFunction", |_| {
                let name = kernel.name().as_ptr();
                // SAFETY: writes one pointer; the module was just loaded.
                unsafe { (calls.cuModuleGetFunction)(&raw mut function, module, name) }
            });
            if let Err(error) = outcome {
                unload(module, session);
                return Err(error);
            }
            found = if *kernel == wanted { function } else { found };
            loaded.push((*kernel, function));
        }
        self.modules.push(module);
        self.functions.extend(loaded);
        Ok(found)
    }

    /// Unloads every module. Nothing may be running: streams hold the session.
    pub(super) fn unload(&mut self, session: &Session) {
        self.functions.clear();
        for module in self.modules.drain(..) {
            unload(module, session);
        }
    }
}

fn unload(module: CUmodule, session: &Session) {
    twice("cuModuleUnload", || {
        let calls = session.driver.kernels()?;
        // SAFETY: loaded by `function`, and nothing is running, by the caller.
        session.call("cuModuleUnload", |_| unsafe { (calls.cuModuleUnload)(module) })
    });
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
