"""The walk held against a naive oracle on random heaps, and asked while other threads are busy.

Seeds are printed: LOWTIDE_SEED=… runs one of them again, LOWTIDE_FUZZ_S=… runs for longer.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import threading
import time
import types
import weakref
from collections import OrderedDict, deque
from typing import Any

import lowtide
import pytest
import torch
from lowtide._why.question import _Interpreter

SEED = int(os.environ.get("LOWTIDE_SEED", "0"))
LONG = os.environ.get("LOWTIDE_LONG") == "1"
SECONDS = float(os.environ.get("LOWTIDE_FUZZ_S", "20" if LONG else "4"))
HEAPS = 25

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
    if name.rstrip(".") not in ("", __name__) or not rest:
        return None
    try:
        return eval(f"shelf{rest}") is target
    except (SyntaxError, NameError):
        return None  # Words, for what no expression reaches.


@pytest.mark.parametrize(
    "number", range(SEED, SEED + (1 if "LOWTIDE_SEED" in os.environ else HEAPS))
)
def test_random_heaps(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"LOWTIDE_SEED={number}")
    monkeypatch.setattr(_Interpreter, "threads", number % 4)
    gc.collect(1)
    gc.disable()  # So what is made here stays young, and is collected without all of torch.
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


def busy(stop: threading.Event, dice: random.Random) -> None:
    """Makes and drops whatever a walk may meet."""

    def fails(depth: int, held: object) -> None:
        if depth == 0:
            raise ValueError(held)
        fails(depth - 1, held)

    kept: list[Any] = []
    while not stop.is_set():
        tensor = torch.ones(dice.randrange(1, 64), requires_grad=dice.random() < 0.3)
        cycle: list[Any] = [tensor, {"view": tensor[:1]}]
        cycle.append(cycle)
        generator = suspended(tensor, cycle)
        next(generator)
        made = type("Made", (Plain,), {"__slots__": ("x",)} if dice.random() < 0.5 else {})()
        made.one = generator
        try:
            fails(dice.randrange(4), tensor)
        except ValueError as error:
            kept.append(error if dice.random() < 0.5 else made)
        with_closure = remembered((tensor * 2).sum())
        kept.append(with_closure)
        if dice.random() < 0.05:
            snapshot = locals()
            kept.append(len(snapshot))
        if len(kept) > 50:
            del kept[: dice.randrange(50)]
        if dice.random() < 0.02:
            other = threading.Thread(target=next, args=(iter([tensor]),))
            other.start()
        if dice.random() < 0.01:
            gc.collect(dice.randrange(3))


def test_asked_while_others_are_busy() -> None:
    seed = SEED or random.randrange(1 << 30)
    print(f"LOWTIDE_SEED={seed}")
    shelf["held"] = Target()
    stop = threading.Event()
    failed: list[BaseException] = []
    asked: list[int] = []

    def ask(about_target: bool) -> None:
        try:
            while not stop.is_set():
                if about_target:
                    paths = lowtide.why(shelf["held"]).held[0].paths
                    assert any(path.endswith("shelf['held']") for path in paths), paths
                else:
                    str(lowtide.why(device="cpu"))
                asked.append(1)
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    workers = [
        threading.Thread(target=busy, args=(stop, random.Random(seed + at))) for at in range(2)
    ]
    workers += [threading.Thread(target=ask, args=(about,)) for about in (True, False)]
    for worker in workers:
        worker.start()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and not failed:
        time.sleep(0.05)
    stop.set()
    for worker in workers:
        worker.join()
    shelf.clear()
    assert not failed, failed
    assert asked
