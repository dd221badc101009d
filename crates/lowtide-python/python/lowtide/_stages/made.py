"""Notes the models, optimizers and sessions that are made while a stage is open, by weak references.

Their classes are watched only then: `__init__`, and `__setstate__` for copies and unpickled ones. What is
made belongs to the innermost stage of its thread or task.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from .._runtime.heap import objects_of
from .._why.references.look import module_value

_WATCHED = (
    ("torch.nn.modules.module", "Module"),
    ("torch.optim.optimizer", "Optimizer"),
    ("onnxruntime", "InferenceSession"),
)

_current: ContextVar[Made | None] = ContextVar("lowtide_stage", default=None)
_lock = threading.RLock()
_open: list[Made] = []
_unwatch: list[Callable[[], None]] = []


def classes() -> list[type]:
    """Returns the watched classes that are imported."""
    found = [module_value(*place) for place in _WATCHED]
    return [one for one in found if isinstance(one, type)]


class Made:
    """What is made in a block, from its creation to `end`."""

    def __init__(self) -> None:
        self._found: dict[int, weakref.ref[object]] = {}
        self.foreign: dict[int, weakref.ref[object]] = {}
        """What threads and tasks have made meanwhile that belong to no stage."""
        self._classes = classes()
        self._outer = _innermost()
        with _lock:
            if not _open:
                for one in self._classes:
                    _watch(one)
            _open.append(self)
        _current.set(self)

    def note(self, one: object) -> None:
        self._found[id(one)] = weakref.ref(one)

    def end(self) -> list[object]:
        """Returns what was made and is alive. The block around this one gets it as well."""
        with _lock:
            _open.remove(self)
            while _unwatch and not _open:
                _unwatch.pop()()
        if _current.get() is self:
            _current.set(self._outer)
        # Of a library that the block was first to import, all are its own.
        found = [one for known in self._found.values() if (one := known()) is not None]
        for late in [cls for cls in classes() if cls not in self._classes]:
            found += objects_of(late)
        self._found = {}
        if self._outer in _open and self._outer is not None:
            for one in found:
                self._outer.note(one)
        return found


def _innermost() -> Made | None:
    made = _current.get()
    while made is not None and made not in _open:
        made = made._outer
    return made


def _watch(cls: Any) -> None:
    for name in ("__init__", "__setstate__"):
        if (original := vars(cls).get(name)) is not None:
            _unwatch.append(_replace(cls, name, original))


def _replace(cls: Any, name: str, original: Callable[..., Any]) -> Callable[[], None]:
    @functools.wraps(original)
    def noting(self: object, *arguments: Any, **keywords: Any) -> Any:
        if (made := _innermost()) is not None:
            made.note(self)
        else:
            for made in _open:
                made.foreign[id(self)] = weakref.ref(self)
        return original(self, *arguments, **keywords)

    setattr(cls, name, noting)
    # Somebody else may have replaced it meanwhile.
    return lambda: setattr(cls, name, original) if vars(cls).get(name) is noting else None
