"""What `torch.compile` keeps: compiled code and its guards, and through them the tensors of
compiled models. After a reset, functions are compiled again at their next call."""

from __future__ import annotations

import sys

from .._native import HookPoint, Touch
from .._runtime.torch import Torch, absent, torch
from .hook import Hook


class CompileCaches(Hook):
    """Resets torch.compile if it has compiled anything."""

    point = HookPoint.CACHES
    costly = True
    name = "torch.compile caches"

    def missing(self) -> str | None:
        if torch() is None:
            return absent("torch") or "torch is still being imported"
        return absent("torch._dynamo")

    def run(self, round: int) -> list[Touch]:
        compiled = compiled_functions()
        if compiled == 0:
            return []
        dynamo: Torch = sys.modules["torch._dynamo"]
        dynamo.reset()
        many = f"{compiled} compiled functions" if compiled is not None else "compiled functions"
        return [Touch(f"{many} (torch._dynamo.reset)")]


def compiled_functions() -> int | None:
    """Returns how many functions torch.compile has seen, or `None` if this torch does not tell."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is None:
        return 0
    seen = getattr(getattr(frames, "input_codes", None), "seen", None)
    if not isinstance(seen, list):
        return None
    return sum(1 for reference in seen if reference() is not None)
