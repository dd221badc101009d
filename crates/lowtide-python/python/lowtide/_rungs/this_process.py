"""This process, which a release to zero bytes takes off its devices."""

from __future__ import annotations

from .._devices.device import Device
from .._native import AgentError, HookPoint, Touch, agent_status, agent_suspend
from .hook import Hook

LIMIT_S = 150.0
"""The agent answers earlier: it gives up after two minutes, and the driver copies on."""


class ThisProcess(Hook):
    """Suspends this process. Its next use of a device brings it back.

    The agent does both, so the program has to be started with `lowtide run`. Without an agent the process
    could be suspended, and nobody would bring it back: it would wait in its next call.
    """

    point = HookPoint.SUSPEND
    name = "this process"
    limit_s = LIMIT_S

    def __init__(self, device: Device) -> None:
        self._device = device

    def missing(self) -> str | None:
        try:
            obstacles = agent_status().obstacles
        except AgentError as refusal:
            return str(refusal)
        return "; ".join(obstacles) or None

    def expect(self) -> int | None:
        return self._device.own()

    def run(self, round: int) -> list[Touch]:
        suspended = agent_suspend()
        if suspended is None:
            return []
        took_s = sum(step["took_s"] for step in suspended["steps"])
        words = f"suspended in {took_s:.2f} s until its next use of a device"
        return [Touch(f"this process, {words}", None)]
