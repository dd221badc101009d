"""What a stage owns although nobody said so, and what was made in it and stays."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from types import FunctionType, TracebackType

from .._devices.device import Device
from .._native import Receipt
from .._release.teardown import Step
from .._rungs.caches import held_bytes
from .._rungs.registered import close
from .._rungs.registry import is_onnx
from .._runtime.data import mib
from .._runtime.log import logger
from .._why.references.look import descriptor, type_name
from .._why.why import why
from .bound import Bound, Places, places
from .ended import end, parts_of
from .made import Made


class Owning:
    """Notes what is made from now on. At the end it chooses, marks what has ended, and names what stays."""

    def __init__(self, stage: type) -> None:
        self._stage = stage
        self._begun: Places = places()
        self._made = Made()
        self._ended: list[tuple[weakref.ref[object], list[tuple[str, str]]]] = []
        self._stays: list[tuple[weakref.ref[object], str | None, int]] = []

    def choose(
        self, owned: list[object], traceback: TracebackType | None, device: Device | None
    ) -> list[Step]:
        """Adds to `owned` what only variables hold that the block has bound. Returns how its sessions
        are closed."""
        made = self._made.end()
        foreign = self._made.foreign
        if not made and not foreign:
            return []
        parts = {id(part) for one in made for part in _inside(one)}
        keys, given = [id(one) for one in made], [id(one) for one in owned]
        made[:] = [one for one in made if id(one) not in parts]
        found = Bound(self._begun, traceback, made, owned, self._stage)
        outermost = [key for key in keys if key not in parts or key in found.names]
        below = found.reached(given)
        mine = [key for key in outermost if key not in found.outside and key not in given]
        callers = [
            key for key in found.names if key not in found.outside and key not in keys + given
        ]
        # A pipeline: an object that can be called, and has a model.
        callers = [key for key in callers if set(mine) & found.reached([key])]
        callers = [
            key
            for key in callers
            if type(descriptor(found.objects[key], "__call__")) is FunctionType
        ]
        from_elsewhere = [
            key for key in found.names if key in foreign and foreign[key]() is found.objects[key]
        ]
        for key in outermost + from_elsewhere:
            one = found.objects[key]
            if key in below or (key not in found.outside and key not in foreign):
                self._ended.append((weakref.ref(one), parts_of(one)))
            else:
                size = held_bytes([one], "cpu" if device is None else device.name)
                self._stays.append((weakref.ref(one), found.names.get(key), size))
        owned += [found.objects[key] for key in mine + callers]
        return [
            Step(type_name(type(one)), None, partial(_close, weakref.ref(one)))
            for one in owned
            if is_onnx(one)
        ]

    def told(self, receipt: Receipt, name: str) -> Receipt:
        """Marks what has ended, and returns the receipt with the names of what stays."""
        for known, parts in self._ended:
            if (one := known()) is not None:
                end(one, parts, name)
        for known, variable, size in self._stays:
            if size and (one := known()) is not None:
                line = _stays(one, variable, size)
                logger().warning("stage %s: %s", name, line)
                receipt = receipt.with_advice(line)
        return receipt


def _inside(module: object) -> Iterable[object]:
    """Returns the children of a module of torch."""
    children = object.__getattribute__(module, "__dict__").get("_modules")
    return children.values() if isinstance(children, dict) else ()


def _close(known: weakref.ref[object]) -> None:
    if (one := known()) is not None:
        close(one, None)


def _stays(one: object, variable: str | None, size: int) -> str:
    """Returns who keeps a model that was made in the stage, and the line that ends it there."""
    paths = [holder.path for holder in why(one).holders]
    others = [path for path in paths if path.rsplit(": ", 1)[-1] != variable]
    typed = [path for path in others if " " not in path]
    who = (
        "held by " + " and ".join(others[:2])
        if others
        else "made or held by a call that is not its own"
    )
    line = f"stage.own({variable or next(iter(typed), 'it')})"
    return (
        f"{type_name(type(one))} ({mib(size)}) stays, {who}; to end it with the stage, add {line}"
    )
