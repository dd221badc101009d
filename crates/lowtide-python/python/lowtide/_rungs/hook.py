"""What a rung of Python is: one thing that the native ladder calls at its place.

The order, the time limits and the isolation of errors are the ladder's. A hook says why it does not
apply, what it expects to give back, and what it touched. It runs no code of the user's that it need
not, and it is always right to run it twice.
"""

from __future__ import annotations

from collections.abc import Callable

Touched = list[tuple[str, int | None]]
"""What a hook touched, with bytes where they are known. Empty: it touched nothing."""


class Hook:
    """`place`: "to_host", "sessions", "caches", "collect", "libraries" or "fallback"."""

    place: str = ""
    name: str = ""
    limit_s: float = 20.0

    def missing(self) -> str | None:
        """Why it does not apply here: then it is skipped, by name."""
        return None

    def expect(self) -> int | None:
        """How many bytes it expects to give back; `None` where it cannot know."""
        return None

    def run(self, round: int) -> Touched:
        """Does it. `round` counts from 0 where the ladder repeats its rung."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"Hook({self.place}: {self.name})"


class Setting:
    """Something that is lowered for a moment and always comes back."""

    name: str = ""

    def lower(self) -> Callable[[], None]:
        """Lowers it; what is returned puts it back."""
        raise NotImplementedError

    def reset_statistics(self) -> None:
        """Resets the statistics that go with it, while it is lowered."""


class PartlyDone(RuntimeError):
    """Some of a hook's subjects failed; the others were done all the same."""

    def __init__(self, failures: list[str], touched: Touched) -> None:
        text = "; ".join(failures)
        if touched:
            text += f" (done: {', '.join(what for what, _ in touched)})"
        super().__init__(text)
        self.failures = failures
        self.touched = touched


def done(touched: Touched, failures: list[str]) -> Touched:
    """What was touched, or an error that names what failed and what was touched all the same."""
    if failures:
        raise PartlyDone(failures, touched)
    return touched
