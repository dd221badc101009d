"""torch's common interface to accelerators, `torch.accelerator`, and what stands for it before torch
2.6, which has none: the module of each kind.

lowtide works with torch 2.1 and newer.
"""

from __future__ import annotations

from typing import Any

from .._runtime.torch import Torch


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
    """Returns the index of the current device of a kind. Call it only if the kind is initialised."""
    common = common_of(module)
    if common is not None:
        return int(common.current_device_index())
    current = getattr(getattr(module, kind, None), "current_device", None)
    return 0 if current is None else int(current())


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
