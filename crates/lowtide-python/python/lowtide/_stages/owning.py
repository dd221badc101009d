"""What a stage owns although nobody said so, and what was made in it and stays."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import suppress
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
from .._why.references.look import descriptor, instance_dict, is_a, pairs, type_name
from .._why.references.tensors import is_tensor
from .._why.why import why
from .bound import Bound, Places, places
from .ended import end, parts_of
from .made import Made

_WORTH_BYTES = 1 << 20
"""What stays is not named below this size."""


class Owning:
    """Notes what is made from now on. At the end it chooses, marks what has ended, and names what stays."""

    def __init__(self, stage: type) -> None:
        self._stage = stage
        self._begun: Places = places()
        self._made = Made()
        self._ended: list[tuple[weakref.ref[object], list[tuple[str, str]]]] = []
        self._stays: list[tuple[weakref.ref[object], str | None]] = []

    def choose(
        self, owned: list[object], traceback: TracebackType | None, has_grown: bool
    ) -> list[Step]:
        """Adds to `owned` what only variables hold that the block has bound. Returns how its sessions
        are closed."""
        made = self._made.end()
        foreign = self._made.foreign
        if not made and not foreign and not has_grown:
            return []
        parts = {id(part) for one in made for part in _inside(one)}
        keys, given = [id(one) for one in made], [id(one) for one in owned]
        made[:] = [one for one in made if id(one) not in parts]
        found = Bound(self._begun, traceback, made, owned, self._stage)
        below = found.reached(given)
        outermost = [key for key in keys if key not in parts or key in found.names]
        mine = [key for key in outermost if key not in found.outside and key not in given]
        others = [
            key for key in found.names if key not in found.outside and key not in keys + given
        ]
        others = [key for key in others if _is_thing(found.objects[key])]
        # A pipeline: an object that can be called, and has a model.
        for key in [key for key in others if set(mine) & found.reached([key])]:
            if type(descriptor(found.objects[key], "__call__")) is FunctionType:
                mine.append(key)
        others += [key for key in outermost if key in found.outside and key not in below]
        others += [key for key in foreign if foreign[key]() is found.objects.get(key, self)]
        for key in outermost:
            self._ended.append((weakref.ref(found.objects[key]), parts_of(found.objects[key])))
        for key in [key for key in others if key not in mine]:
            with suppress(TypeError):  # It has no weak references.
                self._stays.append((weakref.ref(found.objects[key]), found.names.get(key)))
        owned += [found.objects[key] for key in mine]
        return [
            Step(type_name(type(one)), None, partial(_close, weakref.ref(one)))
            for one in owned
            if is_onnx(one)
        ]

    def told(self, receipt: Receipt, name: str, device: Device | None) -> Receipt:
        """Marks what has ended, and returns the receipt with the names of what stays."""
        for known, parts in self._ended:
            if (one := known()) is not None:
                end(one, parts, name)
        where = "cpu" if device is None else device.name
        stays = [(weak(), variable) for weak, variable in self._stays]
        sizes = {id(one): held_bytes([one], where) for one, _ in stays}
        for one, variable in stays:
            # A wrapper goes with the model that it has.
            values = [value for _, value in pairs(instance_dict(one) or {})]
            models = [sizes[id(value)] for value in values if id(value) in sizes]
            if (size := sizes[id(one)]) - max(models, default=0) >= _WORTH_BYTES:
                line = _stays(one, variable, size)
                logger().warning("stage %s: %s", name, line)
                receipt = receipt.with_advice(line)
        return receipt


def _is_thing(one: object) -> bool:
    """Returns whether this is an object of a class with attributes, and no container or record."""
    is_record = is_a(one, dict) or descriptor(one, "__dataclass_fields__") is not None
    return instance_dict(one) is not None and not is_record and not is_tensor(one)


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
    typed = [text for path in others if " " not in (text := path.rsplit(": ", 1)[-1])]
    who = f", held by {' and '.join(others[:2])}" if others else ""
    line = f"stage.own({variable or next(iter(typed), 'it')})"
    return f"{type_name(type(one))} ({mib(size)}) stays{who}: to end it with the stage, add {line}"
