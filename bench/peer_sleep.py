#!/usr/bin/env python3
"""Measures sleep and wake of other tools ("peers") on a CUDA machine with PyTorch.

    peer_sleep.py PEERS vllm | tms | tms-retain [--turns N]

PEERS is the folder that `cargo xtask gpu-pack --peers` fills: torch_memory_saver, and the allocator of
vLLM. The work: 14.96 GiB of bf16 weights in 195 tensors, which a sleep keeps, and 20 GiB of KV cache,
which it discards, both random. `lowtide-bench sleep` does the same work.
Prints one JSON line per turn. tms-retain is tms with `retain_cpu_backup`.
"""
import argparse
import importlib.machinery
import json
import logging
import os
import sys
import time
import types

GIB = 2**30
SHAPES = (
    [(128256, 4096)]
    + [s for _ in range(32) for s in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (4096,), (4096,))]
    + [(4096,), (128256, 4096)]
)


def used_mib(torch):
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def weights(torch):
    return [torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in SHAPES]


def kv(torch):
    return [torch.empty(20 * GIB // 32, dtype=torch.uint8, device="cuda").random_(0, 256) for _ in range(32)]


def stand_in_for_vllm(folder):
    """The few names that vLLM's allocator imports from the rest of vLLM."""
    def module(name, path=None, **names):
        made = types.ModuleType(name)
        made.__dict__.update(names)
        if path is not None:
            made.__path__ = [path]
            made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = made

    class Platform:
        device_type = "cuda"
        is_rocm = is_xpu = lambda self: False
        is_cuda = is_cuda_alike = lambda self: True

    class Runtime:
        def __init__(self):
            import ctypes
            self.lib, self.ptr, self.size = ctypes.CDLL(find_loaded_library("libcudart")), ctypes.c_void_p, ctypes.c_size_t

        def cudaMemcpy(self, to, source, count):
            assert self.lib.cudaMemcpy(self.ptr(to), self.ptr(source), self.size(count), 4) == 0

    def find_loaded_library(name):
        return next(l[l.index("/"):].strip() for l in open("/proc/self/maps") if name in l)

    module("vllm", os.path.join(folder, "vllm"))
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.platforms", current_platform=Platform())
    module("vllm.utils", "")
    module("vllm.utils.system_utils", find_loaded_library=find_loaded_library)
    module("vllm.utils.torch_utils", PIN_MEMORY=True)
    module("vllm.distributed", "")
    module("vllm.distributed.device_communicators", "")
    module("vllm.distributed.device_communicators.cuda_wrapper", CudaRTLibrary=Runtime)


def set_up(torch, peer, folder):
    """Allocates the work with the peer. Returns the tensors, the cache, and the peer's sleep and wake."""
    if peer == "vllm":
        stand_in_for_vllm(folder)
        from vllm.device_allocator.cumem import CuMemAllocator
        allocator = CuMemAllocator.get_instance()
        with allocator.use_memory_pool(tag="weights"):
            tensors = weights(torch)
        with allocator.use_memory_pool(tag="kv_cache"):
            cache = kv(torch)
        return tensors, cache, lambda: allocator.sleep(offload_tags=("weights",)), allocator.wake_up
    from torch_memory_saver import torch_memory_saver as saver
    saver.hook_mode = "torch"
    with saver.region(tag="weights", enable_cpu_backup=True):
        tensors = weights(torch)
    with saver.region(tag="kv_cache"):
        cache = kv(torch)
    saver.retain_cpu_backup = peer == "tms-retain"
    sleep = lambda: (saver.pause("weights"), saver.pause("kv_cache"), torch.cuda.empty_cache())
    wake = lambda: (saver.resume("weights"), saver.resume("kv_cache"))
    return tensors, cache, sleep, wake


def run(folder, peer, turns):
    import torch
    sys.path.insert(0, folder)
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    base = used_mib(torch)
    tensors, cache, sleep, wake = set_up(torch, peer, folder)
    check = lambda: [float(t.float().sum()) for t in tensors[::17]]
    expected = check()
    torch.cuda.empty_cache()
    size = sum(t.nbytes for t in tensors) / GIB
    for turn in range(turns):
        torch.cuda.synchronize()
        start = time.perf_counter()
        sleep()
        torch.cuda.synchronize()
        slept = time.perf_counter() - start
        asleep = used_mib(torch)
        start = time.perf_counter()
        wake()
        torch.cuda.synchronize()
        woke = time.perf_counter() - start
        print(json.dumps({"peer": peer, "turn": turn, "gib": round(size, 2), "sleep_s": round(slept, 4), "wake_s": round(woke, 4),
                          "device_mib_asleep": round(asleep), "context_mib": round(base), "right": check() == expected}), flush=True)
    del cache  # it lives until here


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers")
    parser.add_argument("peer", choices=("vllm", "tms", "tms-retain"))
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    try:
        run(arguments.peers, arguments.peer, arguments.turns)
    except Exception as error:  # any error is the reason why this peer has no figure
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        print(json.dumps({"peer": arguments.peer, "error": why}), flush=True)
        os._exit(1)
    # Without the interpreter's exit, which the peers' pools do not always survive.
    os._exit(0)


if __name__ == "__main__":
    main()
