"""The cuts of an object, with names: the statement that a person writes, and what `apply` does later."""

from __future__ import annotations

import collections
import re
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import AsyncGeneratorType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from ..._native import HeapCut, HeldObject, printable
from .. import rare
from ..answer import Cut, Step
from ..interpreter import registered_at
from ..references.contexts import CANCELLED, is_pending
from ..references.functions import LruCache
from ..references.look import (
    full_type_name,
    is_a,
    module_dict,
    module_value,
    namespace_of,
    plain,
    type_name,
)
from ..references.reference import Reference
from ..references.shell import FAILED_CELL, OUTPUT, is_part
from ..references.tensors import is_tensor, leaves_with_gradient_graph
from .code import Code, Statement, fill, is_plain, is_readable, joined
from .path import NamedPath

_MOST_CUTS = 4
_MOST_GRADIENTS = 16
_CLEARED = ("cache", "cache entry", OUTPUT)
_MOVING = ("element", "item", "key", "queued", "weak value")
_ENTRIES = (*_MOVING, "cache entry", "context", "scheduled call", "registered hook")
_EMPTIED = (dict, list, set, collections.deque, collections.OrderedDict, collections.defaultdict)
_ENDED = (CANCELLED, ".aclose()")
"""Is in what ends code that waits."""
_OWN_CLEAR = {"_pickle.Pickler": "clear_memo", "pickle._Pickler": "clear_memo"}
"""Objects of the standard library that go on when they are emptied, by what they have for it."""
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
    over: Callable[[], frozenset[int]] = frozenset
    """Returns the ids of the objects over which the path leads, with its holder."""


