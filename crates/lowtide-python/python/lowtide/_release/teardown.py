"""What a release of some objects drops, and who is asked afterwards what has survived."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from .._native import HookPoint, malloc_trim
from .._runtime.log import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._devices.device import Device
    from .._native import Holder, _DropStep as DropStep
    from .._rungs.hook import Hook

_WORTH_BYTES = 1 << 20
"""Holders of less than this are not named."""


class Step(NamedTuple):
    """One thing that a release does in its `drop` rung, beside the cuts of a plan."""

    path: str
    bytes: int | None
    cut: Callable[[], object]


class Teardown(NamedTuple):
    """The steps of the `drop` rung, who can tell what survived them, and the claim: the bytes that
    the objects hold on the device.

    It refers to none of the objects. The native release empties the list of steps.
    """

    steps: list[DropStep]
    witness: Callable[[], list[Holder]] | None
    claim_bytes: int
    undo: list[Callable[[], bool]]
    """Puts back what the steps have dropped, the last first."""
    in_vain: bool
    """Whether there are no steps because others hold all of it."""


def teardown_of(objects: list[object], device: Device | None) -> Teardown:
    """Returns what is cut for some objects, wrappers first."""
    if not objects:
        return Teardown([], None, 0, [], False)
    from .._runtime.heap import alive
    from .._why.memory.probe import bytes_on
    from .._why.why import here, holders
    from .plan import plan

    # A class that says what it releases loses those attributes, in that order, and no others.
    named = {id(one): names for one in objects if (names := names_of(type(one)))}
    planned = plan(objects[0], objects[1:], named)
    steps: list[DropStep] = []
    for one in objects:
        steps += named_steps(one, named.get(id(one), ()))
    steps += planned.steps
    tensors = planned.tensors
    planned.steps.clear()
    claim_bytes = 0 if device is None else bytes_on(alive(tensors), device.name)

    in_vain = planned.in_vain
    # What was not dropped is held by the object as well, which is no news.
    besides = _weakly(objects[0])
    asker = here()

    def witness() -> list[Holder]:
        survivors = alive(tensors)
        return holders(survivors, besides(), asker=asker) if survivors else []

    _trim_own_garbage(device)
    return Teardown(steps, witness, claim_bytes, planned.undo, in_vain)


NAMES = "__lowtide_releases__"
"""The attribute in which a class keeps the names that were given to `@releases`."""


def names_of(cls: type) -> tuple[str, ...]:
    """Returns the names that a class and its bases were given by `@releases`, or none if one of them
    releases everything."""
    given = [vars(base)[NAMES] for base in cls.__mro__ if NAMES in vars(base)]
    if not all(given):
        return ()
    return tuple(dict.fromkeys(name for names in given for name in names))


def named_steps(module: object, names: tuple[str, ...]) -> list[Step]:
    """Returns a step for each attribute of these names. One that is missing or None was not loaded, or
    is gone already."""
    held = vars(module) if hasattr(module, "__dict__") else {}
    return [
        Step(f"{type(module).__name__}.{name}", None, partial(setattr, module, name, None))
        for name in names
        if held.get(name, getattr(type(module), name, None)) is not None
    ]


def _weakly(one: object) -> Callable[[], object]:
    try:
        return weakref.ref(one)
    except TypeError:
        # A dict or a namespace. Its memory has been dropped, or is what others hold.
        return lambda: one


def put_back(undo: list[Callable[[], bool]]) -> int:
    """Puts back what was dropped in vain. Returns how many references it could put back."""
    done = 0
    while undo:
        done += undo.pop()()
    return done


def drop_without_device(steps: list[DropStep]) -> None:
    """Drops the references of a release that has no device to measure. The objects go all the same
    (R8)."""
    import gc

    while steps:
        try:
            steps.pop(0).cut()
        except Exception as failure:  # noqa: BLE001  One failure does not stop the others.
            logger().error("a reference could not be dropped: %s", failure)
    gc.collect()


def users_of(device: Device) -> Callable[[], list[Holder]]:
    """Returns a witness that names who uses the memory that is left on a device."""

    from .._why.why import here, holders

    asker = here()

    def witness() -> list[Holder]:
        return holders(device=device.name, least=_WORTH_BYTES, asker=asker)

    return witness


def unfreezing() -> list[DropStep]:
    """Returns a step that unfreezes all frozen objects. They cannot be frozen again as they were."""
    import gc

    from .._runtime.heap import frozen_count

    frozen = frozen_count()
    said = f"{frozen} frozen objects unfrozen; the frozen set was not restored"
    return [Step(said, None, gc.unfreeze)] if frozen else []


def _trim_own_garbage(device: Device | None) -> None:
    """Returns to the kernel what our own look at the heap took, before a release of host memory
    begins.

    Otherwise the release would free that memory too, and measure it.
    """
    if device is not None and device.kind == "cpu":
        try:
            malloc_trim()
        except OSError:
            pass  # Not every C library can trim, and then the numbers have this noise.


def libraries_with_groups(device: Device | None) -> Sequence[Hook] | None:
    """Returns the hooks of the `libraries` rung for a release that destroys process groups."""
    if device is None:
        return None
    from .._rungs.all import hooks_of

    hooks = hooks_of(device, process_groups=True)
    return [hook for hook in hooks if hook.point == HookPoint.LIBRARIES]
