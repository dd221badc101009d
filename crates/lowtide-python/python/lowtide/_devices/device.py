"""The base class of all devices. The native releaser calls its methods."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .._native import AllocatorCounts, LedgerKind, LedgerLine, ProcessUsage, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._rungs.hook import Hook, Setting


class Device:
    """A device that a release works on.

    Every method may raise. The receipt then contains the error's text.
    """

    kind: str = ""
    noise_bytes: int = 0
    """Changes of at most this size happen by themselves and prove nothing."""
    grain_bytes: int = 1
    """The unit in which the device counts: less may be freed without a change of the number."""
    counts_slowly: bool = False
    """Whether a release asks for `counts` only behind what may have changed them, as that takes long."""

    def __init__(self, name: str, index: int) -> None:
        self.name = name
        self.index = index

    def __repr__(self) -> str:
        return f"Device({self.name})"

    def usage(self) -> Usage:
        """Returns total and free memory, as the driver reports it."""
        raise NotImplementedError

    def own(self) -> int | None:
        """Returns the bytes that this process and its workers use, or `None` if the driver does not report them."""
        return None

    def others(self) -> list[ProcessUsage]:
        """Returns what other processes use, where the driver reports it; workers are none."""
        return []

    def worker_memory(self, pid: int) -> int | None:
        """Returns what the process of a worker uses, with those that it has started, or `None` if the
        driver does not report it."""
        return None

    def worker_bytes(self) -> int:
        """Returns what all workers use. It is part of `own`."""
        return sum(self.worker_memory(pid) or 0 for pid in pids())

    def is_away(self) -> bool:
        """Returns whether this process is suspended, so that nothing of it is on the device."""
        return False

    def synchronize(self) -> None:
        """Waits for all work on the device. Does nothing if the device was never used."""

    def counts(self) -> AllocatorCounts:
        """Returns what the framework's allocator has allocated and reserved."""
        raise NotImplementedError

    def counters(self) -> tuple[int, int] | None:
        """Returns how often the framework has allocated and freed, or `None` if it does not count."""
        return None

    def activity(self) -> object:
        """Returns a value that changes when the framework allocates or frees, or `None` if there is
        none. Work that only launches kernels does not change it."""
        return self.counters()

    def lines(self) -> list[LedgerLine]:
        """Returns the ledger lines of the framework's allocator. They add up to `reserved`."""
        counts = self.counts()
        cached = counts.reserved_bytes - counts.allocated_bytes
        return ledger_lines(f"{self.name} allocator", counts.allocated_bytes, cached)

    def taken(self) -> int:
        """Returns how many bytes a release of everything claims."""
        return self.counts().reserved_bytes

    def held(self) -> int | None:
        """Returns how many bytes the program's objects hold, or `None` if to find out takes long."""
        return self.counts().allocated_bytes

    def trimmable(self) -> int:
        """Returns how many bytes a trim can return to the driver now."""
        counts = self.counts()
        return counts.reserved_bytes - counts.allocated_bytes

    def why_not_trim(self) -> str | None:
        """Returns why trimming would do nothing or do harm now, or `None`."""
        return None

    def trim(self) -> int:
        """Returns cached memory to the driver, and says how many bytes the allocator gave up."""
        raise NotImplementedError

    def hooks(self) -> Sequence[Hook] | None:
        """Returns the hooks of this device, or `None` for the usual ones of Python and torch."""
        return None

    def settings(self) -> Sequence[Setting]:
        """Returns the settings that a release may lower for a moment."""
        return []


def ledger_lines(name: str, live: int, cached: int) -> list[LedgerLine]:
    """Returns the two lines that every allocator has, without empty ones."""
    sizes = ((LedgerKind.LIVE, live), (LedgerKind.CACHED, cached))
    return [LedgerLine(kind, name, size) for kind, size in sizes if size > 0]


def pids() -> list[int]:
    """Returns the numbers of the workers' processes that run. What they use is part of what this program
    uses."""
    registry = sys.modules.get("lowtide._rungs.registry")
    if registry is None or "lowtide._worker.worker" not in sys.modules:
        return []
    running = [worker.pid for worker in registry.workers.objects()]
    return [pid for pid in running if pid is not None]


def worker_of(pid: int, among: list[int]) -> int | None:
    """Returns the worker that a process is, or that has started it: its session is the worker's."""
    try:
        session = os.getsid(pid)
    except OSError:
        return None
    return session if session in among else None
