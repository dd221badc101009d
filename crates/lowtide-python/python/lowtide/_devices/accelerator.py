"""Accelerators other than CUDA and ROCm, through torch's common interface (R44).

XPU builds implement all of `torch.accelerator`. MPS has its own names for the same numbers, and no
way to ask whether it has been used yet. Support for another kind of accelerator goes here.

Before torch 2.6, which has no `torch.accelerator`, the module of each kind stands for it. lowtide works with
torch 2.1 and newer.
"""

from __future__ import annotations

from typing import Any

from .._native import AllocatorCounts, Usage
from .._runtime.torch import Torch, torch
from .device import Device


class AcceleratorDevice(Device):
    """An accelerator of a kind that torch serves through `torch.accelerator`, such as XPU or MPS."""

    grain_bytes = 2 << 20

    def __init__(self, name: str, index: int, kind: str) -> None:
        super().__init__(name, index)
        self.kind = kind

    def _backend(self) -> Torch | None:
        """Returns torch's module for this kind if the program has initialised it."""
        module = torch()
        backend = getattr(module, self.kind, None)
        initialised = getattr(backend, "is_initialized", None)
        return None if initialised is not None and not initialised() else backend

    def usage(self) -> Usage:
        backend = self._backend()
        if backend is None:
            raise RuntimeError(
                f"{self.name} is not initialised, and reading it would initialise it"
            )
        if hasattr(backend, "driver_allocated_memory"):
            total = int(backend.recommended_max_memory())
            return Usage(total, max(0, total - int(backend.driver_allocated_memory())))
        module: Torch = torch()
        ask = getattr(common_of(module), "get_memory_info", None) or backend.mem_get_info
        free, total = ask(self.index)
        return Usage(int(total), int(free))

    def own(self) -> int | None:
        backend = self._backend()
        ask = getattr(backend, "driver_allocated_memory", None)
        return None if ask is None else int(ask())

    def synchronize(self) -> None:
        backend = self._backend()
        module = torch()
        if backend is not None and module is not None:
            synchronize(module, self.kind, self.index)

    def counts(self) -> AllocatorCounts:
        backend = self._backend()
        if backend is None:
            return AllocatorCounts(0, 0)
        if hasattr(backend, "driver_allocated_memory"):
            allocated = int(backend.current_allocated_memory())
            reserved = max(allocated, int(backend.driver_allocated_memory()))
            return AllocatorCounts(allocated, reserved)
        module: Torch = torch()
        # torch.accelerator has these from 2.9 on; the backends had them before.
        common = common_of(module)
        source: Torch = common if hasattr(common, "memory_reserved") else backend
        allocated = int(source.memory_allocated(self.index))
        return AllocatorCounts(allocated, int(source.memory_reserved(self.index)))

    def activity(self) -> object:
        counts = self.counts()
        return None if self._backend() is None else (counts.allocated_bytes, counts.reserved_bytes)

    def trim(self) -> int:
        backend = self._backend()
        if backend is None:
            return 0
        before = self.counts().reserved_bytes
        # The common interface does not serve MPS in every version; MPS's own call always works.
        backend.empty_cache()
        return max(0, before - self.counts().reserved_bytes)


def current_kind(module: Torch) -> str | None:
    """Returns the kind of accelerator that this torch is for, or `None`. Initialises nothing."""
    common = common_of(module)
    if common is not None:
        found = common.current_accelerator()
        return None if found is None else str(found.type)
    for kind in ("cuda", "xpu", "mps"):
        if device_count(module, kind) > 0:
            return kind
    return None


def device_count(module: Torch, kind: str) -> int:
    """Returns how many devices of a kind torch has. Initialises nothing."""
    common = common_of(module)
    if common is not None:
        return int(common.device_count())
    if kind == "mps":
        backend = getattr(getattr(module, "backends", None), "mps", None)
        return 1 if backend is not None and backend.is_available() else 0
    count = getattr(getattr(module, kind, None), "device_count", None)
    return 0 if count is None else int(count())


def current_index(module: Torch, kind: str) -> int:
    """Returns the index of the current device of a kind. Initialises nothing: before the device is
    initialised it is 0, and it stays 0 until the program chooses another, which initialises it."""
    backend, common = getattr(module, kind, None), common_of(module)
    initialised = getattr(backend, "is_initialized", None)
    if initialised is None or not initialised():
        return 0
    current = getattr(backend, "current_device", None)
    ask = current if common is None else common.current_device_index
    return 0 if ask is None else int(ask())


def synchronize(module: Torch, kind: str, index: int) -> None:
    """Waits for all work on a device."""
    common = common_of(module)
    if common is not None:
        common.synchronize(index)
    elif kind == "mps":
        module.mps.synchronize()
    else:
        getattr(module, kind).synchronize(index)


def common_of(module: Torch) -> Any | None:
    """Returns `torch.accelerator`, or `None` in a torch that has none."""
    return getattr(module, "accelerator", None)
