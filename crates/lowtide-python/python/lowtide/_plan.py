"""What a shutdown of an object drops, in which order; and `audit`, which only says so.

Only references that the object has itself are dropped: to attributes, parts and items that lead to
device memory. What is reached through it alone goes with them; what somebody else holds too stays,
whole and untouched, and is named.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

from . import _native
from ._answer import _Data, counted, mib
from ._look import instance_dict, type_name
from ._path import Root, path_text
from ._question import Question
from ._reference import references
from ._torch import torch
from ._why import holders

_PARTS = ("_parameters", "_buffers", "_modules")


class PlanStep:
    """One reference to drop: its path, what it leads to in bytes, and the cut itself."""

    __slots__ = ("_references", "bytes", "path")

    def __init__(self, path: str, size: int, references: list[Any]) -> None:
        self.path = path
        self.bytes = size
        self._references = references

    def cut(self) -> None:
        """Drops it. What it led to is not held by this step afterwards."""
        while self._references:
            self._references.pop().cut()


class Plan:
    """What to drop, wrappers first. `tensors` are weak: they tell who has survived."""

    __slots__ = ("freed_bytes", "name", "stays", "steps", "tensors")

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: list[PlanStep] = []
        self.tensors: list[weakref.ref[Any]] = []
        self.stays: list[weakref.ref[Any]] = []
        self.freed_bytes = 0

    def survivors(self) -> list[object]:
        """The tensors that are still there."""
        return _alive(self.tensors)


def plan(obj: object, also: Iterable[object] = ()) -> Plan:
    """What a shutdown of `obj` drops. `also` are objects that it may treat as its own."""
    owners = [obj, *also]
    del obj
    places: list[object] = []
    for owner in owners:
        places += _places(owner)
    known = {id(place) for place in places}
    values: list[object] = []
    for place in places:
        for value in gc.get_referents(place):
            if id(value) not in known and not isinstance(value, type):
                known.add(id(value))
                values.append(value)
    question = Question(owners)
    found = _native.leads_to(question, places, values)
    del question, places
    made = Plan(_name(found["path"], owners[0]))
    made.freed_bytes = found["freed"]
    made.tensors = _weak(found.pop("tensors"))
    made.stays = _weak(found.pop("stay"))
    # Who leads to most others wraps them.
    order = sorted(range(len(values)), key=lambda at: -len(found["led"][at][2]))
    for at in order:
        size, pieces, _ = found["led"][at]
        if pieces == 0:
            continue
        for number, owner in enumerate(owners):
            ways = [way for way in references(owner, values[at]) if way.can_cut]
            if ways:
                name = made.name if number == 0 else type_name(type(owner))
                made.steps.append(PlanStep(name + ways[0].step, size, ways))
    return made


def _places(owner: object) -> list[object]:
    """Where an object keeps what it has: itself, its dict, and the tables of a module's parts."""
    places: list[object] = [owner]
    attributes = instance_dict(owner)
    if attributes is None:
        return places
    places.append(attributes)
    module = torch()
    if module is not None and isinstance(owner, module.nn.Module):
        tables = [dict.get(attributes, name) for name in _PARTS]
        places += [table for table in tables if isinstance(table, dict)]
    return places


def _name(path: Any, obj: object) -> str:
    if path is None:
        return type_name(type(obj))
    (kind, _), objects, _, _ = path
    text = path_text(Root(kind, ""), objects)
    # A frame's words are for people who look for it; here only the variable matters.
    return text.rsplit(": ", 1)[-1]


def _weak(objects: list[Any]) -> list[weakref.ref[Any]]:
    found = []
    for one in objects:
        try:
            found.append(weakref.ref(one))
        except TypeError:
            continue  # It cannot say that it has gone; the numbers do.
    return found


def _alive(references: list[weakref.ref[Any]]) -> list[object]:
    return [one for one in (reference() for reference in references) if one is not None]


class Audit(_Data):
    """What a shutdown would do: what it drops in which order, what that frees, who else holds."""

    __slots__ = ("drops", "freed_bytes", "name", "others")

    def __init__(
        self,
        name: str,
        drops: tuple[tuple[str, int], ...],
        freed_bytes: int,
        others: tuple[tuple[str, str, int], ...],
    ) -> None:
        self.name = name
        self.drops = drops
        self.freed_bytes = freed_bytes
        self.others = others

    def __str__(self) -> str:
        head = f"a shutdown of {self.name} would drop {counted(len(self.drops), 'reference')}"
        lines = [f"{head} and free {mib(self.freed_bytes)}"]
        lines += [f"  {mib(size):>14}  {path}" for path, size in self.drops]
        lines += [f"  {mib(size):>14}  stays: {what} by {path}" for path, what, size in self.others]
        return "\n".join(lines)


def audit(runner: object, *, also: Iterable[object] = ()) -> Audit:
    """What `shutdown(runner)` would drop, wrappers first, and who else holds what it has.

    Nothing is changed. `others` that are new since the last release are new leaks.
    """
    made = plan(runner, also)
    drops = tuple((step.path, step.bytes) for step in made.steps)
    made.steps.clear()
    stays = _alive(made.stays)
    outside = holders(stays, besides=runner) if stays else []
    del stays, runner
    others = tuple((path, holds, size) for path, holds, _, size, _ in outside)
    return Audit(made.name, drops, made.freed_bytes, others)
