"""The host's memory as a device: asked for by name, never chosen by itself.

It is how everything is tried where there is no accelerator, and how CPU tensors are released. The
driver's numbers are the kernel's, the allocator is the C library's.
"""

from __future__ import annotations

from ._torch import Device


class CpuDevice(Device):
    kind = "cpu"
    # The numbers are a whole process's, and the interpreter gives its own memory back a MiB at a time.
    noise_bytes = 4 << 20

    def __init__(self) -> None:
        super().__init__("cpu", 0)

    def usage(self) -> tuple[int, int]:
        from . import _native

        total, free, _ = _native.process_memory()
        return total, free

    def own(self) -> int | None:
        from . import _native

        return _native.process_memory()[2]

    def counts(self) -> tuple[int, int]:
        from . import _native

        allocated, reserved = _native.malloc_counts()
        return allocated, reserved

    def trim(self) -> int:
        from . import _native

        before = _native.malloc_counts()[1]
        _native.malloc_trim()
        return max(0, before - _native.malloc_counts()[1])
