"""The steps of a cut, with names: what a person writes, and what `apply` does later."""

from __future__ import annotations

import re
from types import CellType, FunctionType, MethodType
from typing import NamedTuple

from ..._native import printable
from ..answer import Step
from ..interpreter import Registered
from ..rare.exit_calls import ExitCall, calls_of, exit_reference
from ..references.functions import function_name
from ..references.look import is_a, plain, type_name
from ..references.reference import Reference
from .path import NamedPath
from .statement import Statement, fill

_CLEARED = ("cache", "cache entry")
_MOVING = ("element", "item", "key", "queued", "weak value")
_PLAIN = (dict, list, tuple, set, frozenset, CellType, MethodType)


class ReferenceKey(NamedTuple):
    """Identifies a reference: the id of its holder, the step, and the id of what it holds.

    The path to it may change from one question to the next, and with it the words: up to Python
    3.12, reading an instance's attributes creates its dict, which lengthens some paths.
    """

    holder_id: int
    step: str
    held_id: int


Keys = frozenset[ReferenceKey]


class NamedStep(NamedTuple):
    """A reference of a cut: in words, by its key, as a statement, and itself where it was found."""

    step: Step
    key: ReferenceKey
    statement: Statement | None
    reference: Reference | None
    goes: str
    is_entry: bool
    """Whether more goes than the cut says: a whole entry, and perhaps a cycle with it."""
    over: frozenset[int] = frozenset()
    """The ids of the objects over which the path leads, without its holder."""


def hook_step(way: NamedPath, hook: Reference) -> NamedStep:
    statement = Statement(plain(hook.verb), frozenset(hook.imports))
    number, code = id(way.first()), printable(statement.code())
    step = Step(path=way.words(), action=code, by_hand=False, kind=hook.kind, can_apply=True)
    key = ReferenceKey(number, hook.kind, number)
    return NamedStep(step, key, statement, hook, known_as(way.first()), is_entry=True)


def exit_step(way: NamedPath, call: ExitCall) -> NamedStep:
    reference = exit_reference(call)
    statement = fill(reference, None, None)
    action = reference.why_not if statement is None else printable(statement.code())
    step = Step(
        path=way.words(),
        action=action,
        by_hand=statement is None,
        kind=reference.kind,
        can_apply=reference.can_cut,
    )
    number, times = id(call.function), calls_of(call.function)
    name = function_name(call.function)
    key = ReferenceKey(number, reference.kind, number)
    goes = name if times == 1 else f"all {times} calls of {name}"
    return NamedStep(step, key, statement, reference, goes, is_entry=True)


def undo_step(way: NamedPath, registered: Registered) -> NamedStep:
    undo, held = registered.undo, way.held()
    reference = Reference("", "registered hook", undo.statement, imports=(undo.needs,))
    statement = Statement(undo.statement, frozenset({undo.needs}))
    step = Step(
        path=way.text(),
        action=statement.code(),
        by_hand=False,
        kind=reference.kind,
        can_apply=True,
    )
    key = ReferenceKey(0, undo.statement, sum(map(id, registered)))
    return NamedStep(step, key, statement, reference, known_as(held), is_entry=False)


def known_as(value: object) -> str:
    """Returns an object that goes with a cut, in a word or two; nothing for plain containers."""
    if is_a(value, FunctionType):
        return f"{printable(plain(FunctionType.__dict__['__name__'].__get__(value)))}()"
    if type(value) in _PLAIN:
        return ""
    return f"class {type_name(value)}" if is_a(value, type) else type_name(type(value))  # type: ignore[arg-type]


def in_order(steps: list[NamedStep]) -> list[NamedStep]:
    """Puts steps that delete elements last, those with high numbers first: deleting one moves those
    behind it. After them comes what empties more than the reference that it cuts, the outermost last: the
    way to another step may lead over the entries of a cache, or over a generator that is closed."""
    passed = frozenset().union(*(one.over for one in steps))
    moving = [one for one in steps if one.step.kind in _MOVING]
    moving.sort(key=lambda one: _natural(one.step.path), reverse=True)
    others = [one for one in steps if one.step.kind not in _MOVING]
    emptying = [one for one in others if one.step.kind in _CLEARED or one.key.holder_id in passed]
    emptying.sort(key=lambda one: len(one.step.path), reverse=True)
    return [one for one in others if one not in emptying] + moving + emptying


def _natural(text: str) -> list[tuple[int, str]]:
    """Returns a key that sorts numbers in a text by their size."""
    parts = re.split(r"([0-9]+)", text)
    return [(int(part), "") if at % 2 else (0, part) for at, part in enumerate(parts)]


def keys(steps: list[NamedStep]) -> Keys:
    return frozenset(one.key for one in steps)
