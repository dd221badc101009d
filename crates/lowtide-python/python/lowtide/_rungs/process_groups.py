"""Process groups: communicators hold device memory that no allocator knows of (R7).

An engine's model-parallel groups go first, then its distributed environment, then torch's own
groups. A program that goes on with collectives needs them, so they are destroyed only on request.
The time limit matters: if a peer is gone, destroying a group can wait forever.
"""

from __future__ import annotations

import sys

from .._hook import Hook, done
from .._native import HookPoint, Touch
from .._torch import Torch, absent, torch

# Modules that build groups on top of torch's, with the functions that destroy them, in order.
ENGINES = (
    ("vllm.distributed.parallel_state", "destroy_model_parallel"),
    ("vllm.distributed.parallel_state", "destroy_distributed_environment"),
    ("sglang.srt.distributed.parallel_state", "destroy_model_parallel"),
    ("sglang.srt.distributed.parallel_state", "destroy_distributed_environment"),
    ("megatron.core.parallel_state", "destroy_model_parallel"),
)


class ProcessGroups(Hook):
    """Destroys process groups, if the release asked for it."""

    point = HookPoint.LIBRARIES
    name = "process groups"
    limit_s = 10.0

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
        if not self._asked or torch_distributed is None:
            return []
        touched: list[Touch] = []
        failures: list[str] = []
        if torch_distributed.is_initialized():
            for module, function in ENGINES:
                destroy(module, function, touched, failures)
        if torch_distributed.is_initialized():
            backend, ranks = torch_distributed.get_backend(), torch_distributed.get_world_size()
            torch_distributed.destroy_process_group()
            touched.append(Touch(f"torch.distributed, {backend} of {ranks} processes"))
        return done(touched, failures)


def distributed() -> Torch | None:
    """Returns `torch.distributed` if this torch has it and it is imported."""
    if torch() is None:
        return None
    module: Torch = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() else None


def destroy(module: str, function: str, touched: list[Touch], failures: list[str]) -> None:
    """Calls an engine's function if the engine is imported, and notes a failure."""
    call = getattr(sys.modules.get(module), function, None)
    if call is None:
        return
    try:
        call()
    except Exception as failure:  # noqa: BLE001  One failure does not stop the others.
        failures.append(f"{module}.{function}: {type(failure).__name__}: {failure}")
    else:
        touched.append(Touch(f"{module}.{function}()"))
