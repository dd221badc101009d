//! Compiling the kernels: NVIDIA's runtime compiler, an old one on purpose, so that the PTX
//! loads with every driver since CUDA 11.8.

use std::path::Path;
use std::process::Command;

use crate::steps::{pip, python, run};

const COMPILER: &str = "nvidia-cuda-nvrtc-cu11==11.8.89";

/// Compiles each kernel source to the PTX beside it.
pub(crate) fn compile() -> anyhow::Result<()> {
    let python = python(Path::new("target/ptx-environment"))?;
    run("compiler", &mut pip(&python, &["install", COMPILER]))?;
    run("ptx", Command::new(&python).arg("xtask/ptx/compile.py"))
}
