"""The cuts of the last answers and receipts of each thread, by their numbers: `lowtide.cut(2)`.

What is remembered are texts and ids, nothing of the program; and each thread has its own. A child of a
fork begins with nothing, since it has asked nothing yet.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._runtime.data import Data, mib
from .._runtime.guest import IS_GUEST

if TYPE_CHECKING:
    from .answer import Cut

_MOST_PLANS = 4
_NEARLY = 0.95
"""A cut of a later object is no part of a plan if the others free this part of what it frees."""


@dataclass(slots=True, repr=False, eq=False)
class Plan(Data):
    """The numbered cuts of an answer or a receipt.

    `all` is the smallest set of them that frees what all of them free, `bytes` how much that is.
    """

    cuts: tuple[Cut, ...] = ()
    all: tuple[int, ...] = ()
    bytes: int = 0
    name: str = ""
    _apply: Callable[[Sequence[Cut]], int] | None = None

    def line(self) -> str:
        """Returns what frees most, as one sentence."""
        verb = "frees" if len(self.all) == 1 else "free"
        return f"{cuts_text(self.all)} {verb} {mib(self.bytes)}: lowtide.cut('all')"

    def __str__(self) -> str:
        lines = [cut.line() for cut in self.cuts]
        return "\n".join([f"{self.name}: {self.line()}" if self.all else "no cuts", *lines])

    __repr__ = __str__


@dataclass(slots=True, repr=False, eq=False)
class Freed(Data):
    """What some cuts have freed."""

    cuts: tuple[int, ...]
    bytes: int

    def __str__(self) -> str:
        return f"{cuts_text(self.cuts)} freed {mib(self.bytes)}"

    __repr__ = __str__


def cuts_text(numbers: Sequence[int]) -> str:
    """Returns `cuts 1, 3 and 4`."""
    *first, last = map(str, numbers)
    return f"cuts {', '.join(first)} and {last}" if first else f"cut {last}"


def smallest(frees: dict[int, frozenset[int]], sizes: dict[int, int]) -> tuple[int, ...]:
    """Returns the cuts without which less would be freed, of some given by the pieces that they free; without those of
    the last objects that alone free next to nothing."""
    kept = dict(frees)

    def size(pieces: Iterable[int]) -> int:
        return sum(sizes[piece] for piece in pieces)

    for is_nearly, order in (
        (_NEARLY, sorted(frees, reverse=True)),
        (1.0, sorted(frees, key=lambda number: len(frees[number]))),
    ):
        for number in order:
            others = frozenset().union(*(one for at, one in kept.items() if at != number))
            own = kept.get(number, frozenset())
            if size(own & others) >= is_nearly * size(own):
                kept.pop(number, None)
    return tuple(sorted(kept))


class Plans:
    """What a thread remembers, the newest last."""

    def __init__(self) -> None:
        self.known: deque[Plan] = deque(maxlen=_MOST_PLANS)
        self._count = 0

    def remember(self, plan: Plan) -> None:
        """Has `cut` mean this plan from now on."""
        if not plan.cuts:
            return
        if not plan.name:
            self._count += 1
            plan.name = f"k{self._count}"
        if any(one is plan for one in self.known):
            self.known.remove(plan)
        self.known.append(plan)


_LOCAL = threading.local()
if hasattr(os, "register_at_fork") and not IS_GUEST:
    os.register_at_fork(after_in_child=_LOCAL.__dict__.clear)


def plans() -> Plans:
    """Returns what this thread remembers. A release asks for holders in another thread."""
    return _LOCAL.__dict__.setdefault("plans", Plans())  # type: ignore[no-any-return]


def cut(*which: int | str, of: str | None = None) -> Plan | Freed:
    """Applies cuts of the last answer or receipt that this thread asked for or displayed, by number.

    `cut("all")` applies those that free everything that can be freed. `cut()` cuts nothing and returns
    the plan. `of` is the name of an earlier answer, which each prints when there are several.

    >>> lowtide.cut(1, 3)                    # doctest: +SKIP
    cuts 1 and 3 freed 848.0 MiB

    Every reference is found again before the first is cut. If one has changed, LookupError says which
    and nothing is cut; if one cannot be cut from here, TypeError says what to do.
    """
    known = list(plans().known)
    found = [plan for plan in known if of in (None, plan.name)]
    if not found:
        names = ", ".join(plan.name for plan in known)
        has = f"this thread has {names}" if names else "ask with lowtide.why() in this thread"
        raise LookupError(f"no answer with cuts{'' if of is None else f' is called {of!r}'}: {has}")
    plan = found[-1]
    if not which:
        return plan
    numbers = plan.all if which == ("all",) else tuple(dict.fromkeys(which))
    cuts = {one.number: one for one in plan.cuts if one.number is not None}
    unknown = [number for number in numbers if number not in cuts]
    if unknown:
        raise LookupError(f"{plan.name} has {cuts_text(list(cuts))}, not {unknown[0]!r}")
    chosen = {number: cuts[number] for number in numbers if isinstance(number, int)}
    freed = 0 if plan._apply is None else plan._apply(list(chosen.values()))
    return Freed(tuple(chosen), freed)
