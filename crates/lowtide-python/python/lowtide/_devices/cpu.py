"""Host memory as a device. It is never chosen by default.

It makes everything testable without an accelerator, and it releases CPU tensors. The kernel reports
the usage; the allocator is that of the C library.
"""

from __future__ import annotations

from .._native import (
    AllocatorCounts,
    ProcessUsage,
    Usage,
    malloc_counts,
    malloc_trim,
    malloc_trimmable,
    memory_of_process,
    process_memory,
)
from .device import Device


class CpuDevice(Device):
    """The memory of this machine, as far as this process uses it."""

    kind = "cpu"
    # The kernel's number covers the whole process, and the interpreter frees its arenas 1 MiB at a
    # time.
    noise_bytes = 8 << 20
    # The C library looks through its free blocks: 9 ms among 500,000 objects.
    counts_slowly = True

    def __init__(self) -> None:
        super().__init__("cpu", 0)

    def usage(self) -> Usage:
        memory = process_memory()
        return Usage(memory.total_bytes, memory.free_bytes)

    def own(self) -> int | None:
        return process_memory().own_bytes + self.worker_bytes()

    def worker_memory(self, pid: int) -> int | None:
        return memory_of_process(pid) or 0

    def others(self) -> list[ProcessUsage]:
        memory = process_memory()
        rest = memory.total_bytes - memory.free_bytes - memory.own_bytes - self.worker_bytes()
        return [ProcessUsage("the kernel and other processes", rest)] if rest > 0 else []

    def counts(self) -> AllocatorCounts:
        return malloc_counts()

    def taken(self) -> int:
        from .._why.memory.listed import memory_of

        # The C library's heap has the interpreter's memory, too: only tensors count.
        return memory_of(self.name)

    def held(self) -> int | None:
        from .._why.memory.listed import memory_if_listed

        return memory_if_listed(self.name)

    def trimmable(self) -> int:
        return malloc_trimmable()

    def trim(self) -> int:
        # The allocator's own number stays where it gives back pages between its blocks, and to read it takes
        # milliseconds in a heap with many holes.
        before = process_memory().own_bytes
        malloc_trim()
        return max(0, before - process_memory().own_bytes)
