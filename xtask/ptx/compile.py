"""Compiles the kernels to PTX with NVRTC from the Python registry. Run by `cargo xtask ptx`."""

import ctypes
import pathlib
import sysconfig

KERNELS = pathlib.Path("crates/lowtide-device/kernels")
OPTIONS = [b"--gpu-architecture=compute_75"]


def load():
    folder = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cuda_nvrtc" / "lib"
    # The compiler looks its built-ins up by name; loaded first, they are found.
    for name in sorted(folder.glob("libnvrtc-builtins.so*")):
        ctypes.CDLL(str(name), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(next(folder.glob("libnvrtc.so*"))))


def text(nvrtc, program, what):
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode()


def fnv1a(data):
    state = 0xCBF29CE484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return state


def compile_to_ptx(nvrtc, path):
    source = path.read_bytes()
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, path.name.encode(), 0, None, None)
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    if nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options) != 0:
        raise SystemExit(text(nvrtc, program, "ProgramLog"))
    # A test compares this line with the source, so that the two cannot drift apart.
    header = f"// compiled from {path.name}, FNV-1a {fnv1a(source):016x}"
    lines = text(nvrtc, program, "PTX").splitlines()
    code = [line for line in lines if line and not line.lstrip().startswith("//")]
    path.with_suffix(".ptx").write_text("\n".join([header, *code, ""]))


def main():
    nvrtc = load()
    for path in sorted(KERNELS.glob("*.cu")):
        compile_to_ptx(nvrtc, path)


main()
