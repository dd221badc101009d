"""Tests that hold a block of code to its word: what it took from the device is back when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._release import CACHE, releaser_of

if TYPE_CHECKING:
    from types import TracebackType

    from ._native import Receipt

LEAST_BYTES = 2 << 20
"""Below a device's page nothing is held against anybody."""


class assert_released:
    """`with lowtide.assert_released():` fails where device memory after the block is more than before
    by over `within` (a share of what was in use, and a device's page at least). It says who holds it.

    Where there is no device there is nothing to hold the block to. After the block, `receipt` tells
    what was measured.
    """

    def __init__(self, within: float = 0.01, device: object = None) -> None:
        if within < 0:
            raise ValueError(f"within is a share of what was in use, and not negative: {within}")
        self._within = within
        self._device = device
        self._before: int | None = None
        self.receipt: Receipt | None = None

    def __enter__(self) -> assert_released:
        self._before = self._measure()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception is not None:
            return  # The block has failed already, and its frames may hold anything.
        after = self._measure()
        before = self._before
        if before is None or after is None:
            return
        allowed = max(int(before * self._within), LEAST_BYTES)
        if after - before > allowed:
            raise AssertionError(self._words(before, after, allowed))

    def _measure(self) -> int | None:
        self.receipt = releaser_of(self._device).release("assert_released", CACHE)
        return self.receipt.after.in_use_bytes

    def _words(self, before: int, after: int, allowed: int) -> str:
        from ._why import why

        mib = 1 << 20
        text = (
            f"{(after - before) / mib:.1f} MiB of device memory are still in use after the block"
            f" ({before / mib:.1f} MiB before, {after / mib:.1f} MiB after;"
            f" {allowed / mib:.1f} MiB would be allowed)"
        )
        try:
            return f"{text}\n{why(device=self._device)}"
        except Exception as failure:
            return f"{text}\n(who holds it could not be found: {type(failure).__name__}: {failure})"
