"""What may be cleared because it is made again: registered caches, compiled code, stored tracebacks.

`torch.compile` keeps compiled code and its guards, and through them the tensors of compiled models. After a
reset, functions are compiled again at their next call.

After an uncaught error in a prompt, a notebook or a test run, `sys.last_exc` and similar names keep every
frame of the traceback, and with them all local variables of those frames. The names are deleted and the
frames cleared. The exception itself can still be printed by whoever else holds it.
"""

from __future__ import annotations

import sys

from .._native import HookPoint, Touch
from .._runtime.frames import clear_frames
from .._runtime.torch import Torch, absent, torch
from . import registry
from .hook import Hook, each

NAMES = ("last_exc", "last_value", "last_traceback", "last_type")


class RegisteredCaches(Hook):
    """Calls the clear function of every cache that the program has registered with `register_cache`."""

    point = HookPoint.CACHES
    name = "registered caches"

    def missing(self) -> str | None:
        return None if registry.caches else "none; lowtide.register_cache adds one"

    def expect(self) -> int | None:
        known = list(registry.caches.values())
        sizes = [cache.size() for cache in known if cache.size is not None and cache.clear()]
        return sum(sizes) if sizes else None

    def run(self, round: int) -> list[Touch]:
        return each(list(registry.caches), lambda name: f"cache {name}", self._clear)

    def _clear(self, name: str) -> Touch | None:
        cache = registry.caches[name]
        clear = cache.clear()
        if clear is None:
            # The object whose method this was is gone, and its cache with it.
            registry.caches.pop(name, None)
            return None
        held = cache.size() if cache.size is not None else None
        clear()
        return Touch(f"cache {name}", held)


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


class StoredTracebacks(Hook):
    """Deletes the tracebacks that the interpreter has stored in `sys`."""

    point = HookPoint.CACHES
    costly = True
    name = "stored tracebacks"

    def run(self, round: int) -> list[Touch]:
        stored = {name: vars(sys)[name] for name in NAMES if name in vars(sys)}
        cleared = clear_frames(stored.values())
        touched: list[Touch] = []
        for name, value in stored.items():
            delattr(sys, name)
            if value is not None:
                touched.append(Touch(f"sys.{name}"))
        if cleared:
            touched.append(Touch(f"the local variables of {cleared} frames of stored tracebacks"))
        return touched
