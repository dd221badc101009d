"""What a shutdown of an object drops, and in which order; `audit` tells it without doing it.

It drops references that lead to device memory: attributes and parts of the object itself, and entries
of containers that it reaches. What only those references reach is freed with them. What somebody else
holds too stays as it is, and is named; of a shared object such as a configuration only entries of
containers go, never an attribute. `answer/dropped_references.rs` of lowtide-walk has the rules.
"""

from __future__ import annotations

import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from reprlib import repr as short
from types import SimpleNamespace
from typing import Any

from .._native import DroppedReference, HeapPath, Holder, plan_shutdown
from .._runtime.data import Data, counted, holds_nothing, mib
from .._runtime.heap import alive, weakly
from .._runtime.torch import torch
from .._why.alone import EXAMINING
from .._why.memory.probe import have_own_memory
from .._why.naming.path import NamedPath
from .._why.naming.words import Root, is_module_frame
from .._why.question import Question, caller
from .._why.references.locals import locals_of
from .._why.references.look import instance_dict, module_value, pairs, type_name
from .._why.references.readers import references
from .._why.references.reference import Reference
from .._why.why import holders

_PARTS = ("_parameters", "_buffers", "_modules")
_CONTAINERS = (dict, list, set, deque)


@dataclass(slots=True)
class PlanStep:
    """References to drop in one place: their path, the bytes that no earlier step leads to, and the
    cut."""

    path: str
    bytes: int | None
    _dropped: list[Dropped]

    def cut(self) -> None:
        """Drops them. Afterwards this step holds nothing of what they led to."""
        while self._dropped:
            self._dropped.pop().cut()


@dataclass(slots=True)
class Dropped:
    """One reference to drop, and how it is put back."""

    _holder: object
    _held: object
    _ways: list[Reference]
    _undo: list[Callable[[], bool]]

    def cut(self) -> None:
        back = putting_back(self._holder, self._held)
        self._holder = self._held = None
        while self._ways:
            self._ways.pop().cut()
        if back is not None:
            self._undo.append(back)


@dataclass(slots=True)
class Plan:
    """What to drop, wrappers first. `tensors` are weak references: they show what has survived.

    If nothing would be freed, because others hold all of it, there are no steps.
    """

    name: str
    steps: list[PlanStep] = field(default_factory=list)
    tensors: list[weakref.ref[object]] = field(default_factory=list)
    stays: list[weakref.ref[object]] = field(default_factory=list)
    freed_bytes: int = 0
    in_vain: bool = False
    undo: list[Callable[[], bool]] = field(default_factory=list)
    """Puts back what was dropped, the last first. Each returns whether it could."""


def plan(
    owner: object,
    also: Iterable[object] = (),
    named: Mapping[int, tuple[str, ...]] | None = None,
) -> Plan:
    """Returns what a shutdown of `owner` drops. `also` are objects that it may treat as its own.

    `named` has attributes by the id of their object: of that object nothing else is looked at, and the
    caller drops them.
    """
    with EXAMINING.alone():
        return _plan([owner, *also], named or {})


def _plan(owners: list[object], named: Mapping[int, tuple[str, ...]]) -> Plan:
    places = [_places(one) for one in owners]
    question = Question(owners)
    only = [_values(one, named[id(one)]) if id(one) in named else None for one in owners]
    # The types whose attributes are entries, as those of a dict.
    parsed = module_value("argparse", "Namespace")
    namespaces: list[type] = [SimpleNamespace, ChainMap, UserDict, UserList]
    namespaces += [parsed] if isinstance(parsed, type) else []
    given = (question, places, only, _configurations(owners[0]), namespaces)
    found = plan_shutdown(*given, not named)
    if found.is_alone and not have_own_memory(found.tensors):
        del found
        found = plan_shutdown(*given, False)
    del question, places, given
    made = Plan(_variable(owners[0]) if found.is_alone else _name(found.path, owners[0]))
    made.freed_bytes = found.freed_bytes
    made.tensors = weakly(found.tensors)
    made.stays = weakly(found.stays)
    drops = list(found.drops)
    del found
    # Others may have the memory by tensors of their own: `detach()`, an array of numpy.
    leads_to_some = bool(made.stays) or any(lead.bytes for lead in drops)
    if made.freed_bytes == 0 and leads_to_some and not named:
        made.in_vain = True
        return made
    drops = [lead for lead in drops if id(lead.chain[0]) not in named]
    names = {id(one): type_name(type(one)) for one in owners[1:]} | {id(owners[0]): made.name}
    made.steps = _steps(drops, names, made.undo)
    return made


def _steps(
    drops: list[DroppedReference], names: dict[int, str], undo: list[Callable[[], bool]]
) -> list[PlanStep]:
    """Returns a step for each attribute, and one for all entries of a container."""
    steps: list[PlanStep] = []
    by_container: dict[int, tuple[PlanStep, list[Dropped]]] = {}
    while drops:
        lead = drops.pop(0)
        holder, held = lead.chain[-1], lead.held
        ways = [way for way in references(holder, held) if way.can_cut]
        if not ways:
            continue
        dropped = Dropped(holder, held, ways, undo)
        path = names.get(id(lead.chain[0]), "") + _text(lead.chain)
        known = by_container.get(id(holder))
        if known is not None:
            step, all_of_it = known
            step.path = path
            step.bytes = (step.bytes or 0) + lead.bytes
            all_of_it.insert(0, dropped)
            continue
        step = PlanStep(path + ways[0].step, lead.bytes, [dropped])
        steps.append(step)
        if isinstance(holder, _CONTAINERS):
            by_container[id(holder)] = step, step._dropped
    return steps


