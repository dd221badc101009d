"""Process groups: communicators hold device memory that no allocator knows of (R7).

Model-parallel groups of an engine go first, then its distributed environment, then torch's own
groups. Nobody who goes on with collectives wants this, so it is done only when asked, and it is
bounded in time: a peer that is gone makes a destroy wait for ever.
"""

from __future__ import annotations

import sys
from typing import Any

from .._torch import absent, torch
from .hook import Hook, Touched, done

# Modules that build groups over torch's, with their functions that take them down, in order.
ENGINES = (
    ("vllm.distributed.parallel_state", "destroy_model_parallel"),
    ("vllm.distributed.parallel_state", "destroy_distributed_environment"),
    ("sglang.srt.distributed.parallel_state", "destroy_model_parallel"),
    ("sglang.srt.distributed.parallel_state", "destroy_distributed_environment"),
    ("megatron.core.parallel_state", "destroy_model_parallel"),
)


class ProcessGroups(Hook):
    place = "libraries"
    name = "process groups"
    limit_s = 10.0

    def __init__(self, *, asked: bool = False) -> None:
        self._asked = asked

    def missing(self) -> str | None:
        if distributed() is None:
            return absent("torch.distributed") or "this torch has no torch.distributed"
        if not self._asked:
            return "left alone unless process_groups=True"
        return None

    def run(self, round: int) -> Touched:
        torch_distributed = distributed()
        if not self._asked or torch_distributed is None:
            return []
        touched: Touched = []
        failures: list[str] = []
        if torch_distributed.is_initialized():
            for module, function in ENGINES:
                destroy(module, function, touched, failures)
        if torch_distributed.is_initialized():
            backend, ranks = torch_distributed.get_backend(), torch_distributed.get_world_size()
            torch_distributed.destroy_process_group()
            touched.append((f"torch.distributed, {backend} of {ranks} processes", None))
        return done(touched, failures)


def distributed() -> Any | None:
    """`torch.distributed`, where this torch has it and it is imported."""
    if torch() is None:
        return None
    module: Any = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() else None


def destroy(module: str, function: str, touched: Touched, failures: list[str]) -> None:
    """Calls an engine's function where the engine is imported; its failure stops nobody."""
    call = getattr(sys.modules.get(module), function, None)
    if call is None:
        return
    try:
        call()
    except Exception as failure:  # noqa: BLE001  Its failure stops nobody else.
        failures.append(f"{module}.{function}: {type(failure).__name__}: {failure}")
    else:
        touched.append((f"{module}.{function}()", None))
