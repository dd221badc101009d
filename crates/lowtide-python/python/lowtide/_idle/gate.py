"""Pause, update, resume: weights change while nothing runs, and reserved memory stays flat.

Work passes a gate. A pause closes it, in one of three ways. Cached memory returns to the driver
while the gate is still closed, so that nothing races with the trim. The trend over many resumes is
watched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .._native import Pauses, parse_seconds
from .._release.releasers import releaser_of
from .._runtime import has_exit_begun
from .._runtime.log import log_release, logger, numbers

if TYPE_CHECKING:
    from typing_extensions import Self

    from .._native import Pass, Receipt, Trend


class Gate:
    """A gate that work passes and that a pause or a release closes. All gates of a device are one.

    In a worker: `with gate.enter() as work:` and, where it can stop, `work.checkpoint()`, which
    returns "go", "abort" or "retract". If the pause is in place, the call waits until the gate
    opens.
    """

    def __init__(self, device: object = None, *, flush: Callable[[], object] | None = None) -> None:
        """Creates a gate. A pause that aborts or retracts work calls `flush` to empty its keys and
        values."""
        self._releaser = releaser_of(device)
        self._gate = self._releaser.gate()
        self._pauses = Pauses(self._releaser, flush)

    def enter(self, within: Pass | None = None) -> Pass:
        """Begins work; waits while the gate is closed. Leave it with `with`, or `leave()`.

        `within` is the pass of work that this work is a part of: then it does not wait.
        """
        return self._gate.enter(within)

    def pause(self, mode: str = "in_place", limit: float | str = 30.0) -> Receipt | None:
        """Stops the work: "abort" (it ends), "retract" (it returns to its queue) or "in_place" (it
        stops at its next checkpoint). The first two flush and trim at once and return a receipt.

        Raises `lowtide.Busy` if work continues past the limit; nothing is stopped then.
        """
        if has_exit_begun():
            return None
        receipt = self._pauses.pause(mode, parse_seconds(limit))
        return None if receipt is None else log_release(receipt, receipt.reserved_line())

    def resume(
        self,
        empty_cache: bool = True,
        *,
        collect: bool = True,
        torch_empty_cache: bool | None = None,
    ) -> Receipt | None:
        """Returns cached memory to the driver, unless told not to, then opens the gate.

        `collect` runs the garbage collector before, which takes long in a large heap.
        `torch_empty_cache` is another name of `empty_cache` and overrides it.
        """
        if torch_empty_cache is not None:
            empty_cache = torch_empty_cache
        resumed = None if has_exit_begun() else self._pauses.resume(empty_cache, collect)
        if resumed is None:
            return None
        receipt, warning = resumed.receipt, resumed.warning
        if receipt is not None:
            logger().info("%s", receipt.reserved_line(), extra=numbers(receipt))
        if warning is not None:
            advice = "lowtide.why() names the holders"
            more = {"lowtide_per_update_bytes": warning.per_update_bytes}
            logger().warning("%s; %s", warning, advice, extra=more)
        return receipt

    def paused(
        self,
        mode: str = "in_place",
        limit: float | str = 30.0,
        *,
        empty_cache: bool = True,
        collect: bool = True,
    ) -> Pause:
        """Returns a pause for a `with` block: `with gate.paused("abort"): update()`. It always
        resumes."""
        return Pause(self, mode, limit, empty_cache, collect)

    def trend(self) -> Trend:
        """Returns how reserved memory has changed over the resumes so far."""
        return self._pauses.trend()

    @property
    def open(self) -> bool:
        """Whether work may pass."""
        return self._gate.state().open

    @property
    def active(self) -> int:
        """How many passes are in use."""
        return self._gate.state().active


class Pause:
    """A pause that lasts as long as its `with` block. `receipt` is what the pause itself has freed."""

    def __init__(
        self, gate: Gate, mode: str, limit: float | str, empty_cache: bool, collect: bool
    ) -> None:
        self._gate, self._mode, self._limit = gate, mode, limit
        self._empty_cache, self._collect = empty_cache, collect
        self.receipt: Receipt | None = None

    def __enter__(self) -> Self:
        self.receipt = self._gate.pause(self._mode, self._limit)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._gate.resume(self._empty_cache, collect=self._collect)
