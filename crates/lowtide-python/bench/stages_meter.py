"""Reads the memory in use: from the driver (NVML) for a GPU, from the kernel for host memory.

It reads from outside the measured process and uses nothing of lowtide, so that neither the interpreter's
lock there nor a bug of ours can hide a peak.
"""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVERY_S = 0.002
_BREATH_BYTES = 4 << 20


class Nvml:
    """One GPU by its UUID. NVML asks the driver and makes no context."""

    class Memory(ctypes.Structure):
        _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]

    def __init__(self, uuid: str) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")
        self._handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._handle))

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise OSError(f"{name} says {status}: see nvmlReturn_t in nvml.h")

    def _text(self, name: str, *before: Any) -> str:
        text = ctypes.create_string_buffer(96)
        self._call(name, *before, text, ctypes.c_uint(96))
        return text.value.decode()

    def in_use(self, _: int = 0) -> int:
        """Bytes in use on the device, whoever has them."""
        memory = self.Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory))
        return int(memory.total - memory.free)

    def where(self) -> dict[str, str]:
        return {
            "gpu": self._text("nvmlDeviceGetName", self._handle),
            "driver": self._text("nvmlSystemGetDriverVersion"),
        }


def resident(process: int) -> int:
    """Resident memory of a process that is no file; 0 once it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    found = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", status, re.MULTILINE)
    return sum(int(kib) << 10 for kib in found)


class Sampler:
    """The highest reading of each part of a process's life, looked at every two milliseconds."""

    def __init__(self, read: Callable[[int], int], process: int, before: int) -> None:
        self.peaks: dict[str, int] = {}
        self.samples = 0
        self._read, self._process, self._before = read, process, before
        self._part = "start"
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="sampler", daemon=True)
        self._thread.start()

    def look(self) -> int:
        """One reading, now: bytes above what was there before the process."""
        with self._lock:
            found = max(0, self._read(self._process) - self._before)
            self.peaks[self._part] = max(self.peaks.get(self._part, 0), found)
            self.samples += 1
            return found

    def next_part(self, name: str) -> int:
        """A reading that ends this part, and begins the next."""
        found = self.look()
        with self._lock:
            self._part = name
        return found

    def _sample(self) -> None:
        while not self._ends.wait(EVERY_S):
            self.look()

    def end(self) -> None:
        """No more readings. A second time is harmless."""
        self._ends.set()
        self._thread.join()


def settled(read: Callable[[int], int], first: int, limit_s: float = 5.0) -> int:
    """What is in use once the process before has gone: the driver takes a moment for that."""
    ends = time.monotonic() + limit_s
    found = read(0)
    while found > first + _BREATH_BYTES and time.monotonic() < ends:
        time.sleep(0.05)
        found = read(0)
    return found
