"""Accelerators other than CUDA and ROCm, through torch's common interface (R44).

XPU builds serve `torch.accelerator` whole. MPS has its own names for the same numbers, and no way to
ask whether it was touched yet. Another kind of accelerator is added here.
"""

from __future__ import annotations

from typing import Any

from ._torch import Device, torch


class AcceleratorDevice(Device):
    def __init__(self, name: str, index: int, kind: str) -> None:
        super().__init__(name, index)
        self.kind = kind

    def _backend(self) -> Any | None:
        """torch's module of this kind, where the program has initialised it."""
        module = torch()
        backend = getattr(module, self.kind, None)
        initialised = getattr(backend, "is_initialized", None)
        return None if initialised is not None and not initialised() else backend

    def usage(self) -> tuple[int, int]:
        backend = self._backend()
        if backend is None:
            raise RuntimeError(
                f"{self.name} was not touched yet, and asking it would initialise it"
            )
        if hasattr(backend, "driver_allocated_memory"):
            total = int(backend.recommended_max_memory())
            return total, max(0, total - int(backend.driver_allocated_memory()))
        module: Any = torch()
        ask = getattr(module.accelerator, "get_memory_info", None) or backend.mem_get_info
        free, total = ask(self.index)
        return int(total), int(free)

    def own(self) -> int | None:
        backend = self._backend()
        ask = getattr(backend, "driver_allocated_memory", None)
        return None if ask is None else int(ask())

    def synchronize(self) -> None:
        backend = self._backend()
        module = torch()
        if backend is not None and module is not None:
            module.accelerator.synchronize(self.index)

    def counts(self) -> tuple[int, int]:
        backend = self._backend()
        if backend is None:
            return 0, 0
        if hasattr(backend, "driver_allocated_memory"):
            allocated = int(backend.current_allocated_memory())
            return allocated, max(allocated, int(backend.driver_allocated_memory()))
        module: Any = torch()
        # torch.accelerator has these from 2.9 on; the backends had them before.
        books = module.accelerator if hasattr(module.accelerator, "memory_reserved") else backend
        return int(books.memory_allocated(self.index)), int(books.memory_reserved(self.index))

    def trim(self) -> int:
        backend = self._backend()
        if backend is None:
            return 0
        before = self.counts()[1]
        # MPS is not served by the common interface in every version; its own call always works.
        backend.empty_cache()
        return max(0, before - self.counts()[1])
