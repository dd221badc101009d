"""Process groups: communicators hold device memory that no allocator knows of (R7).

An engine's model-parallel groups go first, then its distributed environment, then torch's own
groups. A program that goes on with collectives needs them, so they are destroyed only on request.
The time limit of each matters: if a peer is gone, destroying a group can wait forever. An engine that
is not installed is skipped by name (R8).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

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
