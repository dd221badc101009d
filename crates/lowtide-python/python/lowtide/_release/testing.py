"""`assert_released`: fails if a block of code leaves device memory in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._native import Ladder
from .releasers import releaser_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from .._native import Receipt

LEAST_BYTES = 2 << 20
"""Differences of less than one page of a device are ignored."""

NOT_MEASURED = (
    "no device reports what is in use, so that nothing can be asserted: name one with device= or the"
    " environment variable LOWTIDE_DEVICE ('cpu' is host memory)"
)


class assert_released:
    """`with lowtide.assert_released():` fails if more device memory is in use after the block than
    before.

    `within` is the tolerance, as a share of what was in use; it is one page of the device at least.
    The error names the holders. Without a device it fails, too: nothing can be asserted then.
    Afterwards `receipt` has the numbers.
    """

    def __init__(self, within: float = 0.01, device: object = None) -> None:
        if within < 0:
            raise ValueError(f"within must not be negative: {within}")
        self._within = within
        self._device = device
        self._before: int | None = None
        self.receipt: Receipt | None = None

    def __enter__(self) -> Self:
        self._before = self._measure()
        return self

    def __exit__(self, kind: object, exception: BaseException | None, traceback: object) -> None:
        __tracebackhide__ = True
        if exception is not None:
            return  # The block has failed already, and its frames may hold memory.
        after = self._measure()
        before = self._before
        if before is None or after is None:
            raise AssertionError(NOT_MEASURED)
        allowed = max(int(before * self._within), LEAST_BYTES)
        if after - before > allowed:
            raise AssertionError(self._words(before, after, allowed))

    def _measure(self) -> int | None:
        self.receipt = releaser_of(self._device).release("assert_released", Ladder.CACHE)
        return self.receipt.after.in_use_bytes

    def _words(self, before: int, after: int, allowed: int) -> str:
        from .._why.why import why

        mib = 1 << 20
        text = (
            f"{(after - before) / mib:.1f} MiB of device memory are still in use after the block"
            f" ({before / mib:.1f} MiB before, {after / mib:.1f} MiB after,"
            f" {allowed / mib:.1f} MiB allowed)"
        )
        try:
            return f"{text}\n{why(device=self._device)}"
        except Exception as failure:  # noqa: BLE001 - the test fails either way.
            return f"{text}\n(the holders could not be found: {type(failure).__name__}: {failure})"
