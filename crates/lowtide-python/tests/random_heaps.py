"""Random heaps, and the walk held against a naive oracle on each of them. `test_walk_random.py` runs it as a
program.

Nothing here imports torch: a question among its objects takes ten times as long, and these are many.

    python random_heaps.py 3 4      # the heaps of these seeds
"""

from __future__ import annotations

import functools
import gc
import json
import random
import sys
import traceback
import types
import weakref
from collections import OrderedDict, deque
from typing import Any

import lowtide
from lowtide._runtime.heap import Interpreter

shelf: dict[str, Any] = {}


class Plain:
    pass


class Slotted:
    __slots__ = ("__weakref__", "a", "b")


class Target:
    """What is looked for."""


def suspended(*held: object) -> Any:
    mine = held
    yield mine


def remembered(held: object) -> Any:
    return lambda: held


class Heap:
    """Objects of many kinds that refer to each other at random; some hang on the shelf."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.objects: list[Any] = [Plain()]
        for _ in range(self.dice.randrange(3, 60)):
            self.objects.append(self.make())
        for _ in range(self.dice.randrange(0, 80)):
            self.link(self.any(), self.any())

    def any(self) -> Any:
        return self.dice.choice(self.objects)

    def make(self) -> Any:
        """An object that refers to some that are there."""
        kind = self.dice.randrange(14)
        one, other = self.any(), self.any()
        if kind == 0:
            return [one, other]
        if kind == 1:
            return {"k": one, 2: other}
        if kind == 2:
            return (one, other)
        if kind == 3:
            return deque([one])
        if kind == 4:
            return OrderedDict(first=one, second=other)
        if kind == 5:
            slotted = Slotted()
            slotted.a = one
            return slotted
        if kind == 6:
            return remembered(one)
        if kind == 7:
            generator = suspended(one, other)
            next(generator)
            return generator
        if kind == 8:
            return functools.partial(print, one, key=other)
        if kind == 9:
            return ValueError(one)
        if kind == 10:
            function = eval("lambda a: a")
            function.__defaults__ = (one,)
            return function
        if kind == 11:
            made = types.SimpleNamespace(one=one, other=other)
            return made
        plain = Plain()
        plain.one = one  # type: ignore[attr-defined]
        return plain

    def link(self, holder: Any, held: Any) -> None:
        if type(holder) is list:
            holder.append(held)
        elif type(holder) in (dict, OrderedDict):
            holder[f"k{self.dice.randrange(6)}"] = held
        elif type(holder) is Plain:
            setattr(holder, f"a{self.dice.randrange(6)}", held)
        elif type(holder) is Slotted:
            holder.b = held


def reaches(start: object, target: object) -> bool:
    """The oracle: whether one leads to the other, by what the collector says of each object."""
    seen, todo = {id(start)}, [start]
    while todo:
        for one in gc.get_referents(todo.pop()):
            if one is target:
                return True
            if id(one) not in seen and type(one) not in (type, types.ModuleType):
                seen.add(id(one))
                todo.append(one)
    return False


def evaluates(path: str, target: object) -> bool | None:
    """Whether a path is the target; None where it is no expression of this module."""
    name, _, rest = path.partition("shelf")
    if name.rstrip(".") not in ("", "__main__") or not rest:
        return None
    try:
        return eval(f"shelf{rest}") is target
    except (SyntaxError, NameError):
        return None  # Words, for what no expression reaches.


def check_heap(number: int) -> None:
    """Makes the heap of that seed and asks about one of its objects, with a number of threads."""
    Interpreter.threads = number % 4
    gc.collect(1)
    gc.disable()  # So what is made here stays young, and is collected without all the rest.
    try:
        heap = Heap(number)
        target = Target()
        for _ in range(heap.dice.randrange(1, 4)):
            heap.link(heap.any(), target)
        plain = Plain()
        plain.target = target  # type: ignore[attr-defined]
        if heap.dice.random() < 0.5:
            heap.objects.append(plain)
        for name in range(heap.dice.randrange(1, 5)):
            shelf[f"root{name}"] = heap.any()
        gone = weakref.ref(target)
        del heap, plain, target
        check(gone)
    finally:
        shelf.clear()
        gc.enable()
        gc.collect(1)


def check(gone: weakref.ref[Any]) -> None:
    held = gone() is not None and reaches(shelf, gone())
    if gone() is None:
        return
    answer = lowtide.why(gone())
    (holder,) = answer.held
    if not held:
        assert not holder.cuts, holder
        gc.collect(0)
        assert gone() is None
        return
    assert holder.paths
    evaluated = [evaluates(path, gone()) for path in holder.paths]
    assert False not in evaluated, holder.paths
    assert holder.cuts or holder.why_no_cut
    if not holder.cuts or not holder.cuts[0].can_apply:
        return
    before = set(shelf)
    holder.cuts[0].apply()
    gc.collect(0)
    assert gone() is None, (str(answer), lowtide.why(gone()).held[0].paths)
    assert set(shelf) <= before


def main(seeds: list[str]) -> None:
    """Prints, for each seed, what went wrong, or nothing."""
    for seed in seeds:
        problem = ""
        try:
            check_heap(int(seed))
        except Exception:  # noqa: BLE001 (it is told, and the others are tried)
            problem = traceback.format_exc()
        print(json.dumps([int(seed), problem]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
