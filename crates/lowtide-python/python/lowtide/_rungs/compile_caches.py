"""What `torch.compile` keeps: compiled code, its guards, and through both the tensors of the models
that were compiled. They compile again at their next call."""

from __future__ import annotations

import sys
from typing import Any

from .._torch import absent, torch
from .hook import Hook, Touched


class CompileCaches(Hook):
    place = "caches"
    name = "torch.compile caches"

    def missing(self) -> str | None:
        if torch() is None:
            return absent("torch") or "torch is still being imported"
        return absent("torch._dynamo")

    def run(self, round: int) -> Touched:
        compiled = compiled_functions()
        if compiled == 0:
            return []
        dynamo: Any = sys.modules["torch._dynamo"]
        dynamo.reset()
        many = f"{compiled} compiled functions" if compiled is not None else "compiled functions"
        return [(f"{many} (torch._dynamo.reset)", None)]


def compiled_functions() -> int | None:
    """How many functions torch.compile has looked at; `None` where this torch does not tell."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is None:
        return 0
    seen = getattr(getattr(frames, "input_codes", None), "seen", None)
    if not isinstance(seen, list):
        return None
    return sum(1 for reference in seen if reference() is not None)
