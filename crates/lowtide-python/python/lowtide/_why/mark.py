"""What is on a device now, so that a later question can be about what came since."""

from __future__ import annotations

from .._runtime.heap import alive, objects_of, weakly
from .._runtime.torch import torch
from .memory.probe import probe


class Mark:
    """The memory in use when `lowtide.mark()` was called, for `why(since=mark)`. It keeps nothing alive."""

    def __init__(self) -> None:
        # One without weak references counts as new.
        self._known = weakly(_listed())

    def grown(self, device: str | None) -> tuple[list[object], int]:
        """Returns the objects that hold memory of a device which none of the known objects has, and its
        bytes."""
        known = alive(self._known)
        # Addresses are used again: what counts is where the known ones are now.
        old = {memory.key for memory in probe(known) if memory is not None}
        seen = {id(one) for one in known}
        now = [one for one in _listed() if id(one) not in seen]
        found, sizes = [], {}
        for one, memory in zip(now, probe(now), strict=True):
            if memory is not None and memory.key not in old and device in (None, memory.device):
                found.append(one)
                sizes[memory.key] = memory.bytes
        return found, sum(sizes.values())


def mark() -> Mark:
    """Returns what is in use now: `mark = lowtide.mark()`, and later `print(lowtide.why(since=mark))`."""
    return Mark()


def _listed() -> list[object]:
    """Returns all tensors. Other objects with memory are too rare for a pass over the heap each."""
    module = torch()
    return [] if module is None else objects_of(module.Tensor)