class Cuts:
    """Names the cuts of held objects. `path` names a path of the walk, continued to some more objects;
    `apply` cuts the references of a cut later."""

    def __init__(
        self, path: Callable[..., NamedPath], apply: Callable[[Sequence[Cut]], int] | None = None
    ) -> None:
        self._path = path
        self._apply = apply

    def of(self, held: HeldObject) -> tuple[Cut, ...]:
        """Returns the cuts of an object, the gentlest first; those that are statements before those
        that are done by hand."""
        below, emptied = self._below(held), self._emptied(held)
        cuts = [one for one in held.cuts if not any(is_part(edge.held) for edge in one.edges)]
        made = [self._cut(held, one, self._steps(one, held.object)) for one in cuts]
        if below is not None and not (emptied and self._are_all(held, below[1])):
            made.insert(0, self._cut(held, *below))
            # It is what the row is about.
            made[0].goes = tuple(one for one in made[0].goes if one not in ("Tensor", "Parameter"))
        elif emptied and held.cuts:
            made.insert(0, self._cut(held, held.cuts[0], emptied))
            made[0].freed_bytes, made[0].beside_objects, made[0].beside_bytes = held.bytes, 0, 0
        undo = None if made else _undo([self._path(path) for path in held.paths])
        if undo is not None and undo.reference.kind == "exit callback":
            made.append(self._cut(held, None, [_undo_step(self._path(held.paths[0]), undo)]))
        found: dict[str, Cut] = {}
        for cut in made:
            found.setdefault(str(cut), cut)
        # What is only registered is unregistered, before its holder goes. Where a reference has no statement (a
        # variable of a generator, before Python 3.12.4), its holder may have one.
        ordered = sorted(
            found.values(),
            key=lambda cut: (
                cut.code is None and not cut.can_apply,
                any(one.by_hand for one in cut.steps),
                any(one.kind != "registered hook" for one in cut.steps),
            ),
        )
        return tuple(ordered[:_MOST_CUTS])

    def steps(self, held: HeldObject) -> list[NamedStep]:
        """Returns the steps of all cuts of an object."""
        each = [self._steps(cut, held.object) for cut in [*held.below, *held.cuts]]
        first = self._gradient_steps(held) + self._emptied(held)
        return first + [step for steps in each for step in steps]

    def _below(self, held: HeldObject) -> tuple[HeapCut, list[NamedStep]] | None:
        """Returns the cut below an object that takes entries from containers, or cancels tasks: its own entries, unless
        it is an inner part of a library."""
        is_inner = any(_is_inner(self._path(path)) for path in held.paths)
        for cut in reversed(held.below) if is_inner or _has_tasks(held.object) else held.below:
            steps = self._steps(cut, held.object)
            entries = [
                one.step.kind in _ENTRIES or any(end in one.step.action for end in _ENDED)
                for one in steps
                if one.step.can_apply
            ]
            if all(entries) and len(entries) == len(steps):
                return cut, steps
        return None

    def _are_all(self, held: HeldObject, steps: list[NamedStep]) -> bool:
        """Returns whether some steps drop all entries of a container, so that it may be emptied. Tasks are cancelled
        instead."""
        are_own = all(step.key.holder_id == id(held.object) for step in steps)
        return are_own and len(held.object) <= len(steps) and not _has_tasks(held.object)

    def of_path(self, path: NamedPath, held: HeldObject) -> Cut | None:
        """Returns the cut of one path, as near to its end as is gentle; None if a person has to do it."""
        steps = self.path_steps(path)
        can_cut = steps and all(one.step.can_apply for one in steps)
        return self._cut(held, None, steps) if can_cut else None

    def path_steps(self, path: NamedPath) -> list[NamedStep]:
        """Returns the steps that cut a path."""
        undo = path.undo()
        if undo is not None:
            return [_undo_step(path, undo)]
        part = path.nearest()
        return [] if part is None else in_order(self._steps_of(part, path.held()))

    def _emptied(self, held: HeldObject) -> list[NamedStep]:
        """Returns the step that empties a container most of whose items hold memory, rather than drop it: the program
        goes on with it."""
        if is_tensor(held.object) and held.pieces > 1:
            return self._beside_parameters(held)
        container = held.object
        own = _OWN_CLEAR.get(full_type_name(type(container)))
        is_emptied = any(type(container) is kind for kind in _EMPTIED)
        if own is None and (not is_emptied or len(container) > 2 * held.pieces):
            return []
        if type(container) is dict and namespace_of(container) is not None:
            return []
        for path in map(self._path, held.paths):
            code, queue = path.code(), path.holder()
            is_queue = any(is_a(queue, kind) for kind in _queues())
            is_set = any(one.verb == "{path} = None" for one in path.last_references(container))
            is_fixed = not is_queue and (_is_library(queue) and not is_set or _is_inner(path))
            if code is None or not is_readable(code.run) or (is_fixed and own is None):
                continue
            clear = Reference("", "content", f"{{holder}}.{own or 'clear'}()").between(container)
            if is_queue:
                # Who waits in its join() is told.
                code = path.before().code() or code
                taken = "({holder}.get_nowait(), {holder}.task_done())"
                verb = f"[{taken} for _ in range({{holder}}.qsize())]"
                clear = Reference("", "content", verb).between(queue)
            key = ReferenceKey(id(container), "clear", id(container))
            count = 0 if own else len(container)
            goes = f"all {count:,} items" if count > held.pieces else ""
            return [_step(path.text(), clear, key, goes, code)]
        return []

    def _beside_parameters(self, held: HeldObject) -> list[NamedStep]:
        """Returns the step that takes from all parameters of a model what the program has put beside them."""
        for path in map(self._path, held.paths):
            model, name = path.model(), path.last_name()
            code = None if model is None else model.code()
            if model is not None and name and code is not None and is_readable(code.run):
                verb = f"[setattr(one, {name!r}, None) for one in {{holder}}.parameters()]"
                drop = Reference("", "attribute", verb).between(model.held())
                return [_step(path.text(), drop, ReferenceKey(id(model.held()), name, 0), "", code)]
        return []

    def _cut(self, held: HeldObject, found: HeapCut | None, steps: list[NamedStep]) -> Cut:
        """Returns the cut of an object that consists of some steps. `found` tells what they free, and whether garbage
        has to be collected."""
        gradients = self._gradient_steps(held) if found is not None else []
        unique = {one.step.action: one for one in gradients + steps}
        known = [one.statement for one in unique.values() if one.statement is not None]
        code = None
        if known and len(known) == len(unique):
            collect, unfreeze = any(one.is_entry for one in steps), False
            if found is not None:
                collect, unfreeze = collect or found.collects, found.unfreezes
            code = printable(joined(known, collect=collect, unfreeze=unfreeze))
            if not is_plain(code) and all(one.step.can_apply for one in unique.values()):
                code = None
        cut = Cut(
            steps=tuple(one.step for one in unique.values()),
            code=code,
            freed_objects=1,
            freed_bytes=held.bytes,
            goes=tuple(dict.fromkeys(one.goes for one in unique.values() if one.goes)),
            _apply=self._apply,
            _keys=frozenset(one.key for one in gradients + steps),
        )
        if found is not None:
            cut.freed_objects, cut.freed_bytes = found.freed.objects, found.freed.bytes
            cut.beside_objects, cut.beside_bytes = found.beside.objects, found.beside.bytes
            # The gradients are what native code holds.
            are_all = gradients and found.hidden <= len(gradients)
            cut.kept_bytes, cut.invisible = 0 if are_all else found.kept_bytes, found.hidden
            cut._unfreezes, cut._pieces = found.unfreezes, frozenset(found.pieces)
        return cut

    def _steps(self, cut: HeapCut, target: object) -> list[NamedStep]:
        edges = [edge for edge in cut.edges if edge.paths]
        ends = {(id(edge.paths[0].objects[-1]), id(edge.held)) for edge in edges}
        steps: list[NamedStep] = []
        for edge in edges:
            registered = registered_at(edge.paths[0].objects[-1:])
            if registered is not None:
                way, undo = self._path(edge.paths[0], edge.held), registered.undo
                key = ReferenceKey(0, undo.verb or "", sum(map(id, registered)))
                # One call may have registered several objects.
                if all(one.key != key for one in steps):
                    goes = known_as(way.held())
                    steps.append(_step(way.text(), undo, key, goes))
                del registered, way
                continue
            ways = [
                self._path(path, edge.held)
                for path in edge.paths
                if not _passes(path.objects, ends - {(id(path.objects[-1]), id(edge.held))})
            ] or [self._path(edge.paths[0], edge.held)]
            begun = _undo(ways)
            if begun is not None:
                steps.append(_undo_step(ways[0], begun))
                del ways, begun
                continue
            entry = _registered(ways)
            steps += self._steps_of(
                entry or _written(ways, target), target, is_entry=entry is not None
            )
            del ways, entry
        return in_order(steps)

    def _gradient_steps(self, held: HeldObject) -> list[NamedStep]:
        """Returns the steps that drop gradients whose graph holds the leaf itself.

        After `backward(create_graph=True)` leaf and gradient hold each other in native code, where
        the collector does not look.
        """
        steps: list[NamedStep] = []
        path = held.paths[0] if held.paths else None
        leaves = leaves_with_gradient_graph(held.object)
        if path is None or len(leaves) > _MOST_GRADIENTS:
            return steps
        for leaf, gradient in leaves:
            more = [gradient] if leaf is held.object else [leaf, gradient]
            steps += self._steps_of(self._path(path, *more), held.object)
        return steps

    def _steps_of(
        self, path: NamedPath, target: object, *, is_entry: bool = False
    ) -> list[NamedStep]:
        """Returns a step for each reference at the end of a path."""
        steps = []
        held = path.held()
        goes = "" if held is target else known_as(held)
        holder: Any = path.holder()
        if type(holder) is LruCache and (count := LruCache.cache_info(holder)[3]) > 1:
            goes = f"all {count:,} entries"
        last_references: list[Reference | None] = [*path.last_references(target)]
        for last in last_references or [None]:
            statement = path.statement(last)
            action = path.by_hand(last) if statement is None else printable(joined([statement]))
            step = Step(
                path=path.text(last),
                action=action,
                by_hand=statement is None,
                kind="reference" if last is None else last.kind,
                can_apply=(cutting := path.cutting(last)) is not None and cutting.can_cut,
            )
            name = "" if last is None else last.step
            # torch makes a new Python object of a gradient when it is asked for one.
            is_gradient = last is not None and last.kind == "gradient"
            key = ReferenceKey(id(path.holder()), name, 0 if is_gradient else id(held))
            # IPython has several of it, and moves them from cell to cell.
            if step.kind == OUTPUT:
                key = ReferenceKey(0, name, id(held))
            elif step.kind == FAILED_CELL:
                key, goes = ReferenceKey(0, name, 0), ""
            steps.append(NamedStep(step, key, statement, cutting, goes, is_entry, path.passed))
        return steps


