"""Pause, update, resume: weights change while nothing runs, and reserved memory stays flat.

Work passes a gate; a pause closes it, in one of three ways. What is cached goes back to the driver
while it is still closed, so that the trim races with nothing. The slope over many resumes is watched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from . import _native
from ._log import logger, numbers, say
from ._release import releaser_of

if TYPE_CHECKING:
    from types import TracebackType

    from ._native import Pass, Receipt

_WINDOW = 32
"""One warning for so many updates is enough."""


class Trend(NamedTuple):
    """Where reserved memory is heading over the resumes."""

    per_update_bytes: int
    samples: int
    rising: bool


class Gate:
    """Work passes through it; a pause or a release closes it. All gates of a device are one.

    In a worker: `with gate.enter() as work:` and, where it can stop, `work.checkpoint()`, which says
    "go", "abort" or "retract", and waits in place where that is how it was paused.
    """

    def __init__(self, device: object = None, *, flush: Callable[[], object] | None = None) -> None:
        """`flush` empties the keys and values of running work; it is called where a pause ends or
        retracts that work, never where it stops in place."""
        self._releaser = releaser_of(device)
        self._gate = self._releaser.gate()
        self._pauses = _native.Pauses(self._releaser, flush)
        self._silent = 0

    def enter(self) -> Pass:
        """Begins work; waits while the gate is closed. Leave it with `with`, or `leave()`."""
        return self._gate.enter()

    def pause(self, mode: str = "in_place", limit: float | str = 30.0) -> Receipt | None:
        """Stops the work: "abort" (it ends), "retract" (it goes back to its queue) or "in_place" (it
        stops where it is, at its next checkpoint). The first two flush and trim at once.

        Raises `lowtide.Busy` where work went on past the limit; nothing is stopped then.
        """
        receipt = self._pauses.pause(mode, _native.parse_seconds(limit))
        return None if receipt is None else say(receipt, receipt.reserved_line())

    def resume(self, empty_cache: bool = True) -> Receipt | None:
        """Gives cached memory back, unless told not to, then opens the gate."""
        receipt = self._pauses.resume(empty_cache)
        if receipt is not None:
            logger().info("%s", receipt.reserved_line(), extra=numbers(receipt))
        self._watch()
        return receipt

    def paused(
        self, mode: str = "in_place", limit: float | str = 30.0, *, empty_cache: bool = True
    ) -> Pause:
        """A pause as a block: `with gate.paused("abort"): update()`. It resumes whatever happens."""
        return Pause(self, mode, limit, empty_cache)

    def trend(self) -> Trend:
        """How reserved memory has gone over the resumes so far."""
        return Trend(*self._pauses.trend())

    @property
    def open(self) -> bool:
        """Whether work may pass."""
        return self._gate.state()[0]

    @property
    def active(self) -> int:
        """How many are at work."""
        return self._gate.state()[1]

    def _watch(self) -> None:
        self._silent = max(0, self._silent - 1)
        trend = self.trend()
        if trend.rising and self._silent == 0:
            self._silent = _WINDOW
            logger().warning(
                "reserved memory grows by %.1f MiB with every update (%d looked at): something keeps"
                " what earlier updates loaded, or they are resumed without emptying the cache;"
                " lowtide.why() names who holds it",
                trend.per_update_bytes / (1 << 20),
                trend.samples,
                extra={"lowtide_per_update_bytes": trend.per_update_bytes},
            )


class Pause:
    """A pause that lasts as long as its `with` block. `receipt` is what the pause itself gave back."""

    def __init__(self, gate: Gate, mode: str, limit: float | str, empty_cache: bool) -> None:
        self._gate, self._mode, self._limit, self._empty_cache = gate, mode, limit, empty_cache
        self.receipt: Receipt | None = None

    def __enter__(self) -> Pause:
        self.receipt = self._gate.pause(self._mode, self._limit)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._gate.resume(self._empty_cache)
