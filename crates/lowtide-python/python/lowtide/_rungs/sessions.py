"""Sessions of inference runtimes that the program has registered (`lowtide.register_session`).

ONNX Runtime has no close: its memory goes when the native session inside the Python object is let
go of, together with the descriptions that refer into it. The emptied object stays with whoever has
it and says so when used.
"""

from __future__ import annotations

import sys
from typing import Any

from .._torch import absent
from . import registry
from .hook import Hook, Touched, done

RUNTIME = "onnxruntime"
# What refers into the native session, in the order in which the runtime itself lets go of it.
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
    place = "sessions"
    name = "inference sessions"

    def missing(self) -> str | None:
        if registry.sessions.entries():
            return None
        none = "none; lowtide.register_session adds one"
        unknown = absent(RUNTIME)
        return f"{unknown}, and {none}" if unknown else none

    def run(self, round: int) -> Touched:
        touched: Touched = []
        failures: list[str] = []
        for entry in registry.sessions.entries():
            session = entry.get()
            if session is None or entry.was:
                continue  # It has died just now, or it was closed before.
            try:
                closed = close(session, entry.close)
            except Exception as failure:  # noqa: BLE001  Its failure stops nobody else.
                failures.append(f"session {entry.name}: {type(failure).__name__}: {failure}")
            else:
                entry.was = {"": "open"}
                if closed:
                    touched.append((f"session {entry.name}", None))
            del session
        return done(touched, failures)


def close(session: Any, by: Any) -> bool:
    """Closes a session; `False` where there was nothing left to close."""
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
