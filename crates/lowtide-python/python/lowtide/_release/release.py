"""Releases: memory returns to the driver, and a receipt proves how much by the driver's numbers.

`release` climbs a ladder of rungs, gentle ones first. `shutdown` drops everything that only one
object holds, wrappers first, and names who else holds some of it. `empty_device_cache` touches only
memory that nobody uses.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from reprlib import repr as short
from typing import TYPE_CHECKING

from .._devices.choose import device_of
from .._native import Ladder, Touch, empty_receipt, parse_seconds
from .._runtime import has_exit_begun
from .._runtime.data import holds_nothing
from .._runtime.log import log_release, log_restored
from .releasers import releaser_for, releaser_of, releasers
from .teardown import (
    drop_without_device,
    libraries_with_groups,
    put_back,
    teardown_of,
    unfreezing,
    users_of,
)

if TYPE_CHECKING:
    from .._devices.device import Device
    from .._native import Receipt


def empty_device_cache(device: object = None, *, collect: bool | None = None) -> Receipt:
    """Returns cached memory to the driver: collects garbage, then trims.

    A full collection takes long in a large heap. It is left out if it would find nothing: no more is
    allocated than the last one left, and no old object that leads to device memory has lost a
    reference since. If nothing was allocated or freed either, only the numbers are read; the receipt
    says so. `collect=True` collects in full, `collect=False` only trims.

    Raises nothing if torch or a device is missing: the receipt's verdict is `no-device`.
    """
    if has_exit_begun():
        return empty_receipt("empty_device_cache")
    ladder = {None: Ladder.CACHE_BY_NEED, True: Ladder.CACHE, False: Ladder.TRIM}[collect]
    return log_release(releaser_of(device).release("empty_device_cache", ladder))


def release(
    obj: object = None,
    to: str | int | None = None,
    *,
    device: object = None,
    unfreeze: bool = False,
    process_groups: bool = False,
    wait: float | str = 60.0,
    name: str | None = None,
) -> Receipt:
    """Frees memory and returns a receipt with the driver's numbers.

    With an object, everything that only this object holds is dropped first, as `shutdown` does.
    Without one, it claims all memory that the framework has taken on the device.
    `to` is the target: at most "512 MiB" (or a number of bytes) in use, "free 2 GiB", or "floor";
    stronger rungs follow while it is missed. `to=0` asks for a program without anything on the device:
    idle workers end, and at last the program itself is suspended, as `lowtide.suspend()` does, until its
    next use of the device. That needs a program that was started with `lowtide run`; in any other the
    receipt says so, and the context stays. `unfreeze` unfreezes what `gc.freeze()` hid from the
    collector. `process_groups` destroys communicators. `wait` limits how long to wait for running
    work.
    """
    name, objects = name or "release", [] if obj is None else [obj]
    ladder = Ladder.SHUTDOWN if to is None else Ladder.GRADUAL
    return _release(name, ladder, objects, device, unfreeze, process_groups, wait, to)


def shutdown(
    runner: object,
    *,
    also: Iterable[object] = (),
    device: object = None,
    unfreeze: bool = False,
    process_groups: bool = False,
    wait: float | str = 60.0,
    name: str | None = None,
) -> Receipt:
    """Drops all device memory that only the runner holds, wrappers first. The caller keeps the
    runner.

    It synchronises, drops, frees what libraries hold, collects and trims. References of others are
    not cut: if somebody else still holds some of it, the verdict is `pinned` and the receipt names
    the holders. `also` are objects that belong to the runner (a config, a cache). A second call is
    harmless.
    """
    name, objects = name or f"shutdown {type(runner).__name__}", [runner, *also]
    receipt = _release(name, Ladder.SHUTDOWN, objects, device, unfreeze, process_groups, wait)
    if holds_nothing(runner):
        # No exception: a clean-up may find that nothing was loaded.
        hint = "give the object that does, or call lowtide.release() for the whole program"
        receipt = receipt.with_advice(f"{short(runner)} holds no memory: {hint}")
    return receipt


def _release(
    name: str,
    ladder: Ladder,
    objects: list[object],
    device: object,
    unfreeze: bool,
    process_groups: bool,
    wait: float | str,
    to: str | int | None = None,
) -> Receipt:
    if has_exit_begun():
        return empty_receipt(name)
    found = device_of(device)
    began = time.perf_counter()
    steps, witness, claim_bytes, undo, in_vain = teardown_of(objects, found)
    if unfreeze:
        steps[:0] = unfreezing()
    if found is None:
        drop_without_device(steps)
    receipt = releaser_for(found).release(
        name,
        ladder,
        to=to,
        claim_bytes=claim_bytes if objects or found is None else found.taken(),
        steps=steps if objects or steps else None,
        witness=witness if objects or found is None else users_of(found),
        pins=bool(objects),
        wait_s=parse_seconds(wait),
        planned_s=time.perf_counter() - began,
        libraries=libraries_with_groups(found) if process_groups else None,
    )
    if in_vain:
        receipt = receipt.with_advice(
            "nothing was dropped, because others hold all of it: let them go, then ask again"
        )
    elif undo and found is not None and is_in_vain(receipt, found) and put_back(undo):
        receipt = receipt.with_advice("nothing was freed, so that what was dropped is back")
    undo.clear()
    return log_release(receipt)


def restore(device: object = None) -> list[Touch]:
    """Moves registered models back to their device and opens registered sessions again.

    `idle.work()` and `Gate.enter()` do this by themselves. Call it after `release(to=…)` in a program
    that uses neither. Without a device it is about every device that was used. Returns what came
    back, with bytes. Raises RuntimeError if something did not come back; a second call tries again.
    """
    if has_exit_begun():
        return []
    known = releasers() if device is None else [releaser_of(device)]
    touched: list[Touch] = []
    for releaser in known:
        restored = releaser.restore()
        if restored is not None:
            log_restored(restored)
            touched += restored.touched
    return touched


def is_in_vain(receipt: Receipt, device: Device) -> bool:
    """Returns whether a release freed nothing of what it claimed."""
    if receipt.freed_bytes is None or receipt.claim is None or receipt.claim.bytes == 0:
        return False
    return receipt.freed_bytes <= max(device.noise_bytes, device.grain_bytes - 1)
