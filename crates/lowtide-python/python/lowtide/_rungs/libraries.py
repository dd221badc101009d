"""What libraries under torch keep on a CUDA device: cuBLAS workspaces, cuFFT plans, blocks that other processes
have released, and communicators (R7), which no allocator knows of.

The bytes reported here are torch's: a workspace is a block of torch's allocator, and the next trim returns it
to the driver. An engine's model-parallel groups go first, then its distributed environment, then torch's own
groups, each within a time limit: if a peer is gone, destroying a group can wait forever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from .._devices.cuda_pools import initialised
from .._devices.device import Device
from .._native import HookPoint, Touch
from .._runtime.torch import Torch, absent, torch
from .hook import Hook

# Modules that build groups on top of torch's, with the functions that destroy them, in order.
ENGINES = (
    ("vllm.distributed.parallel_state", "destroy_model_parallel"),
    ("vllm.distributed.parallel_state", "destroy_distributed_environment"),
    ("sglang.srt.distributed.parallel_state", "destroy_model_parallel"),
    ("sglang.srt.distributed.parallel_state", "destroy_distributed_environment"),
    ("megatron.core.parallel_state", "destroy_model_parallel"),
)
LIMIT_S = 10.0


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
        module = initialised()
        clear = getattr(getattr(module, "_C", None), "_cuda_clearCublasWorkspaces", None)
        return [] if clear is None else self._freeing(self.name, clear)


class FftPlans(CudaLibrary):
    """Clears the cache of cuFFT plans."""

    name = "cuFFT plans"

    def run(self, round: int) -> list[Touch]:
        module = initialised()
        if module is None:
            return []
        cache = module.backends.cuda.cufft_plan_cache[self._device.index]
        plans = cache.size
        if plans == 0:
            return []
        cache.clear()
        return [Touch(f"{plans} cuFFT plans")]


class IpcLeftovers(CudaLibrary):
    """Frees blocks that were shared with other processes and that those have released."""

    name = "blocks shared with other processes"

    def run(self, round: int) -> list[Touch]:
        module = initialised()
        if module is None:
            return []
        return self._freeing(f"{self.name}, which have released them", module.cuda.ipc_collect)


def group_hooks(*, asked: bool) -> Sequence[Hook]:
    """Returns the hooks that destroy process groups, in order: those of engines only if the release
    asked for it."""
    engines = [EngineGroups(*engine) for engine in ENGINES] if asked else []
    return [*engines, ProcessGroups(asked=asked)]


class EngineGroups(Hook):
    """Calls a function of an engine that destroys groups, whether torch knows of groups or not."""

    point = HookPoint.LIBRARIES
    limit_s = LIMIT_S

    def __init__(self, module: str, function: str) -> None:
        self._module, self._function = module, function
        self.name = f"{module.partition('.')[0]} {function}"

    def missing(self) -> str | None:
        engine = self._module.partition(".")[0]
        if engine not in sys.modules:
            return absent(engine)
        if self._module not in sys.modules:
            return f"{self._module} is not imported"
        return None if callable(self._call()) else f"this {engine} has no {self._function}"

    def run(self, round: int) -> list[Touch]:
        call = self._call()
        if call is None:
            return []
        call()
        return [Touch(f"{self._module}.{self._function}()")]

    def _call(self) -> Torch | None:
        return getattr(sys.modules.get(self._module), self._function, None)


class ProcessGroups(Hook):
    """Destroys torch's process groups, if the release asked for it."""

    point = HookPoint.LIBRARIES
    name = "process groups"
    limit_s = LIMIT_S

    def __init__(self, *, asked: bool = False) -> None:
        self._asked = asked

    def missing(self) -> str | None:
        if distributed() is None:
            return absent("torch.distributed") or "this torch has no torch.distributed"
        if not self._asked:
            return "kept unless process_groups=True"
        return None

    def run(self, round: int) -> list[Touch]:
        torch_distributed = distributed()
        if not self._asked or torch_distributed is None or not torch_distributed.is_initialized():
            return []
        backend, ranks = torch_distributed.get_backend(), torch_distributed.get_world_size()
        torch_distributed.destroy_process_group()
        return [Touch(f"torch.distributed, {backend} of {ranks} processes")]


def distributed() -> Torch | None:
    """Returns `torch.distributed` if this torch has it and it is imported."""
    if torch() is None:
        return None
    module: Torch = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() else None
