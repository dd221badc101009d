#!/usr/bin/env python3
"""Measures a hit in other allocators ("peers") on a CUDA machine with PyTorch and g++.

    peer_alloc.py WORK torch | torch-expandable | cuda-async [--rounds N] [--build FOLDER]

torch is PyTorch's caching allocator, torch-expandable the same with expandable segments, cuda-async
cudaMallocAsync on one stream. WORK is the file of `lowtide-bench alloc --work`: one line SIZE,NEXT per
block. All blocks are allocated in the order of the lines. A round visits each block once: visit i frees
block NEXT[i] and allocates another in its place. Mode "same" allocates the size that was freed; mode
"other" allocates, in round r from 0, SIZE[NEXT[(i + 1 + r) % n]], so sizes rotate by one per round.
Prints one JSON line per mode, with the median of the rounds. --build keeps the compiled library.
"""
import argparse
import array
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PEERS = ("torch", "torch-expandable", "cuda-async")
MODES = ("same", "other")
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def read_work(path):
    rows = [line.split(",") for line in Path(path).read_text().split()]
    sizes = array.array("Q", (int(size) for size, _ in rows))
    visits = array.array("Q", (int(visit) for _, visit in rows))
    if not rows or sorted(visits) != list(range(len(rows))):
        raise ValueError(f"{Path(path).name}: column NEXT does not name each line once")
    return sizes, visits


def header_folders(torch):
    """The header folders of PyTorch, of its CUDA runtime, and of the toolkit (only that one has crt/)."""
    from torch.utils import cpp_extension
    folders = cpp_extension.include_paths()
    packages = Path(torch.__file__).parents[1] / "nvidia"
    folders += sorted(str(f.parent) for f in packages.glob("*/include/cuda_runtime_api.h"))
    if cpp_extension.CUDA_HOME is not None:
        folders += cpp_extension.include_paths("cuda", torch_include_dirs=False)
    return folders


def compiled(torch, folder):
    library = Path(folder) / "peer_alloc.so"
    if library.exists():
        return library
    from torch.utils import cpp_extension
    # The runtime that PyTorch has loaded: another copy would have other pools.
    runtime = next(line[line.index("/"):].strip() for line in open("/proc/self/maps") if "libcudart" in line)
    command = ["g++", "-O2", "-std=c++20", "-shared", "-fPIC"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [f"-I{f}" for f in header_folders(torch)]
    command += [str(Path(__file__).with_name("peer_alloc.cpp")), "-o", str(library)]
    command += [f"-L{f}" for f in cpp_extension.library_paths()] + ["-lc10_cuda", "-lc10", runtime]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
        raise RuntimeError("g++: " + next((l for l in done.stderr.splitlines() if "error" in l), "failed"))
    return library


def prepared(peer):
    """Imports PyTorch with the allocator settings of the peer, and creates a context."""
    for name in SETTINGS:
        os.environ.pop(name, None)
    expandable = peer == "torch-expandable"
    if expandable:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    import torch  # only now: it reads the setting once
    torch.zeros(1, device="cuda")
    if torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"] != expandable:
        raise RuntimeError("PyTorch did not take the setting expandable_segments")
    return torch


def measure(library, peer, mode, sizes, visits, rounds):
    def pointer(numbers):
        return (ctypes.c_uint64 * len(numbers)).from_buffer(numbers)

    ns, why = ctypes.c_double(), ctypes.create_string_buffer(4096)
    failed = library.peer_alloc(
        peer.encode(), int(mode == "other"), ctypes.c_uint64(len(sizes)), pointer(sizes), pointer(visits),
        rounds, ctypes.byref(ns), why, ctypes.c_size_t(len(why)))
    line = {"peer": peer, "mode": mode, "blocks": len(sizes), "rounds": rounds}
    if failed:
        return line | {"error": first_line(why.value.decode(errors="replace"))}
    return line | {"ns_per_pair": round(ns.value, 1)}


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work")
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--build")
    arguments = parser.parse_args()
    try:
        sizes, visits = read_work(arguments.work)
        torch = prepared(arguments.peer)
        with tempfile.TemporaryDirectory() as temporary:
            library = ctypes.CDLL(str(compiled(torch, arguments.build or temporary)))
            for mode in MODES:
                line = measure(library, arguments.peer, mode, sizes, visits, arguments.rounds)
                print(json.dumps(line), flush=True)
    except Exception as error:  # any error is the reason why this peer has no figure
        print(json.dumps({"peer": arguments.peer, "error": first_line(error)}), flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
