"""Models, sessions and caches that a program has named to lowtide, with one line each (R10).

The registry keeps none of them alive: what the program lets go of is gone from here too. Only a
cache's clear function that cannot be referred to weakly (a lambda, a plain function, a method of a
built-in type) is kept, until it is taken out again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Entry:
    """One registered object. `was` is for whoever changes it and wants to change it back."""

    __slots__ = ("_object", "close", "name", "was")

    def __init__(self, name: str, reference: Callable[[], Any], close: Any = None) -> None:
        self.name = name
        self.close = close
        self.was: dict[str, str] = {}
        self._object = reference

    def get(self) -> Any | None:
        """The object, if it still lives."""
        return self._object()


class Registered:
    """Objects of one kind, in the order in which they came, none of them kept alive."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._entries: dict[int, Entry] = {}

    def add(self, one: object, name: str | None, close: Any = None) -> None:
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
        entries[key] = Entry(name or type(one).__name__, reference, close)

    def entries(self) -> list[Entry]:
        return [entry for entry in list(self._entries.values()) if entry.get() is not None]


models = Registered("model")
sessions = Registered("session")
caches: dict[str, tuple[Callable[[], Any], Callable[[], int] | None]] = {}
"""Registered caches: by name, what gives the clear function, and what tells their size."""


def register_model(model: T, name: str | None = None) -> T:
    """Names a model that may be moved to the host's memory while idle. Returns the model."""
    if not callable(getattr(type(model), "to", None)):
        raise TypeError(f"a {type(model).__name__} cannot be moved: it has no .to(device)")
    models.add(model, name)
    return model


def register_session(
    session: T, close: Callable[[T], object] | None = None, name: str | None = None
) -> T:
    """Names a session of an inference runtime that may be closed. Returns the session.

    `close` is called with it; without one, an ONNX Runtime session is emptied, and anything else
    needs a `close` method of its own.
    """
    sessions.add(session, name, close)
    return session


def register_cache(
    name: str, clear: Callable[[], object], size: Callable[[], int] | None = None
) -> Callable[[], None]:
    """Names a cache: `clear()` empties it, `size()` tells its bytes on the device.

    A second one of the same name takes the first one's place. Returns what takes it out again.
    """
    if not callable(clear):
        raise TypeError(f"clear has to be something to call, not a {type(clear).__name__}")
    entry = (weakly(clear), size)
    caches[name] = entry

    def remove() -> None:
        if caches.get(name) is entry:
            del caches[name]

    return remove


def weakly(call: Callable[[], object]) -> Callable[[], Any]:
    """Gives the callable for as long as the object it is a method of lives, without keeping it."""
    owner, function = getattr(call, "__self__", None), getattr(call, "__name__", None)
    if owner is None or not isinstance(function, str) or isinstance(owner, type):
        return lambda: call
    try:
        if hasattr(call, "__func__"):
            return weakref.WeakMethod(call)
        reference = weakref.ref(owner)
    except TypeError:
        return lambda: call  # Its owner has no weak references, as a dict or a list.
    return lambda: getattr(reference(), function, None)
