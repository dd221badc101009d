"""Processes that a release ends or suspends.

Workers are disposable (R28), and their end is the seventh of the eight steps (R27). A release to zero bytes
looks at them once more: those that were at work may be idle by then. At last it takes this process off its
devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._devices.device import Device
from .._native import AgentError, HookPoint, Touch, agent_status, agent_suspend
from . import registry
from .hook import Hook, each

if TYPE_CHECKING:
    from .._worker.worker import Worker


class Workers(Hook):
    """Ends every worker that is idle and uses memory of the device."""

    name = "workers"
    limit_s = 40.0
    disposable = True

    def __init__(self, device: Device, point: HookPoint = HookPoint.CONTEXT_RESET) -> None:
        self._device = device
        self.point = point

    def missing(self) -> str | None:
        running = [worker for worker in registry.workers.objects() if worker.pid is not None]
        if not running:
            return "none; lowtide.Worker starts one"
        return None if self._idle() else "each is at work, or uses nothing here"

    def expect(self) -> int | None:
        sizes = [self._size(worker) for worker in self._idle()]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None

    def run(self, round: int) -> list[Touch]:
        return each(self._idle(), lambda worker: f"worker {worker._name}", self._end)

    def _end(self, worker: Worker) -> Touch | None:
        pid, size = worker.pid, self._size(worker)
        is_ended = worker._end_if_idle("a release")
        return Touch(f"worker {worker._name}, pid {pid}", size) if is_ended else None

    def _idle(self) -> list[Worker]:
        """Returns idle workers. One whose memory is not known may use some."""
        return [
            worker
            for worker in registry.workers.objects()
            if worker._is_idle() and self._size(worker) != 0
        ]

    def _size(self, worker: Worker) -> int | None:
        pid = worker.pid
        return 0 if pid is None else self._device.worker_memory(pid)


class ThisProcess(Hook):
    """Suspends this process. Its next use of a device brings it back.

    The agent does both, so the program has to be started with `lowtide run`. Without an agent the process
    could be suspended, and nobody would bring it back: it would wait in its next call.
    """

    point = HookPoint.SUSPEND
    name = "this process"
    # The agent answers earlier: it gives up after two minutes, and the driver copies on.
    limit_s = 150.0

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
