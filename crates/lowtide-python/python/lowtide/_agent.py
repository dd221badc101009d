"""The agent of this process: it is there if the program was started with `lowtide run`."""

from __future__ import annotations

from typing import Any

from . import _native
from ._native import AgentStatus, Receipt


def status() -> AgentStatus:
    """Returns what this program has on its devices: what can sleep, what stays, what keeps it awake.

    Raises AgentError if the program was not started with `lowtide run`, or has not used CUDA yet.
    """
    return _native.agent_status()


def sleep() -> list[Receipt]:
    """Moves this program's device memory to the host until its next use of the device.

    Addresses, graphs and tensors stay valid. Returns a receipt for each context; none if the program
    sleeps already. Raises AgentError if it cannot sleep now, for example because work is running.
    """
    return _native.agent_sleep()


def suspend() -> dict[str, Any] | None:
    """Takes this program off its devices altogether, with its context, until its next use of a device.

    It sleeps first, so that the driver has little to copy. Returns the verdict, the steps with their
    times, and the devices' numbers before and after; None if the program is suspended already. Raises
    AgentError if it cannot be suspended now. `wake()` brings it back, too.
    """
    return _native.agent_suspend()


def wake() -> int:
    """Brings this program's device memory back. Its next use of the device does the same.

    Returns the bytes that came back; 0 if the program was awake. Raises AgentError if there is no
    room on the device; the program stays asleep then.
    """
    return _native.agent_wake()
