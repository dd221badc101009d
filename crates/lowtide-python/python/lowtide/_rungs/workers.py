"""Workers that a release ends: the seventh of the eight steps (R27), for processes that are disposable
(R28). A release to zero bytes looks at them once more: those that were at work may be idle by then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._devices.device import Device
from .._native import HookPoint, Touch
from . import registry
from .hook import Hook, done

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
        running = [worker for worker in workers() if worker.pid is not None]
        if not running:
            return "none; lowtide.Worker starts one"
        return None if self._idle() else "each is at work, or uses nothing here"

    def expect(self) -> int | None:
        sizes = [self._size(worker) for worker in self._idle()]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None

    def run(self, round: int) -> list[Touch]:
        touched: list[Touch] = []
        failures: list[str] = []
        for worker in self._idle():
            pid, size = worker.pid, self._size(worker)
            try:
                if worker._end_if_idle("a release"):
                    touched.append(Touch(f"worker {worker._name}, pid {pid}", size))
            except Exception as failure:  # noqa: BLE001  One failure does not stop the others.
                failures.append(f"worker {worker._name}: {type(failure).__name__}: {failure}")
        return done(touched, failures)

    def _idle(self) -> list[Worker]:
        """Returns idle workers. One whose memory is not known may use some."""
        return [worker for worker in workers() if worker._is_idle() and self._size(worker) != 0]

    def _size(self, worker: Worker) -> int | None:
        pid = worker.pid
        return 0 if pid is None else self._device.worker_memory(pid)


def workers() -> list[Worker]:
    """Returns every worker."""
    found = [entry.get() for entry in registry.workers.entries()]
    return [worker for worker in found if worker is not None]
