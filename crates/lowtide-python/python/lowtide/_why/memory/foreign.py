"""Objects of other libraries that keep tensors or their memory alive, and show it to nobody.

Most take no part in garbage collection. Some can be asked for the objects that they refer to: an
iterator of numpy for its array, a suspended greenlet for its frames. Others tell only an address: a
capsule of DLPack, a buffer of Arrow. Whose memory is at that address is known (`storages.py`).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ..._native import Shown, dlpack_memory, referents
from ..references.locals import greenlet_frames
from ..references.look import instance_dict, is_a, module_value, mro, read

CAPSULE: type = type(vars(datetime)["datetime_CAPI"])
"""The type of capsules. It has no name before Python 3.13."""

_HOST, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13


def references_of(one: object) -> list[object]:
    """Returns the objects that an object refers to without a traverse slot; none for most."""
    for kind, ask in _known((*_ASKED, *_MANY)):
        if is_a(one, kind):
            return [found for found in ask(one) if found is not None]
    return []


def asked_types(*, many: bool = False) -> list[type]:
    """Returns the types whose objects `references_of` knows, as far as they are imported; with `many`, also those
    that are asked only where there is need."""
    return [kind for kind, _ in _known((*_ASKED, *_MANY) if many else _ASKED)]


def owner_types(objects: Iterable[object]) -> list[type]:
    """Returns the types of what may own some objects that only native code seems to have. There are too many
    such owners to ask them without need."""
    wanted = {
        name for one in objects for kind, names in _OWNERS if is_a(one, kind) for name in names
    }
    return [kind for kind, _ in _known([row for row in _MANY if row[1] in wanted])]


def _known(table: _Table) -> list[tuple[type, Ask]]:
    found = [(module_value(module, name), ask) for module, name, ask in table]
    return [(kind, ask) for kind, ask in found if isinstance(kind, type)]


def _of_greenlet(one: Any) -> Iterator[object]:
    if not read(one, "_stack_saved") and read(one, "gr_frame") is None:
        return  # Before and after it runs, it takes part in garbage collection.
    yield instance_dict(one)
    yield read(one, "parent")
    yield from greenlet_frames(one)


def _of_dtype(one: Any) -> Iterator[object]:
    # Both are views of a dict.
    for name in ("metadata", "fields"):
        yield from referents(read(one, name))


Ask = Callable[[Any], Iterable[object]]
_Table = Iterable[tuple[str, str, Ask]]
_ASKED: tuple[tuple[str, str, Ask], ...] = (
    ("numpy", "flatiter", lambda one: (read(one, "base"),)),
    # One that was closed has no operands.
    ("numpy", "nditer", lambda one: read(one, "operands") or ()),
    ("numpy", "broadcast", lambda one: read(one, "iters") or ()),
    ("greenlet", "greenlet", _of_greenlet),
)
_MANY: tuple[tuple[str, str, Ask], ...] = (
    ("numpy", "dtype", _of_dtype),
    ("types", "CodeType", lambda one: (read(one, "co_consts"),)),
    ("datetime", "datetime", lambda one: (read(one, "tzinfo"),)),
    ("datetime", "time", lambda one: (read(one, "tzinfo"),)),
)
_OWNERS = ((dict, ("dtype",)), (tuple, ("CodeType",)), (datetime.tzinfo, ("datetime", "time")))
"""By the type of an object: the names of the types that may own it."""


class Place(NamedTuple):
    """Memory that an object shows: its address and size, and the device as torch names it."""

    address: int
    bytes: int
    device: str


def buffer_types() -> list[type]:
    """Returns the types of objects that tell the address of memory that they show."""
    buffer = module_value("pyarrow.lib", "Buffer")
    return [CAPSULE, *([buffer] if isinstance(buffer, type) else [])]


def place_of(one: Any) -> Place | None:
    """Returns the memory that a capsule or a buffer shows."""
    if type(one) is CAPSULE:
        shown = dlpack_memory(one)
        return None if shown is None else Place(shown.address, shown.bytes, _device(shown))
    address, size = read(one, "address"), read(one, "size")
    return Place(address, size, "cpu") if address and size else None


def _device(shown: Shown) -> str:
    if shown.device_type in (_HOST, _CUDA_HOST):
        return "cpu"
    if shown.device_type in (_CUDA, _CUDA_MANAGED):
        return f"cuda:{shown.device_id}"
    return f"device {shown.device_type}:{shown.device_id}"


def table_types() -> list[type]:
    """Returns the types of Arrow that consist of buffers."""
    names = ("Array", "ChunkedArray", "RecordBatch", "Table", "Tensor")
    found = [module_value("pyarrow.lib", name) for name in names]
    return [one for one in found if isinstance(one, type)]


def buffers_of(one: Any) -> list[object]:
    """Returns the buffers of an array or table of Arrow, as new objects."""
    lib: dict[str, Any] = {kind.__name__: kind for kind in table_types()}
    todo: list[Any] = [one]
    found: list[object] = []
    while todo:
        at = todo.pop()
        names = [base.__name__ for base in mro(type(at)) if lib.get(base.__name__) is base]
        name = names[-1] if names else ""
        if name == "Array":
            found += [buffer for buffer in lib[name].buffers(at) if buffer is not None]
        elif name == "ChunkedArray":
            todo += list(lib[name].iterchunks(at))
        elif name in ("RecordBatch", "Table"):
            todo += list(lib[name].itercolumns(at))
    return found
