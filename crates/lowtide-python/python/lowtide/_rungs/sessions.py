"""Sessions of inference runtimes that the program has registered with `lowtide.register_session`.

ONNX Runtime has no close function. Its memory is freed when the native session inside the Python
object is dropped, together with the descriptions that refer into it. The program keeps the emptied
object, which raises an error when it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .._hook import Hook, done
from .._native import HookPoint, Touch
from .._torch import absent
from . import registry

RUNTIME = "onnxruntime"
# Attributes that refer into the native session, in the order in which the runtime itself drops
# them.
INSIDE = (
    "_inputs_meta",
    "_outputs_meta",
    "_overridable_initializers",
    "_input_meminfos",
    "_output_meminfos",
    "_input_epdevices",
    "_model_meta",
    "_sess",
)


class Sessions(Hook):
    """Closes every registered session."""

    point = HookPoint.SESSIONS
    name = "inference sessions"

    def missing(self) -> str | None:
        if registry.sessions.entries():
            return None
        none = "none; lowtide.register_session adds one"
        unknown = absent(RUNTIME)
        return f"{unknown}, and {none}" if unknown else none

    def run(self, round: int) -> list[Touch]:
        touched: list[Touch] = []
        failures: list[str] = []
        for entry in registry.sessions.entries():
            session = entry.get()
            if session is None or entry.was:
                continue  # It is gone by now, or it was closed before.
            try:
                closed = close(session, entry.close)
            except Exception as failure:  # noqa: BLE001  One failure does not stop the others.
                failures.append(f"session {entry.name}: {type(failure).__name__}: {failure}")
            else:
                entry.was = {"": "open"}
                if closed:
                    touched.append(Touch(f"session {entry.name}"))
            del session
        return done(touched, failures)


def close(session: Any, by: Callable[[Any], object] | None) -> bool:
    """Closes a session. Returns `False` if there was nothing left to close."""
    if by is not None:
        by(session)
        return True
    runtime = getattr(sys.modules.get(RUNTIME), "InferenceSession", None)
    if runtime is not None and isinstance(session, runtime):
        attributes = vars(session)
        open_before = attributes.get("_sess") is not None
        for name in INSIDE:
            if name in attributes:
                attributes[name] = None
        return open_before
    method = getattr(session, "close", None)
    if method is None:
        raise TypeError("it has no close method: register it with close=")
    method()
    return True