def _has_tasks(container: Any) -> bool:
    """Returns whether code that its loop has to end is among the items of a container: tasks that have not ended, or
    generators."""
    items = dict.values(container) if is_a(container, dict) else container
    is_container = any(type(container) is kind for kind in _EMPTIED)
    return is_container and any(is_pending(one) or type(one) is AsyncGeneratorType for one in items)


def _is_inner(path: NamedPath) -> bool:
    """Returns whether the last object is what a part of Python or torch keeps for itself."""
    return (path.last_name() or "").startswith("_") and _is_library(path.holder())


def _is_library(holder: object) -> bool:
    """Returns whether an object is a part of Python or torch: what it has inside is not for others to empty."""
    name = full_type_name(type(holder))
    if is_a(holder, ModuleType):
        name = namespace_of(module_dict(holder)) or ""  # type: ignore[arg-type]
    package, dot, _ = name.partition(".")
    return bool(dot or is_a(holder, ModuleType)) and (
        package == "torch" or package in sys.stdlib_module_names and package != "__main__"
    )


def _queues() -> list[type]:
    """Returns the classes of queues that count their unfinished tasks."""
    found = [module_value("queue", "Queue"), module_value("asyncio.queues", "Queue")]
    return [one for one in found if one is not None]


def _step(
    path: str,
    reference: Reference,
    key: ReferenceKey,
    goes: str,
    holder: Code | None = None,
    is_entry: bool = False,
) -> NamedStep:
    """Returns the step that unregisters an object, by a reference from the interpreter to it; or one that changes the
    holder at this expression."""
    statement = fill(reference, holder, None)
    action = reference.why_not if statement is None else printable(joined([statement]))
    by_hand = statement is None
    step = Step(path, action, by_hand, kind=reference.kind, can_apply=reference.can_cut)
    return NamedStep(step, key, statement, reference, goes, is_entry)


