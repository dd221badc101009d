"""CUDA as a device, and ROCm, which torch calls by the same names.

NVML reports the usage. It is asked by UUID, because torch's index differs from NVML's under
CUDA_VISIBLE_DEVICES, and it needs no context. torch's own query creates a context, so it is used
only where a context exists already.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import GeneratorType

from .._native import (
    AllocatorCounts,
    LedgerLine,
    NvmlUsage,
    ProcessUsage,
    Usage,
    agent_is_asleep,
    agent_is_suspended,
    nvml_memory,
    nvml_usage,
    tags,
)
from .._rungs.hook import Setting
from .._runtime.heap import objects_of
from .._runtime.torch import UNREADABLE, Torch, torch
from .._why.references.locals import has_begun
from .accelerator import common_of, synchronize
from .cuda_pools import ORDINARY, graph_pools, initialised, lines_of, pool_of, snapshot
from .device import Device, pids, worker_of

NVML_ERRORS = (*UNREADABLE, OSError, LookupError)
"""Exceptions where NVML cannot be asked: no library, or no such device."""
LISTED_S = 0.02
"""For so long, a list of processes that was asked for this one's memory also tells that of others."""


class CudaDevice(Device):
    """One CUDA or ROCm device."""

    kind = "cuda"
    grain_bytes = 2 << 20

    def __init__(self, name: str, index: int) -> None:
        super().__init__(name, index)
        self._uuid: str | None = None
        self._knows_workers = False
        self._knows_own = False
        self._listed: tuple[float, NvmlUsage | None] = (0.0, None)

    def uuid(self) -> str:
        """Returns the UUID as NVML spells it, without initialising CUDA."""
        if self._uuid is None:
            module: Torch = torch()
            # Properties have it from torch 2.5 on.
            known: Torch = None
            if module.cuda.is_initialized():
                known = module.cuda.get_device_properties(self.index)
            if hasattr(known, "uuid"):
                bare = str(known.uuid)
                self._uuid = bare if bare.startswith(("GPU-", "MIG-")) else f"GPU-{bare}"
            else:
                position = module.cuda._get_nvml_device_index(self.index)
                self._uuid = str(module.cuda._raw_device_uuid_nvml()[position])
        return self._uuid

    def usage(self) -> Usage:
        try:
            return nvml_memory(self.uuid())
        except NVML_ERRORS as unreadable:
            module: Torch = torch()
            if not self.has_context():
                raise RuntimeError(
                    f"NVML does not report {self.name} ({unreadable}), and asking CUDA would create"
                    " a context: use the device once, or install the driver's NVML library"
                ) from unreadable
            free, total = module.cuda.mem_get_info(self.index)
            return Usage(int(total), int(free))

    def own(self) -> int | None:
        try:
            nvml = nvml_usage(self.uuid())
        except NVML_ERRORS:
            return None
        self._listed = (time.monotonic(), nvml)
        theirs = sum(self._by_worker(nvml).values())
        # A suspended process is not listed, and has nothing.
        self._knows_own = self._knows_own or nvml.own_bytes is not None
        if self._knows_own and self.is_away():
            return theirs
        # This process has no number before it uses the device, and where NVML does not know the
        # numbers of processes. That it knows a worker's tells them apart.
        if nvml.own_bytes is None and not self._knows_workers:
            return None
        return (nvml.own_bytes or 0) + theirs

    def worker_memory(self, pid: int) -> int | None:
        try:
            by_worker = self._by_worker(nvml_usage(self.uuid()))
        except NVML_ERRORS:
            return None
        return by_worker.get(pid, 0) if self._knows_workers else None

    def _by_worker(self, nvml: NvmlUsage) -> dict[int, int]:
        """Returns what each worker uses, with the processes that it has started."""
        workers = pids()
        found: dict[int, int] = {}
        for other in nvml.others if workers else ():
            worker = worker_of(pid_of(other), workers)
            if worker is not None:
                found[worker] = found.get(worker, 0) + other.bytes
        self._knows_workers = self._knows_workers or bool(found)
        return found

    def others(self) -> list[ProcessUsage]:
        # A ledger asks for both, and NVML takes milliseconds to list processes.
        when, listed = self._listed
        try:
            is_new = time.monotonic() - when < LISTED_S
            others = (listed if listed is not None and is_new else nvml_usage(self.uuid())).others
        except NVML_ERRORS:
            return []
        workers = pids()
        return [one for one in others if not workers or worker_of(pid_of(one), workers) is None]

    def is_away(self) -> bool:
        return agent_is_suspended()

    def has_context(self) -> bool:
        """Returns whether this process has a context on the device. Creates none."""
        module = initialised()
        if module is None:
            return False
        ask = getattr(module._C, "_cuda_hasPrimaryContext", None)
        return True if ask is None else bool(ask(self.index))

    def synchronize(self) -> None:
        module = initialised()
        if module is None or not self.has_context():
            return
        # Synchronising would end a capture in another thread with an error there.
        if capturing(module):
            raise RuntimeError("a CUDA graph is being captured, and synchronising would break it")
        synchronize(module, "cuda", self.index)

    def counts(self) -> AllocatorCounts:
        module = initialised()
        if module is None:
            return AllocatorCounts(0, 0)
        # Nested, as torch has them: flattening the whole table costs more than reading it.
        stats = module.cuda.memory_stats_as_nested_dict(self.index)
        # torch counts the memory of tags that sleep, too; it is not on the device.
        asleep = sum(tag.bytes for tag in tags() if tag.is_asleep and tag.device == self.name)
        allocated, reserved = current(stats, "allocated_bytes"), current(stats, "reserved_bytes")
        return AllocatorCounts(max(0, allocated - asleep), max(0, reserved - asleep))

    def counters(self) -> tuple[int, int] | None:
        module = initialised()
        if module is None:
            return None
        stats = module.cuda.memory_stats_as_nested_dict(self.index)
        counts = stats.get("allocation", {}).get("all", {})
        if "allocated" not in counts:
            return None
        return int(counts["allocated"]), int(counts["freed"])

    def lines(self) -> list[LedgerLine]:
        # torch counts memory that the agent has taken off the device.
        if agent_is_asleep():
            return []
        try:
            segments = snapshot(self.index)
        except RuntimeError:
            # cudaMallocAsync has no snapshot; its totals are still right.
            return super().lines()
        return lines_of(segments, graph_pools)

    def trimmable(self) -> int:
        """Returns the bytes of segments without a live block. Others stay, whatever is cached."""
        try:
            segments = snapshot(self.index)
        except RuntimeError:
            return super().trimmable()
        return sum(
            segment["total_size"]
            for segment in segments
            if segment["allocated_size"] == 0 and pool_of(segment) == ORDINARY
        )

    def why_not_trim(self) -> str | None:
        module = initialised()
        if module is None or not capturing(module):
            return None
        return "a CUDA graph is being captured: emptying the cache does nothing until it ends"

    def trim(self) -> int:
        module = initialised()
        if module is None:
            return 0
        before = self.counts().reserved_bytes
        getattr(common_of(module), "empty_cache", module.cuda.empty_cache)()
        after = self.counts()
        if after.reserved_bytes >= before and after.reserved_bytes > after.allocated_bytes:
            self._check_trimmed()
        return max(0, before - after.reserved_bytes)

    def _check_trimmed(self) -> None:
        """Raises RuntimeError if segments that are wholly free were not returned to the driver.

        An active pool makes a trim do nothing, and nothing tells beforehand but a look at every object,
        which takes longer than the trim. A pool that torch's C functions activated leaves no trace in
        Python at all.
        """
        try:
            segments = snapshot(self.index)
        except RuntimeError:
            return
        ordinary = [segment for segment in segments if pool_of(segment) == ORDINARY]
        free = sum(segment["total_size"] for segment in ordinary if segment["active_size"] == 0)
        if free == 0:
            return
        module = initialised()
        if module is not None and pools_in_use(module):
            why = "a torch.cuda.MemPool is active: emptying the cache does nothing until it ends"
        else:
            why = "a memory pool is active or a graph is being captured in another thread"
        raise RuntimeError(
            f"{free} bytes are wholly free and were not returned to the driver: {why}"
        )

    def settings(self) -> list[Setting]:
        return [Fraction(self)] if initialised() is not None else []


