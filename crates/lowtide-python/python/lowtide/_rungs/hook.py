"""What Python plugs into the native ladder: hooks and settings.

The native ladder decides the order, enforces the time limits and isolates errors. A hook says why
it does not apply, how many bytes it expects to free, and what it touched. It runs no code of the
program that it does not have to run, and it may always be run twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from .._native import HookPoint, Touch

T = TypeVar("T")


class Hook:
    """One part of a rung. `point` is the rung that runs it, `limit_s` its time limit."""

    point: HookPoint
    name: str = ""
    limit_s: float = 20.0
    costly: bool = False
    """Whether the program has to do costly work again afterwards. It is not run between tasks."""
    restores: bool = False
    """Whether `restore` brings back what `run` took off the device."""
    disposable: bool = False
    """Whether what it ends is disposable, such as a worker process."""

    def missing(self) -> str | None:
        """Returns why the hook does not apply; the receipt then lists it as skipped."""
        return None

    def expect(self) -> int | None:
        """Returns how many bytes it expects to free, or `None` if it cannot know."""
        return None

    def finds_nothing(self) -> bool | None:
        """Returns whether a full run would find nothing, or `None` if only a run can tell."""
        return None

    def run(self, round: int) -> list[Touch]:
        """Runs it and returns what it touched. `round` counts repetitions of its rung, from 0."""
        raise NotImplementedError

    def run_round(self, round: int, is_full: bool) -> list[Touch]:
        """Runs it. A collector looks only at young objects unless `is_full`."""
        return self.run(round)

    def restore(self) -> list[Touch]:
        """Brings back what `run` took off the device, before the next task begins."""
        return []

    def __repr__(self) -> str:
        return f"Hook({self.point}: {self.name})"


class Setting:
    """A setting that a rung lowers for a moment and always restores."""

    name: str = ""

    def lower(self) -> Callable[[], None]:
        """Lowers it and returns a function that restores it."""
        raise NotImplementedError

    def reset_statistics(self) -> None:
        """Resets the statistics that belong to it, while it is lowered."""


class PartlyDone(RuntimeError):
    """Raised by a hook when it failed for some of its objects and ran for the others."""

    def __init__(self, failures: list[str], touched: list[Touch]) -> None:
        text = "; ".join(failures)
        if touched:
            text += f" (done: {', '.join(touch.what for touch in touched)})"
        super().__init__(text)
        self.failures = failures
        self.touched = touched


def each(
    entries: Iterable[T], name_of: Callable[[T], str], run: Callable[[T], Touch | None]
) -> list[Touch]:
    """Runs a part of a hook for each of some objects. Returns what was touched. One failure does not stop
    the others: `PartlyDone` is raised at the end."""
    touched: list[Touch] = []
    failures: list[str] = []
    for one in entries:
        try:
            touch = run(one)
        except Exception as failure:  # noqa: BLE001
            failures.append(f"{name_of(one)}: {type(failure).__name__}: {failure}")
        else:
            touched += [] if touch is None else [touch]
    if failures:
        raise PartlyDone(failures, touched)
    return touched
