"""Releases: memory goes back to the driver, and a receipt says how much by the driver's own numbers.

`release` climbs a ladder of rungs, gently first. `shutdown` lets go of everything that an object has
to itself, wrappers first, and names whoever else holds some of it. `empty_device_cache` touches only
what nobody has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native
from ._log import say

if TYPE_CHECKING:
    from ._native import Receipt, Releaser
    from ._torch import Device

CACHE = ("collect", "trim")
"""Beside running work: it touches only what nobody has."""
STANDARD = ("quiesce", "drop", "libraries", "caches", "collect", "trim")
GRADUAL = (
    *("quiesce", "drop", "collect", "trim", "caches", "libraries"),
    *("to_host", "sessions", "fraction", "sleep", "context_reset", "fallback"),
)
"""Towards a target: each rung only while it is missed, the gentle ones first (R30)."""
ATTEMPTS = 3
_WORTH = 1 << 20
"""Who has less than this on a device is not worth a line."""

Told = tuple[str, str, int, "int | None", "str | None"]
"""A holder as a witness tells it: path, what it holds, how many references, bytes, how to cut it."""


class Step(NamedTuple):
    """One thing that a release does in its `drop` rung, beside the cuts of a plan."""

    path: str
    bytes: int | None
    cut: Callable[[], object]


_releasers: dict[str | None, Releaser] = {}


def releaser_of(device: object = None) -> Releaser:
    """The releaser of a device, always the same for the same; one without a device where there is
    none."""
    from ._torch import device_of

    return _releaser(device_of(device))


def _releaser(device: Device | None) -> Releaser:
    name = None if device is None else device.name
    known = _releasers.get(name)
    if known is None:
        _forget_after_fork()
        known = _releasers.setdefault(name, _native.Releaser(device))
    return known


def _forget_after_fork(registered: list[bool] = []) -> None:  # noqa: B006
    # A child has its parent's locks as they were at the fork, and none of its threads.
    if not registered:
        import os

        registered.append(True)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_releasers.clear)


def empty_device_cache(device: object = None) -> Receipt:
    """Gives cached memory back to the driver: collects garbage, then trims. Never an error where torch
    or a device is missing: the receipt says `no-device`."""
    return say(releaser_of(device).release("empty_device_cache", CACHE))


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
    """Gives memory back, and proves it.

    With an object, what it alone holds is let go first (as `shutdown` does). `to` is when it is
    enough: "512 MiB" (or a number of bytes) in use at most, "free 2 GiB", or "floor"; then stronger
    rungs follow while it is missed. `unfreeze` lets the collector at what `gc.freeze()` hid.
    `process_groups` ends communicators. `wait` is how long running work is waited for.
    """
    ladder: tuple[str, ...] = GRADUAL
    if to is None:
        ladder = STANDARD
    return _release(
        name or "release",
        ladder,
        [] if obj is None else [obj],
        device=device,
        unfreeze=unfreeze,
        process_groups=process_groups,
        wait=wait,
        to=to,
        attempts=1 if to is None else ATTEMPTS,
    )


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
    """Lets go of all device memory that the runner has to itself, wrappers first, while the caller
    keeps the runner: synchronises, cuts, ends what libraries hold, collects, trims.

    Nobody else's reference is cut: who still holds something is named, and the verdict is `pinned`.
    `also` are objects that belong to it (a config, a cache beside it). A second call is harmless.
    """
    return _release(
        name or f"shutdown {type(runner).__name__}",
        STANDARD,
        [runner, *also],
        device=device,
        unfreeze=unfreeze,
        process_groups=process_groups,
        wait=wait,
    )


def _release(
    name: str,
    ladder: Sequence[str],
    objects: list[object],
    *,
    device: object,
    unfreeze: bool,
    process_groups: bool,
    wait: float | str,
    to: str | int | None = None,
    attempts: int = 1,
) -> Receipt:
    from ._torch import device_of

    found = device_of(device)
    began = time.perf_counter()
    steps, witness = plan(objects)
    if found is None and steps:
        # Without an accelerator the tensors are the host's, and go all the same.
        found = device_of("cpu")
    if objects:
        tidy(found)
    if unfreeze:
        steps[:0] = thaw()
    return say(
        _releaser(found).release(
            name,
            ladder,
            to=to,
            steps=steps if objects or steps else None,
            witness=witness if objects or found is None else users(found),
            pins=bool(objects),
            wait_s=_native.parse_seconds(wait),
            planned_s=time.perf_counter() - began,
            attempts=attempts,
            parts=groups(found) if process_groups else None,
        )
    )


def plan(objects: list[object]) -> tuple[list[Any], Callable[[], Sequence[Told]] | None]:
    """What is to be cut for some objects, wrappers first, and who can tell what survived. Refers to
    none of the objects itself, and the steps are taken out of their list when they are done."""
    if not objects:
        return [], None
    from ._plan import plan as planned_for
    from ._why import holders

    planned = planned_for(objects[0], objects[1:])
    steps: list[Any] = list(planned.steps)
    tensors: list[Callable[[], object]] = list(planned.tensors)
    planned.steps.clear()

    def witness() -> Sequence[Told]:
        alive = [one for one in (tensor() for tensor in tensors) if one is not None]
        return holders(alive) if alive else []

    return steps, witness


def tidy(device: Device | None) -> None:
    """On the host, what our own look at the heap took is of the memory that is measured: it goes back
    before a release begins, and is none of what the release gives back."""
    if device is not None and device.kind == "cpu":
        try:
            _native.malloc_trim()
        except OSError:
            pass  # Not every C library can, and then the numbers have that noise.


def users(device: Device) -> Callable[[], Sequence[Told]]:
    """Who has what is left on a device, for a release that was given no object."""

    def witness() -> Sequence[Told]:
        from ._why import holders

        return holders(device=device.name, least=_WORTH)

    return witness


def thaw() -> list[Step]:
    """What lets the collector see frozen objects; they cannot be frozen again as they were."""
    import gc

    from ._frozen import frozen_count

    frozen = frozen_count()
    said = f"{frozen} frozen objects unfrozen; the frozen set was not restored"
    return [Step(said, None, gc.unfreeze)] if frozen else []


def groups(device: Device | None) -> dict[str, list[Any]] | None:
    """The libraries' rung with the communicators, for a release that asks for it."""
    if device is None:
        return None
    hooks = device.hooks(process_groups=True)
    return {"libraries": [hook for hook in hooks if hook.place == "libraries"]}
