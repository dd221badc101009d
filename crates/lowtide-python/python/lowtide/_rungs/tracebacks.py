"""Stored tracebacks: after an uncaught error in a prompt, a notebook or a test run, `sys.last_exc`
and similar names keep every frame of the traceback, and with them all local variables of those
frames.

The names are deleted and the frames cleared. The exception itself can still be printed by whoever
else holds it.
"""

from __future__ import annotations

import sys

from .._native import HookPoint, Touch
from .._runtime.frames import clear_frames
from .hook import Hook

NAMES = ("last_exc", "last_value", "last_traceback", "last_type")


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
