"""torch, where the program has imported it.

lowtide never imports torch: a program without torch must not pay for it, and a program that is
still importing torch must not see half of it. Every module that uses torch asks `torch()` first.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

Torch: TypeAlias = Any
"""The module torch. Untyped: much of what lowtide asks of it is private, and differs by version."""
Tensor: TypeAlias = Any
"""An object that is expected to be a tensor, a storage or an autograd node."""

UNREADABLE = (RuntimeError, TypeError, ValueError, AttributeError)
"""Exceptions that torch raises when a tensor, a storage or a node lacks what it is asked for."""


def torch() -> Torch | None:
    """Returns torch if the program has imported it completely, else `None`."""
    module = sys.modules.get("torch")
    if module is None:
        return None
    spec = getattr(module, "__spec__", None)
    if getattr(spec, "_initializing", False):
        return None
    # A namespace folder that happens to be called torch has no Tensor.
    return module if "Tensor" in vars(module) else None


def tensor_base(module: Torch) -> Any:
    """Returns the C class under every tensor, which torch before 2.2 calls by another name."""
    native = module._C
    return native.TensorBase if hasattr(native, "TensorBase") else native._TensorBase


def absent(name: str) -> str | None:
    """Returns why a library cannot be used here (not installed, or not imported), or `None`."""
    if name in sys.modules:
        return None
    from importlib.util import find_spec

    try:
        found = find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        found = False
    return f"{name} is not imported" if found else f"{name} is not installed"
