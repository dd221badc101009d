"""Sessions of inference runtimes that the program has registered with `lowtide.register_session`.

ONNX Runtime has no close function. Its memory is freed when the native session inside the Python
object is dropped, together with the descriptions that refer into it. The program keeps the emptied
object, which raises an error when it is used. Before the next task, the function that was registered
with the session makes a new one, and the object of the program takes over what that has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._native import HookPoint, Touch
from .._runtime.torch import absent
from . import registry
from .hook import Hook, each

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
    restores = True

    def missing(self) -> str | None:
        if registry.sessions.entries():
            return None
        none = "none; lowtide.register_session adds one"
        unknown = absent(registry.RUNTIME)
        return f"{unknown}, and {none}" if unknown else none

    def run(self, round: int) -> list[Touch]:
        return each(registry.sessions.entries(), _name, self._close)

    def _close(self, entry: registry.Entry) -> Touch | None:
        session = entry.get()
        if session is None or entry.was:
            return None  # It is gone by now, or it was closed before.
        closed = close(session, entry.close)
        entry.was = {"": "open"}
        return Touch(_name(entry)) if closed else None

    def restore(self) -> list[Touch]:
        return each(registry.sessions.entries(), _name, self._open)

    def _open(self, entry: registry.Entry) -> Touch | None:
        session = entry.get()
        if session is None or not entry.was:
            return None
        reopen(session, entry)
        entry.was = {}
        return Touch(_name(entry))


def _name(entry: registry.Entry) -> str:
    return f"session {entry.name}"


def reopen(session: Any, entry: registry.Entry) -> None:
    """Makes a new session and lets the registered one take over what it has."""
    make = entry.open() if entry.open is not None else None
    if make is None:
        raise RuntimeError("the object whose method opens it is gone")
    made = make()
    # A function may also open the session itself and return it, or nothing.
    if made is None or made is session:
        return
    if type(made) is not type(session):
        raise TypeError(f"open made a {type(made).__name__}, not a {type(session).__name__}")
    # They change places, so that the new object takes the closed state with it when it goes: its
    # `__del__` may close what it has.
    mine, other = vars(session), vars(made)
    closed, opened = dict(mine), dict(other)
    mine.clear()
    other.clear()
    mine.update(opened)
    other.update(closed)


def close(session: Any, by: Callable[[Any], object] | None) -> bool:
    """Closes a session. Returns `False` if there was nothing left to close."""
    if by is not None:
        by(session)
        return True
    if registry.is_onnx(session):
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