def pid_of(other: ProcessUsage) -> int:
    """Returns the number of a process that NVML lists."""
    return int(other.name.removeprefix("pid "))


def current(stats: dict[str, dict[str, dict[str, int]]], what: str) -> int:
    """Returns one number of torch's nested memory statistics."""
    return int(stats.get(what, {}).get("all", {}).get("current", 0))


def capturing(module: Torch) -> bool:
    """Returns whether a graph is being captured, on this thread's stream or on torch's capture
    stream.

    The capture stream is asked as well, because another thread may be capturing on it.
    """
    cuda = module.cuda
    try:
        if cuda.is_current_stream_capturing():
            return True
        stream = vars(cuda.graph).get("default_capture_stream")
        if stream is None:
            return False
        # This changes only what this thread takes for the current stream; no work is issued.
        with cuda.stream(stream):
            return bool(cuda.is_current_stream_capturing())
    except RuntimeError:
        # CUDA refuses the query where a capture forbids it.
        return True


def pools_in_use(module: Torch) -> bool:
    """Returns whether somebody is inside `torch.cuda.use_mem_pool`: its generator is then
    suspended."""
    entry = getattr(module.cuda, "use_mem_pool", None)
    inside = getattr(getattr(entry, "__wrapped__", None), "__code__", None)
    if inside is None:
        return False
    return any(one.gi_code is inside and has_begun(one) for one in objects_of(GeneratorType))


class Fraction(Setting):
    """The share of the device that torch's allocator may take, lowered to what is live."""

    def __init__(self, device: CudaDevice) -> None:
        self.name = f"{device.name} allocator fraction"
        self._device = device

    def lower(self) -> Callable[[], None]:
        module, index = initialised(), self._device.index
        if module is None:
            raise RuntimeError("torch has not initialised CUDA")
        memory = module.cuda.memory
        ask = getattr(memory, "get_per_process_memory_fraction", None)
        if ask is None:
            raise RuntimeError("this torch cannot report the fraction, so it could not be restored")
        before = float(ask(index))
        total = int(module.cuda.get_device_properties(index).total_memory)
        live = self._device.counts().allocated_bytes
        memory.set_per_process_memory_fraction(min(before, live / total), index)

        def restore() -> None:
            # torch keeps whole bytes, rounded down: half a byte more, and none is lost on the way.
            memory.set_per_process_memory_fraction(min(1.0, before + 0.5 / total), index)

        return restore

    def reset_statistics(self) -> None:
        module = initialised()
        if module is not None:
            module.cuda.reset_peak_memory_stats(self._device.index)
            module.cuda.reset_accumulated_memory_stats(self._device.index)
