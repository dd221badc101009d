"""The kernel's numbers for this process, or the driver's. Tests rely on these, not on lowtide's.

`DEVICE` is what the tests release: host memory, or with `ZOO_DEVICE=cuda` a GPU that nobody else uses.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lowtide import _native
from lowtide._devices.cpu import CpuDevice
from lowtide._devices.cuda import CudaDevice
from lowtide._native import (
    AllocatorCounts,
    HookPoint,
    LedgerKind,
    LedgerLine,
    ProcessUsage,
    Touch,
    Usage,
)
from lowtide._rungs.hook import Hook, Setting

# Two cores at most in CI, and nothing here is worth a pool of threads.
torch.set_num_threads(1)

DEVICE = "cuda:0" if os.environ.get("ZOO_DEVICE", "cpu").startswith("cuda") else "cpu"
ON_GPU = DEVICE != "cpu"

MIB = 1 << 20
SIZE = 96 * MIB
"""Large enough to stand out from what Python itself does."""
SLACK = 12 * MIB


def in_use() -> int:
    """Resident memory of this process that is no file, as the kernel counts it; on a GPU, all that the
    driver has given away."""
    if ON_GPU:
        free, total = torch.cuda.mem_get_info(DEVICE)
        return int(total - free)
    status = Path("/proc/self/status").read_text()
    return sum(
        int(re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)[1]) << 10  # type: ignore[index]
        for name in ("RssAnon", "RssShmem")
    )


def weights(size: int = SIZE) -> torch.Tensor:
    """A tensor whose every page is there."""
    return torch.full((size,), 7, dtype=torch.uint8, device=DEVICE)


class Unknown:
    """Memory of this process on the device that no allocator of a framework knows of."""

    def __init__(self, size: int = SIZE) -> None:
        if not ON_GPU:
            self._tensor = weights(size)
            return
        address = ctypes.c_uint64()
        take = ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2
        assert take(ctypes.byref(address), ctypes.c_size_t(size)) == 0
        self._address = address

    def free(self) -> None:
        if ON_GPU:
            assert ctypes.CDLL("libcuda.so.1").cuMemFree_v2(self._address) == 0
        else:
            del self._tensor


if ON_GPU:
    # The driver keeps the context, and the code of each kernel from its first launch on.
    assert int(weights(MIB).sum()) == 7 * MIB


def is_about(size: int, wanted: int, slack: int = SLACK) -> bool:
    return abs(size - wanted) <= slack


def has_accelerator() -> bool:
    """Whether torch sees one. Before torch 2.6 there is no common interface, and CUDA is asked."""
    return bool(getattr(torch, "accelerator", torch.cuda).is_available())


PATIENCE_S = 60.0
"""Far more than anything here takes: what has not happened by then never will."""


def until(happens: Callable[[], object]) -> None:
    """Waits for something that another thread does."""
    end = time.monotonic() + PATIENCE_S
    while not happens():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


class Piece(Hook):
    """A hook that notes that it was run, and lets some memory go or does something else."""

    def __init__(self, log: list[str], point: str, name: str, work: Any = None) -> None:
        self.log, self.name, self.work = log, name, work
        self.point = getattr(HookPoint, point.upper())
        self.limit_s = 20.0
        self.why: str | None = None

    def missing(self) -> str | None:
        return self.why

    def run(self, round: int) -> list[Touch]:
        self.log.append(self.name)
        touched = self.work() if self.work is not None else None
        return [] if touched is None else [Touch(str(touched))]


class Recorded:
    """What the tests' own devices have in common: they note what is asked of them, and have hooks,
    settings and neighbours that a test gives them. What was there before them does not count."""

    _number = itertools.count()

    def record(self, kind: str) -> None:
        self.name = f"{kind}:{next(self._number)}"
        self.log: list[str] = []
        self.pieces: list[Hook] = []
        self.own_settings: list[Setting] = []
        self.neighbours: list[ProcessUsage] = []
        self.trims: Any = None
        self._base = in_use()

    def usage(self) -> Usage:
        total = 64 << 30
        return Usage(total, total - max(0, in_use() - self._base))

    def own(self) -> int | None:
        return max(0, in_use() - self._base)

    def others(self) -> list[ProcessUsage]:
        return self.neighbours

    def hooks(self) -> list[Hook]:
        return self.pieces

    def settings(self) -> list[Setting]:
        return self.own_settings

    def trim(self) -> int:
        self.log.append("trim")
        return int(self.trims()) if self.trims is not None else self.return_cached()

    def return_cached(self) -> int:
        raise NotImplementedError


class CachingHost(Recorded, CpuDevice):
    """The host's memory behind a caching allocator, as a GPU's is: what is freed stays taken until it
    is trimmed."""

    noise_bytes = 2 * MIB
    counts_slowly = False

    def __init__(self, kind: str = "test") -> None:
        super().__init__()
        self.record(kind)
        self.cached: list[torch.Tensor] = []
        self.live = 0
        self.graphs = 0

    def allocate(self, size: int = SIZE) -> torch.Tensor:
        self.live += size
        return weights(size)

    def free(self, tensor: torch.Tensor) -> None:
        self.live -= tensor.nbytes
        self.cached.append(tensor)

    def capture(self, size: int) -> object:
        """Memory that a captured graph has. It is there as long as what this returns."""
        self.live += size
        self.graphs += size
        return weights(size)

    def synchronize(self) -> None:
        self.log.append("synchronise")

    def counts(self) -> AllocatorCounts:
        reserved = self.live + sum(tensor.nbytes for tensor in self.cached)
        return AllocatorCounts(self.live, reserved)

    def taken(self) -> int:
        return self.counts().reserved_bytes

    def trimmable(self) -> int:
        return sum(tensor.nbytes for tensor in self.cached)

    def lines(self) -> list[LedgerLine]:
        counts = self.counts()
        live, cached = counts.allocated_bytes, counts.reserved_bytes - counts.allocated_bytes
        graphs = [LedgerLine(LedgerKind.GRAPHS, "captured graphs", self.graphs)]
        return [
            LedgerLine(LedgerKind.LIVE, "tensors", live - self.graphs),
            *(graphs if self.graphs else []),
            LedgerLine(LedgerKind.CACHED, "free", cached),
        ]

    def return_cached(self) -> int:
        size = sum(tensor.nbytes for tensor in self.cached)
        self.cached.clear()
        _native.malloc_trim()
        return size


class CachingGpu(Recorded, CudaDevice):
    """A GPU behind torch's own caching allocator."""

    noise_bytes = 2 * MIB

    def __init__(self, kind: str = "test") -> None:
        super().__init__(DEVICE, 0)
        self.record(kind)

    def allocate(self, size: int = SIZE) -> torch.Tensor:
        return weights(size)

    def free(self, tensor: torch.Tensor) -> None:
        """The caller's reference was the last."""

    def capture(self, size: int) -> object:
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
            kept = weights(size)
        return graph, kept

    def synchronize(self) -> None:
        self.log.append("synchronise")
        CudaDevice.synchronize(self)

    def return_cached(self) -> int:
        return CudaDevice.trim(self)


Caching = CachingGpu if ON_GPU else CachingHost
"""The tests' own device: freed memory stays taken until it is trimmed."""