def _undo_step(way: NamedPath, undo: rare.Undo) -> NamedStep:
    number = id(undo.function)
    key = ReferenceKey(number, undo.reference.kind, number)
    goes = undo.goes or known_as(undo.function)
    return _step(way.words(), undo.reference, key, goes, is_entry=True)


def _undo(ways: list[NamedPath]) -> rare.Undo | None:
    """Returns what unregisters the function that begins all ways to an object, or None."""
    found = [way.undo() for way in ways]
    first = found[0] if found else None
    if first is None or any(one is None or one.function is not first.function for one in found):
        return None
    return first


def _passes(objects: Sequence[object], ends: set[tuple[int, int]]) -> bool:
    """Returns whether a path leads over one of these references, given by the ids of their ends."""
    return bool(ends) and not ends.isdisjoint(pairwise(map(id, objects)))


def _registered(ways: list[NamedPath]) -> NamedPath | None:
    """Returns the path to the entry of a cache or queue that all ways to an object lead over."""
    if all(way.entry(FAILED_CELL) for way in ways):
        return ways[0].entry(FAILED_CELL)
    first = ways[0].entry()
    if first is None:
        return None
    entries = [first, *(way.entry() for way in ways[1:])]
    known = [entry for entry in entries if entry is not None and entry.statement() is not None]
    if len(known) == len(ways) and len({id(entry.holder()) for entry in known}) == 1:
        return known[0]
    return None


def _written(ways: list[NamedPath], target: object) -> NamedPath:
    """Returns the first way whose references are cut by statements, one that a person would write if there
    is one; else the first."""
    written = []
    for way in ways:
        statements = [way.statement(last) for last in way.last_references(target)]
        known = [one for one in statements if one is not None]
        if len(known) == len(statements):
            if all(is_readable(one.text) for one in known):
                return way
            written.append(way)
    return [*written, *ways][0]


def known_as(value: object) -> str:
    """Returns an object that goes with a cut, in a word or two; nothing for plain containers."""
    if is_a(value, FunctionType):
        return f"{printable(plain(FunctionType.__dict__['__name__'].__get__(value)))}()"
    if any(type(value) is kind for kind in _PLAIN):
        return ""
    return f"class {type_name(value)}" if is_a(value, type) else type_name(type(value))  # type: ignore[arg-type]


def in_order(steps: list[NamedStep]) -> list[NamedStep]:
    """Puts steps that delete elements last, those with high numbers first: deleting one moves those
    behind it. After them comes what empties more than the reference that it cuts, the outermost last: the
    way to another step may lead over the entries of a cache, or over a generator that is closed."""
    if len(steps) < 2:
        return steps
    passed = frozenset().union(*(one.over() - {one.key.holder_id} for one in steps))
    moving = [one for one in steps if one.step.kind in _MOVING]
    moving.sort(key=lambda one: _natural(one.step.path), reverse=True)
    others = [one for one in steps if one.step.kind not in _MOVING]
    # The deepest first, and in the same order whenever it is asked.
    others.sort(key=lambda one: _natural(one.step.path), reverse=True)
    emptying = [one for one in others if one.step.kind in _CLEARED or one.key.holder_id in passed]
    # IPython drops an output by the object, with the names that it has then.
    emptying.sort(key=lambda one: (one.step.kind == OUTPUT, -len(one.step.path)))
    return [one for one in others if one not in emptying] + moving + emptying


def _natural(text: str) -> list[tuple[int, str]]:
    """Returns a key that sorts numbers in a text by their size."""
    parts = re.split(r"([0-9]+)", text)
    return [(int(part), "") if at % 2 else (0, part) for at, part in enumerate(parts)]
