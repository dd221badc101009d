"""The kernel's numbers for this process. Tests rely on these, not on lowtide's."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lowtide import _native
from lowtide._devices.cpu import CpuDevice
from lowtide._hook import Hook, Setting
from lowtide._native import (
    AllocatorCounts,
    HookPoint,
    LedgerKind,
    LedgerLine,
    ProcessUsage,
    Touch,
    Usage,
)

# Two cores at most in CI, and nothing here is worth a pool of threads.
torch.set_num_threads(1)

MIB = 1 << 20
SIZE = 96 * MIB
"""Large enough to stand out from what Python itself does."""
SLACK = 12 * MIB


def in_use() -> int:
    """Resident memory of this process that is no file, as the kernel counts it."""
    status = Path("/proc/self/status").read_text()
    return sum(
        int(re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)[1]) << 10  # type: ignore[index]
        for name in ("RssAnon", "RssShmem")
    )


def weights(size: int = SIZE) -> torch.Tensor:
    """A tensor whose every page is there."""
    return torch.full((size,), 7, dtype=torch.uint8)


def is_about(size: int, wanted: int, slack: int = SLACK) -> bool:
    return abs(size - wanted) <= slack


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


class Caching(CpuDevice):
    """The host's memory behind a caching allocator, as a GPU's is: what is freed stays taken until it
    is trimmed. It notes what is asked of it. Its numbers are the kernel's, less what was there."""

    _number = itertools.count()
    noise_bytes = 2 * MIB

    def __init__(self, kind: str = "test") -> None:
        super().__init__()
        self.name = f"{kind}:{next(self._number)}"
        self.log: list[str] = []
        self.cached: list[torch.Tensor] = []
        self.live = 0
        self.pieces: list[Hook] = []
        self.own_settings: list[Setting] = []
        self.neighbours: list[ProcessUsage] = []
        self.graphs = 0
        self.trims: Any = None
        self._base = in_use()

    def allocate(self, size: int = SIZE) -> torch.Tensor:
        self.live += size
        return weights(size)

    def free(self, tensor: torch.Tensor) -> None:
        self.live -= tensor.nbytes
        self.cached.append(tensor)

    def usage(self) -> Usage:
        total = 64 << 30
        return Usage(total, total - max(0, in_use() - self._base))

    def own(self) -> int | None:
        return max(0, in_use() - self._base)

    def others(self) -> list[ProcessUsage]:
        return self.neighbours

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

    def trim(self) -> int:
        self.log.append("trim")
        if self.trims is not None:
            return int(self.trims())
        size = sum(tensor.nbytes for tensor in self.cached)
        self.cached.clear()
        _native.malloc_trim()
        return size

    def hooks(self) -> list[Hook]:
        return self.pieces

    def settings(self) -> list[Setting]:
        return self.own_settings
