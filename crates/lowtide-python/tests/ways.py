"""Ways in which an object is kept alive, and what the walk tells of them however it is done.

Nothing here imports torch: a question among its objects takes ten times as long, and these ask many.
"""

from __future__ import annotations

import collections
import functools
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

from lowtide import _native
from lowtide._runtime.heap import Interpreter, frozen_count
from lowtide._why.question import Question


class Runner:
    """A class of which nobody else has objects."""


shelf: dict[str, Any] = {}
"""What is kept, and what else there is."""


class Quiet(Question):
    """Asks with a probe that imports nothing."""

    def __init__(self, targets: list[object] | None = None) -> None:
        super().__init__(targets, most=3)
        self.probe = lambda objects: [None] * len(objects)
        self.autograd = lambda tensors: []


def kept_in_many_ways(target: object) -> list[Any]:
    """Objects of every type that any thread asks, and of others, which lead to the target."""

    class Based(dict):  # type: ignore[type-arg]
        pass

    class Slotted:
        __slots__ = ("kept",)

    class Sequence(collections.UserList):  # type: ignore[type-arg]
        @property
        def first(self) -> object:
            return target

        @staticmethod
        def second(kept: object = target) -> object:
            return kept

    class Refused(Exception):
        pass

    def closure() -> object:
        return target

    def suspended() -> Any:
        kept = target
        yield
        del kept

    slotted, waiting = Slotted(), suspended()
    slotted.kept = target
    next(waiting)
    module = types.ModuleType("made")
    module.kept = target  # type: ignore[attr-defined]
    made: list[Any] = [Based(kept=target), slotted, Sequence([target]), closure, waiting, module]
    made += [
        (1, (2, ("three", {"four": 5.0}))),
        {"a": 1, "b": (None, "c")},
        {target},
        frozenset([target]),
    ]
    made += [
        collections.deque([target]),
        collections.OrderedDict(kept=target),
        made[2].append,
        made.append,
    ]
    made += [
        weakref.ref(closure, lambda _: print(target)),
        functools.partial(print, target),
        Refused(target),
    ]
    made += [memoryview(bytearray(8)), iter([target]), types.SimpleNamespace(kept=target)]
    made.append([tuple(made), dict(enumerate(made))])
    return made


def told(found: Any) -> str:
    """What is told of an object, with addresses instead of objects. Text: nothing else is kept."""

    def path(one: Any) -> Any:
        return [one.root, one.thread, one.hidden, one.frozen, *map(id, one.objects)]

    def cut(one: Any) -> Any:
        edges = [(id(edge.held), [path(way) for way in edge.paths]) for edge in one.edges]
        return [edges, one.freed.objects, one.beside.objects, one.hidden, one.collects]

    (held,) = found.held
    paths = [path(one) for one in held.paths]
    cuts = [cut(one) for one in held.cuts]
    assert held.reached
    frozen = [found.frozen_objects, found.frozen_listed, held.frozen]
    return repr([found.objects, held.hidden, frozen, paths, cuts, held.why_no_cut])


def check_any_number_of_threads(others: int, step: int) -> None:
    """Every way but the last is removed, so many at a time. The answers of any number of threads agree."""
    target, before = Runner(), Interpreter.threads
    shelf["kept"] = made = kept_in_many_ways(target)
    shelf["others"] = [[(number, str(number)), {"next": number}] for number in range(others)]
    del shelf["others"][::7]
    Interpreter.threads = 0  # It keeps an object for each of its calls.
    gc.collect()
    gc.disable()
    try:
        while len(made) > 2:
            answers = []
            for threads in [1, 1, 2, 5]:
                Interpreter.threads = threads
                answers.append(told(_native.examine(Quiet([target]))))
            # The first question makes some objects that stay.
            assert answers[1] == answers[2] == answers[3]
            del made[:step]
    finally:
        gc.enable()
        Interpreter.threads = before
        shelf.clear()


def check_lists_in_place() -> None:
    """The answers are those of `gc.get_objects`, whatever the generations have and whether objects are frozen."""
    target, before = Runner(), Interpreter.knows_generations
    shelf["kept"] = kept_in_many_ways(target)
    thresholds = gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        for meanwhile in (int, gc.collect, lambda: gc.collect(0), lambda: gc.collect(1), gc.freeze):
            meanwhile()
            for changed in (thresholds, (0, 0, 0), (1_000_000, 3, 0)):
                gc.set_threshold(*changed)
                answers = []
                for in_place in (True, False, True, False):
                    Interpreter.knows_generations = in_place
                    answers.append(told(_native.examine(Quiet([target]))))
                # The first question of a kind makes some objects that stay.
                assert answers[2] == answers[3]
    finally:
        Interpreter.knows_generations = before
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        gc.enable()
        shelf.clear()


def check_frozen_objects() -> None:
    """Those that nothing reaches are found where they are read in place and where they are looked for. If they are
    looked for, and the collector reports another number of them, the answer says that they could not be listed."""
    target, before = Runner(), Interpreter.knows_generations
    shelf["kept"] = [target]
    dead = Runner()
    dead.me, dead.held = dead, Runner()  # type: ignore[attr-defined]
    last = weakref.ref(dead.held)  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    try:
        del dead
        for in_place in {before, False}:
            Interpreter.knows_generations = in_place
            number = frozen_count()
            assert _frozen(lambda: target, 0) == (True, number, True, True), "over the shelf"
            assert _frozen(last, 0) == (True, number, False, True), "by a cycle"
            assert _native.listed_memory(Quiet()) == (0 if in_place else None)
            for by in () if in_place else (-1, 1):
                number = gc.get_freeze_count() + by
                assert _frozen(lambda: target, by) == (False, number, True, True)
                assert _native.listed_memory(_miscounted(None, by)) is None
    finally:
        Interpreter.knows_generations = before
        gc.unfreeze()
        shelf.clear()


def _frozen(target: Callable[[], object], miscounted_by: int) -> tuple[bool, int, bool, bool]:
    """Whether all frozen objects were listed, how many there are, and whether a root reaches the target and it
    is frozen. Nothing of the answer is kept: it would hold the target."""
    found = _native.examine(_miscounted([target()], miscounted_by))
    (held,) = found.held
    assert all(path.frozen for path in held.paths if path.root == "modules")
    return found.frozen_listed, found.frozen_objects, held.reached, held.frozen


def _miscounted(targets: list[object] | None, by: int) -> Quiet:
    """A question to which the collector reports so many frozen objects more than there are."""
    question = Quiet(targets)
    if by:
        count = functools.partial(int, gc.get_freeze_count() + by)
        question.interpreter = type(  # type: ignore[assignment]
            "Miscounting", (question.interpreter,), {"get_freeze_count": count}
        )
    return question
