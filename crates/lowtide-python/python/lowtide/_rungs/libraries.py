"""What libraries under torch keep on a CUDA device: cuBLAS workspaces, cuFFT plans, and blocks that
other processes have let go of.

One matmul leaves 32 MiB of workspace behind for good. The bytes told here are torch's: a workspace
is a block of its allocator, and goes to the driver with the next trim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .hook import Hook, Touched

if TYPE_CHECKING:
    from .._torch import Device


class CudaLibrary(Hook):
    place = "libraries"

    def __init__(self, device: Device, place: str = "libraries") -> None:
        self.place = place
        self._device = device

    def missing(self) -> str | None:
        if self._device.kind != "cuda":
            return f"a matter of CUDA, not of {self._device.name}"
        if self._torch() is None:
            return "the program has not used CUDA"
        return None

    def _torch(self) -> Any | None:
        from .._cuda import initialised

        return initialised()

    def _freeing(self, what: str, free: Callable[[], object]) -> Touched:
        before = self._device.counts()[0]
        free()
        freed = before - self._device.counts()[0]
        return [(what, freed)] if freed > 0 else []


class Workspaces(CudaLibrary):
    name = "cuBLAS workspaces"

    def run(self, round: int) -> Touched:
        torch = self._torch()
        clear = getattr(getattr(torch, "_C", None), "_cuda_clearCublasWorkspaces", None)
        return [] if clear is None else self._freeing(self.name, clear)


class FftPlans(CudaLibrary):
    name = "cuFFT plans"

    def run(self, round: int) -> Touched:
        torch = self._torch()
        if torch is None:
            return []
        cache = torch.backends.cuda.cufft_plan_cache[self._device.index]
        plans = cache.size
        if plans == 0:
            return []
        cache.clear()
        return [(f"{plans} cuFFT plans", None)]


class IpcLeftovers(CudaLibrary):
    name = "blocks shared with other processes"

    def run(self, round: int) -> Touched:
        torch = self._torch()
        if torch is None:
            return []
        return self._freeing(f"{self.name}, which they have let go of", torch.cuda.ipc_collect)
