"""What libraries under torch keep on a CUDA device: cuBLAS workspaces, cuFFT plans, and blocks that
other processes have released.

One matmul leaves 32 MiB of workspace behind for good. The bytes reported here are torch's: a
workspace is a block of torch's allocator, and the next trim returns it to the driver.
"""

from __future__ import annotations

from collections.abc import Callable

from .._devices.cuda_pools import initialised
from .._devices.device import Device
from .._native import HookPoint, Touch
from .hook import Hook


class CudaLibrary(Hook):
    """A library that only CUDA programs use."""

    def __init__(self, device: Device, point: HookPoint = HookPoint.LIBRARIES) -> None:
        self.point = point
        self._device = device

    def missing(self) -> str | None:
        if self._device.kind != "cuda":
            return f"only for CUDA, not for {self._device.name}"
        if initialised() is None:
            return "the program has not used CUDA"
        return None

    def _freeing(self, what: str, free: Callable[[], object]) -> list[Touch]:
        before = self._device.counts().allocated_bytes
        free()
        freed = before - self._device.counts().allocated_bytes
        return [Touch(what, freed)] if freed > 0 else []


class Workspaces(CudaLibrary):
    """Frees cuBLAS workspaces."""

    name = "cuBLAS workspaces"

    def run(self, round: int) -> list[Touch]:
        torch = initialised()
        clear = getattr(getattr(torch, "_C", None), "_cuda_clearCublasWorkspaces", None)
        return [] if clear is None else self._freeing(self.name, clear)


class FftPlans(CudaLibrary):
    """Clears the cache of cuFFT plans."""

    name = "cuFFT plans"

    def run(self, round: int) -> list[Touch]:
        torch = initialised()
        if torch is None:
            return []
        cache = torch.backends.cuda.cufft_plan_cache[self._device.index]
        plans = cache.size
        if plans == 0:
            return []
        cache.clear()
        return [Touch(f"{plans} cuFFT plans")]


class IpcLeftovers(CudaLibrary):
    """Frees blocks that were shared with other processes and that those have released."""

    name = "blocks shared with other processes"

    def run(self, round: int) -> list[Touch]:
        torch = initialised()
        if torch is None:
            return []
        return self._freeing(f"{self.name}, which have released them", torch.cuda.ipc_collect)
