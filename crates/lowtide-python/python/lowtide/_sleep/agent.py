"""Sleep and wake of this program: its tags (`lowtide.tag`), or all of it by its agent (`lowtide run`)."""

from __future__ import annotations

from typing import Any

from .. import _native
from .._native import AgentStatus, Receipt


def status() -> AgentStatus:
    """Returns what this program has on its devices: what can sleep, what stays, what keeps it awake.

    Raises AgentError if the program was not started with `lowtide run`, or has not used CUDA yet.
    """
    return _native.agent_status()


def sleep(*tags: str) -> list[Receipt]:
    """Moves device memory of this program to the host. Addresses, graphs and tensors stay valid.

    With names: the memory of these tags (`lowtide.tag`), until `lowtide.wake`. Nothing may use it
    meanwhile. Returns a receipt for each device. Raises TagError for an unknown name, and if a scope of a
    tag is open.

    Without a name: the memory of all tags, if the program has any. Otherwise the agent moves all memory of
    the program, until its next use of the device. Returns a receipt for each context; none if the program
    sleeps already. Raises AgentError if it was not started with `lowtide run`, or cannot sleep now, for
    example because work is running.
    """
    if tags or _native.tags():
        return _native.tags_sleep(list(tags))
    return _native.agent_sleep()


def suspend() -> dict[str, Any] | None:
    """Takes this program off its devices altogether, with its context, until its next use of a device.

    It sleeps first, so that the driver has little to copy. Returns the verdict, the steps with their
    times, and the devices' numbers before and after; None if the program is suspended already. Raises
    AgentError if it cannot be suspended now. `wake()` brings it back, too.
    """
    return _native.agent_suspend()


def wake(*tags: str) -> int:
    """Brings device memory of this program back. Returns the bytes that came back; 0 if it was awake.

    With names: the memory of these tags, every page verified. Without a name: all tags, if the program has
    any, and otherwise all memory that the agent has moved; the program's next use of the device does the
    same. Raises TagError or AgentError if there is no room on the device; everything stays asleep then.
    """
    if tags or _native.tags():
        return _native.tags_wake(list(tags))
    return _native.agent_wake()
