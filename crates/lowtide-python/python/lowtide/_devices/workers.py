"""The processes of workers. What they use is part of what this program uses."""

from __future__ import annotations

import os
import sys


def pids() -> list[int]:
    """Returns the numbers of the workers' processes that run."""
    registry = sys.modules.get("lowtide._rungs.registry")
    if registry is None or "lowtide._worker.worker" not in sys.modules:
        return []
    found = [entry.get() for entry in registry.workers.entries()]
    running = [worker.pid for worker in found if worker is not None]
    return [pid for pid in running if pid is not None]


def worker_of(pid: int, among: list[int]) -> int | None:
    """Returns the worker that a process is, or that has started it: its session is the worker's."""
    try:
        session = os.getsid(pid)
    except OSError:
        return None
    return session if session in among else None
