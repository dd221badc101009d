"""Models, sessions and caches that a program has registered, with one line each (R10).

The registry keeps none of them alive. The exception is a cache's clear function that cannot be
referenced weakly (a lambda, a plain function, a method of a built-in type): it stays until it is
removed.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

RUNTIME = "onnxruntime"
T = TypeVar("T")


@dataclass(slots=True)
class Entry:
    """One registered object. `was` and `size` (bytes, if known) are for the hook that changes it and
    changes it back later."""

    kind: str
    name: str
    get: Callable[[], Any | None]
    """Returns the object, or `None` if it is gone."""
    close: Callable[[Any], object] | None
    open: Callable[[], Callable[[], Any] | None] | None
    was: dict[str, str] = field(default_factory=dict)
    size: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Registered:
    """Objects of one kind in the order of their registration. None of them is kept alive."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._entries: dict[int, Entry] = {}

    def add(
        self,
        one: object,
        name: str | None,
        close: Callable[[Any], object] | None = None,
        open: Callable[[], Callable[[], Any] | None] | None = None,
    ) -> None:
        """Registers an object. Raises TypeError if it has no weak references."""
        key = id(one)
        entries = self._entries

        def forget(_: object) -> None:
            entries.pop(key, None)

        try:
            reference = weakref.ref(one, forget)
        except TypeError:
            raise TypeError(
                f"a {self._what} of type {type(one).__name__} cannot be registered: it has no weak"
                " references, and lowtide keeps nothing alive"
            ) from None
        entries[key] = Entry(self._what, name or type(one).__name__, reference, close, open)

    def objects(self) -> list[Any]:
        """Returns the objects that are still alive."""
        return [one for entry in list(self._entries.values()) if (one := entry.get()) is not None]

    def entries(self) -> list[Entry]:
        """Returns the entries whose objects are still alive."""
        return [entry for entry in list(self._entries.values()) if entry.get() is not None]


class Cache(NamedTuple):
    """A registered cache."""

    clear: Callable[[], Callable[[], object] | None]
    """Returns the function that clears it, or `None` once its owner is gone."""
    size: Callable[[], int] | None


models = Registered("model")
sessions = Registered("session")
workers = Registered("worker")
caches: dict[str, Cache] = {}


def register_model(model: T, name: str | None = None) -> T:
    """Registers a model that a release may move to host memory. Returns the model.

    The next task (`idle.work()`, `Gate.enter()`) or `restore()` moves it back.
    """
    if not callable(getattr(type(model), "to", None)):
        raise TypeError(f"{type(model).__name__} cannot be moved: it has no .to(device)")
    models.add(model, name)
    return model


def register_session(
    session: T,
    close: Callable[[T], object] | None = None,
    name: str | None = None,
    *,
    open: Callable[[], object] | None = None,
) -> T:
    """Registers a session of an inference runtime that a release may close. Returns the session.

    `close` is called with the session. Without it, an ONNX Runtime session is emptied, and any
    other session needs a `close` method. `open` makes a session like it: the next task
    (`idle.work()`, `Gate.enter()`) or `restore()` calls it, and the registered session takes over
    what the new one has. Raises TypeError without it, because a closed session could not be used
    again.
    """
    kind = type(session).__name__
    if open is None:
        raise TypeError(
            f"a session of type {kind} cannot be registered without open=: a release closes it, and"
            " the next task has to open it again; give a function that makes such a session"
        )
    if not callable(open):
        raise TypeError(f"open must be callable, not a {type(open).__name__}")
    if close is None and not is_onnx(session) and not callable(getattr(session, "close", None)):
        raise TypeError(f"a {kind} has no close method: register it with close=")
    if not hasattr(session, "__dict__") and getattr(open, "__self__", None) is not session:
        raise TypeError(
            f"a {kind} has no attributes that it could take over from a new session: give a method"
            " of the session itself as open="
        )
    sessions.add(session, name, close, weakly(open))
    return session


def is_onnx(session: object) -> bool:
    """Returns whether it is a session of ONNX Runtime."""
    runtime = getattr(sys.modules.get(RUNTIME), "InferenceSession", None)
    return runtime is not None and isinstance(session, runtime)


def register_cache(
    name: str, clear: Callable[[], object], size: Callable[[], int] | None = None
) -> Callable[[], None]:
    """Registers a cache: `clear()` empties it, `size()` returns its bytes on the device.

    A second cache of the same name replaces the first. Returns a function that removes it.
    """
    if not callable(clear):
        raise TypeError(f"clear must be callable, not a {type(clear).__name__}")
    entry = Cache(weakly(clear), size)
    caches[name] = entry

    def remove() -> None:
        if caches.get(name) is entry:
            del caches[name]

    return remove


def weakly(call: Callable[[], Any]) -> Callable[[], Callable[[], Any] | None]:
    """Returns a function that gives `call` for as long as the object whose method it is lives."""
    owner, function = getattr(call, "__self__", None), getattr(call, "__name__", None)
    if owner is None or not isinstance(function, str) or isinstance(owner, type):
        return lambda: call
    try:
        if hasattr(call, "__func__"):
            return weakref.WeakMethod(call)
        reference = weakref.ref(owner)
    except TypeError:
        return lambda: call  # Its owner, a dict or a list, has no weak references.
    return lambda: getattr(reference(), function, None)
