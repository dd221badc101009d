"""vLLM: the sleep back end `lowtide`, which `--sleep-mode-backend lowtide` chooses (R16–R24).

vLLM's slot for back ends owns no memory: its worker takes vLLM's own allocator whatever back end is named. So
the worker's method that returns the scope of an allocation is replaced by one that returns a scope of
`lowtide.tag` where the name is ours, and calls vLLM's own method everywhere else. Whoever does not name the
back end has vLLM as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from . import when_imported

NAME = "lowtide"
POLICIES = {
    "weights": "offload",
    "runtime": "offload",
    "kv_cache": "discard",
    "workspace": "discard",
}
"""What a sleep of level 1 does with the memory of each of vLLM's tags, as vLLM's own back end does it."""
METHOD = "_maybe_get_memory_pool_context"

_workers: set[type] = set()


def register() -> None:
    """The entry point `vllm.general_plugins`: makes the back end known by its name."""
    try:
        from vllm.device_allocator.sleep_mode_backend import (  # type: ignore[import-not-found]
            SleepModeBackendFactory,
        )
    except ImportError:
        # A vLLM without back ends to choose from.
        return
    if NAME not in SleepModeBackendFactory._registry:
        SleepModeBackendFactory.register_backend(
            NAME, f"{__package__}.vllm_sleep", "LowtideBackend"
        )
        when_imported("vllm.v1.worker.gpu_worker", give_memory)


def give_memory(module: ModuleType) -> None:
    """Makes the worker take its memory from lowtide where the back end is ours."""
    worker = getattr(module, "Worker", None)
    original = vars(worker).get(METHOD) if isinstance(worker, type) else None
    # A vLLM that has another slot runs as without lowtide; the back end says so if it is chosen.
    if worker is not None and original is not None and worker not in _workers:
        setattr(worker, METHOD, _scoped(original))
        _workers.add(worker)


def owns_memory() -> bool:
    """Returns whether a worker of this process takes its memory from lowtide."""
    return bool(_workers)


def _scoped(original: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    @wraps(original)
    def scoped(worker: Any, tag: str) -> Any:
        config = worker.vllm_config.model_config
        is_ours = getattr(config, "sleep_mode_backend", None) == NAME
        if not (is_ours and config.enable_sleep_mode):
            return original(worker, tag)
        from .._sleep.tag import tag as scope, tags

        if tag == "weights" and any(one.name == tag and one.bytes for one in tags()):
            raise RuntimeError(
                "this process has the weights of another engine in the tag 'weights': they would sleep and"
                " wake together. Start each engine with sleep mode in a process of its own"
            )
        return scope(tag, policy=POLICIES.get(tag, "offload"))

    return scoped
