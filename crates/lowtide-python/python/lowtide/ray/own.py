"""What this process has on its devices, by the driver's numbers; and a release of it that is checked."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

from .._devices.choose import device_of
from .._native import AgentError, LedgerKind, agent_status, parse_bytes
from .._release.release import release

if TYPE_CHECKING:
    from .._native import Ledger

OWN = (
    LedgerKind.LIVE,
    LedgerKind.CACHED,
    LedgerKind.GRAPHS,
    LedgerKind.LIBRARIES,
    LedgerKind.CONTEXT,
    LedgerKind.CONTEXT_AND_LIBRARIES,
)


def own_bytes() -> int | None:
    """Returns the most memory that this process has on one device, or None if nobody can tell."""
    try:
        return max(map(_of, agent_status().ledgers), default=0)
    except AgentError:
        device = device_of(None)
    if device is not None:
        return device.own()
    # Without a driver in the process, nothing of it is on a device.
    with open("/proc/self/maps") as maps:
        return None if "libcuda.so" in maps.read() else 0


def settle(to: str | int) -> str:
    """Frees memory until this process has at most `to` on each device. Returns the verdict: `released` if the
    driver's number says so."""
    limit = parse_bytes(to)
    if device_of(None) is not None:
        return release(to=to, name=f"task in process {os.getpid()}").verdict
    found = own_bytes()
    if found is not None and found > limit:
        gc.collect()
        found = own_bytes()
    return "unverified" if found is None else "released" if found <= limit else "pinned"


def _of(ledger: Ledger) -> int:
    return sum(map(ledger.of, OWN))
