"""`audit`: what a shutdown would do, without doing it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from reprlib import repr as short

from .._native import Holder
from .._runtime.data import Data, counted, holds_nothing, mib
from .._why.why import holders
from .plan import alive, plan


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