def _text(chain: list[object]) -> str:
    """Returns the path from the first object to the last."""
    text = ""
    for holder, held in pairwise(chain):
        ways = references(holder, held)
        text += ways[0].step if ways else " …"
    return text


def _values(owner: object, names: tuple[str, ...]) -> set[int]:
    """Returns the ids of some attributes."""
    return {id(value) for name, value in pairs(instance_dict(owner) or {}) if name in names}


def _configurations(owner: object) -> list[int]:
    """Returns the ids of the values of an object that are called a configuration. Such an object owns
    no memory: what its containers lead to was put there by the engine that it configures."""
    found = []
    for name, value in pairs(instance_dict(owner) or {}):
        named = type(name) is str and "config" in name.lower()
        if named or "config" in type_name(type(value)).lower():
            found.append(id(value))
    return found


def _places(owner: object) -> list[object]:
    """Returns where an object keeps what it has: itself, its dict, the tables of a module's parts."""
    places: list[object] = [owner]
    attributes = instance_dict(owner)
    if attributes is None:
        return places
    places.append(attributes)
    module = torch()
    if module is not None and isinstance(owner, module.nn.Module):
        places += _tables(attributes)
    return places


def _name(path: HeapPath | None, owner: object) -> str:
    if path is None:
        return type_name(type(owner))
    text = NamedPath(Root(path.root, ""), path.objects).words()
    # Only the variable matters here, not in which frame it is.
    return text.rsplit(": ", 1)[-1]


def _variable(owner: object) -> str:
    """Returns the name of a variable of running code for an object, or for what has it as an attribute."""
    frame, kept = caller(), type_name(type(owner))
    while frame is not None:
        is_module = is_module_frame(frame)
        module = frame.f_globals.get("__name__") if is_module else "__main__"
        begin = "" if module == "__main__" else f"{module}."
        variables = locals_of(frame)
        for name, value in variables.items():
            if value is owner:
                return begin + name
        for name, value in variables.items():
            for attribute, part in pairs(instance_dict(value) or {}):
                if part is owner:
                    return f"{begin}{name}.{attribute}"
        frame = frame.f_back
    return kept


def putting_back(holder: object, held: object) -> Callable[[], bool] | None:
    """Returns a function that puts `held` back where `holder` has it now, after a shutdown in vain.

    Only a weak reference is kept meanwhile: what is put back is what somebody else holds. What nobody else
    held is gone, with its memory. The function returns whether it did. There is none for objects without weak references, and for places that
    cannot be filled again.
    """
    try:
        alive = weakref.ref(held)
    except TypeError:
        return None
    put = _place(holder, held)
    if put is None:
        return None

    def back() -> bool:
        one = alive()
        if one is None:
            return False
        put(one)
        return True

    return back


def _place(holder: object, held: object) -> Callable[[object], object] | None:
    if isinstance(holder, dict):
        keys = [key for key, value in pairs(holder) if value is held]
        mapping = holder
        return lambda one: [dict.setdefault(mapping, key, one) for key in keys]
    if isinstance(holder, (list, deque)):
        kind: Any = list if isinstance(holder, list) else deque
        places = [at for at, value in enumerate(kind.__iter__(holder)) if value is held]
        return lambda one: [kind.insert(holder, at, one) for at in places]
    if isinstance(holder, set):
        return holder.add
    attributes = instance_dict(holder)
    tables = [] if attributes is None else [attributes, *_tables(attributes)]
    places_of = [(table, key) for table in tables for key, value in pairs(table) if value is held]

    def fill(one: object) -> None:
        for table, key in places_of:
            if dict.get(table, key) is None:
                dict.__setitem__(table, key, one)

    return fill if places_of else None


def _tables(attributes: dict[object, object]) -> list[dict[object, object]]:
    """Returns the tables in which a module of torch has its parts."""
    found = [dict.get(attributes, name) for name in _PARTS]
    return [table for table in found if isinstance(table, dict)]


@dataclass(slots=True, repr=False, eq=False)
class Drop(Data):
    """A reference that a shutdown would drop, and the bytes that it leads to."""

    path: str
    bytes: int | None


@dataclass(slots=True, repr=False, eq=False)
class Audit(Data):
    """What a shutdown would do: the references that it drops in order, what that frees, and who
    else holds some of it."""

    name: str
    drops: tuple[Drop, ...]
    freed_bytes: int
    others: tuple[Holder, ...]

    def __str__(self) -> str:
        head = f"a shutdown of {self.name} would drop {counted(len(self.drops), 'reference')}"
        lines = [f"{head} and free {mib(self.freed_bytes)}"]
        lines += [f"  {mib(drop.bytes or 0):>14}  {drop.path}" for drop in self.drops]
        for other in self.others:
            lines.append(f"  {mib(other.bytes or 0):>14}  stays: {other.path} holds {other.holds}")
            lines.append(f"  {'→':>14}  {other.remedy()}")
        return "\n".join(lines)


def audit(runner: object, *, also: Iterable[object] = ()) -> Audit:
    """Returns what `shutdown(runner)` would drop, wrappers first, and who else holds some of it.

    Changes nothing. Entries of `others` that are new since the last release are new leaks.
    """
    if holds_nothing(runner):
        raise TypeError(
            f"{short(runner)} holds no memory; give the object that does, such as the engine"
        )
    made = plan(runner, also)
    drops = tuple(Drop(step.path, step.bytes) for step in made.steps)
    made.steps.clear()
    staying = alive(made.stays)
    others = tuple(holders(staying, besides=runner)) if staying else ()
    del staying, runner
    return Audit(made.name, drops, made.freed_bytes, others)
