"""Host memory as a device. It is never chosen by default.

It makes everything testable without an accelerator, and it releases CPU tensors. The kernel reports
the usage; the allocator is that of the C library.
"""

from __future__ import annotations

from .. import _native
from .._native import AllocatorCounts, ProcessUsage, Usage
from .device import Device


class CpuDevice(Device):
    """The memory of this machine, as far as this process uses it."""

    kind = "cpu"
    # The kernel's number covers the whole process, and the interpreter frees its arenas 1 MiB at a
    # time.
    noise_bytes = 8 << 20

    def __init__(self) -> None:
        super().__init__("cpu", 0)

    def usage(self) -> Usage:
        memory = _native.process_memory()
        return Usage(memory.total_bytes, memory.free_bytes)

    def own(self) -> int | None:
        return _native.process_memory().own_bytes

    def others(self) -> list[ProcessUsage]:
        memory = _native.process_memory()
        rest = memory.total_bytes - memory.free_bytes - memory.own_bytes
        return [ProcessUsage("the kernel and other processes", rest)] if rest > 0 else []

    def counts(self) -> AllocatorCounts:
        return _native.malloc_counts()

    def taken(self) -> int:
        from .._why.question import Question

        # The C library's heap has the interpreter's memory, too: only tensors count.
        return _native.examine(Question(device=self.name)).memory.bytes

    def trimmable(self) -> int:
        return _native.malloc_trimmable()

    def trim(self) -> int:
        before = _native.malloc_counts().reserved_bytes
        _native.malloc_trim()
        return max(0, before - _native.malloc_counts().reserved_bytes)
