"""CUDA (and ROCm, which torch calls by the same names) as a device.

The driver's numbers come from NVML by UUID, because torch's index is not NVML's under
CUDA_VISIBLE_DEVICES, and because NVML needs no context. torch's own question makes one, so it is
only asked where there is one already. The ledger shows captured graphs apart (R22).
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable
from typing import Any

from ._rungs.hook import Setting
from ._torch import UNREADABLE, Device, ledger_lines, torch

Pool = tuple[int, int]
"""torch's name of a memory pool; (0, 0) is the ordinary one."""

SILENT = (*UNREADABLE, OSError, LookupError, ImportError)
"""What comes where NVML cannot be asked: no library, no such device, no native module."""


class CudaDevice(Device):
    kind = "cuda"

    def __init__(self, name: str, index: int) -> None:
        super().__init__(name, index)
        self._uuid: str | None = None

    def uuid(self) -> str:
        """As NVML spells it. Asked of torch once it is initialised, of NVML through torch before."""
        if self._uuid is None:
            module: Any = torch()
            if module.cuda.is_initialized():
                bare = str(module.cuda.get_device_properties(self.index).uuid)
                self._uuid = bare if bare.startswith(("GPU-", "MIG-")) else f"GPU-{bare}"
            else:
                position = module.cuda._get_nvml_device_index(self.index)
                self._uuid = module.cuda._raw_device_uuid_nvml()[position]
        return self._uuid

    def _nvml(self) -> tuple[int, int, int | None, list[tuple[str, int]]]:
        from . import _native

        total, free, own, others = _native.nvml_usage(self.uuid())
        return total, free, own, others

    def usage(self) -> tuple[int, int]:
        try:
            return self._nvml()[:2]
        except SILENT as unreadable:
            module: Any = torch()
            if not self.has_context():
                raise RuntimeError(
                    f"NVML does not tell of {self.name} ({unreadable}), and asking CUDA would create"
                    " a context: use the device once, or install the driver's NVML library"
                ) from unreadable
            free, total = module.cuda.mem_get_info(self.index)
            return int(total), int(free)

    def own(self) -> int | None:
        try:
            return self._nvml()[2]
        except SILENT:
            return None

    def others(self) -> list[tuple[str, int]]:
        try:
            return self._nvml()[3]
        except SILENT:
            return []

    def has_context(self) -> bool:
        """Whether this process has a context on the device; asking makes none."""
        module = initialised()
        if module is None:
            return False
        ask = getattr(module._C, "_cuda_hasPrimaryContext", None)
        return True if ask is None else bool(ask(self.index))

    def synchronize(self) -> None:
        module = initialised()
        if module is None or not self.has_context():
            return
        # To wait for the device ends a capture that another thread is at, with an error there.
        if capturing(module):
            raise RuntimeError("a CUDA graph is being captured, and waiting would spoil it")
        module.accelerator.synchronize(self.index)

    def counts(self) -> tuple[int, int]:
        module = initialised()
        if module is None:
            return 0, 0
        # Nested, as torch has them: flattening the whole table costs more than reading it.
        stats = module.cuda.memory_stats_as_nested_dict(self.index)
        return current(stats, "allocated_bytes"), current(stats, "reserved_bytes")

    def lines(self) -> list[tuple[str, str, int]]:
        try:
            segments = [one for one in snapshot() if one["device"] == self.index]
        except RuntimeError:
            # cudaMallocAsync has no snapshot; its totals are still true.
            return super().lines()
        return lines_of(segments, graph_pools)

    def why_not_trim(self) -> str | None:
        module = initialised()
        if module is None:
            return None
        if capturing(module):
            return "a CUDA graph is being captured: emptying the cache does nothing until it ends"
        allocated, reserved = self.counts()
        if reserved > allocated and pools_in_use(module):
            return "a torch.cuda.MemPool is active: emptying the cache does nothing until it ends"
        return None

    def trim(self) -> int:
        module = initialised()
        if module is None:
            return 0
        before = self.counts()[1]
        getattr(module.accelerator, "empty_cache", module.cuda.empty_cache)()
        allocated, after = self.counts()
        if after >= before and after > allocated:
            self._refuse_inert()
        return max(0, before - after)

    def _refuse_inert(self) -> None:
        # A pool made active by torch's own C functions leaves no trace in Python, but segments that
        # are wholly free and were not given back tell.
        try:
            segments = [one for one in snapshot() if one["device"] == self.index]
        except RuntimeError:
            return
        ordinary = [one for one in segments if pool_of(one) == (0, 0)]
        free = sum(one["total_size"] for one in ordinary if one["active_size"] == 0)
        if free > 0:
            raise RuntimeError(
                f"{free} bytes are wholly free and were not given back: a memory pool is active or a"
                " graph is being captured in another thread"
            )

    def settings(self) -> list[Setting]:
        return [Fraction(self)] if initialised() is not None else []


def initialised() -> Any | None:
    """torch, where the program has initialised CUDA in this very process; else `None`."""
    module = torch()
    return module if module is not None and module.cuda.is_initialized() else None


def current(stats: Any, what: str) -> int:
    return int(stats.get(what, {}).get("all", {}).get("current", 0))


def capturing(module: Any) -> bool:
    """Whether a capture is under way on this thread's stream, or on the one that torch takes for
    captures, whichever thread is at it."""
    cuda = module.cuda
    try:
        if cuda.is_current_stream_capturing():
            return True
        stream = vars(cuda.graph).get("default_capture_stream")
        if stream is None:
            return False
        # Only this thread's notion of the current stream changes; no work is issued.
        with cuda.stream(stream):
            return bool(cuda.is_current_stream_capturing())
    except RuntimeError:
        # CUDA refuses the question itself where the answer is that a capture forbids it.
        return True


def pools_in_use(module: Any) -> bool:
    """Whether anybody is inside `torch.cuda.use_mem_pool`: its generator is then suspended."""
    entry = getattr(module.cuda, "use_mem_pool", None)
    inside = getattr(getattr(entry, "__wrapped__", None), "__code__", None)
    if inside is None:
        return False
    for one in gc.get_objects():
        if type(one) is types.GeneratorType and one.gi_code is inside and suspended(one):
            return True
    return False


def suspended(generator: Any) -> bool:
    """Whether it was begun and has not ended."""
    told = getattr(generator, "gi_suspended", None)  # From Python 3.11 on.
    if told is not None:
        return bool(told)
    frame = generator.gi_frame
    return frame is not None and frame.f_lasti >= 0


def snapshot() -> list[dict[str, Any]]:
    """The allocator's segments on every device, without the traces that make it slow."""
    module = initialised()
    if module is None:
        return []
    try:
        segments = module.cuda.memory_snapshot(include_traces=False)
    except TypeError:
        segments = module.cuda.memory_snapshot()
    return list(segments)


def pool_of(segment: dict[str, Any]) -> Pool:
    first, second = segment.get("segment_pool_id", (0, 0))
    return int(first), int(second)


def graph_pools() -> set[Pool]:
    """The pools that captured graphs in this process use."""
    module: Any = torch()
    base = getattr(module._C, "_CUDAGraph", None)
    if base is None:
        return set()
    is_graph: dict[type, bool] = {}  # There are few types, and each is looked at once.
    pools = set()
    for one in gc.get_objects():
        of = type(one)
        if of not in is_graph:
            is_graph[of] = base in type.__dict__["__mro__"].__get__(of)
        if is_graph[of] and (pool := pool_of_graph(module, one)) is not None:
            pools.add(pool)
    return pools


def pool_of_graph(module: Any, graph: object) -> Pool | None:
    try:
        first, second = module._C._CUDAGraph.pool(graph)
    except RuntimeError:
        return None  # Nothing was captured yet.
    return int(first), int(second)


def lines_of(
    segments: list[dict[str, Any]], graph_pools: Callable[[], set[Pool]]
) -> list[tuple[str, str, int]]:
    """The ledger of some segments: a captured graph's pool is one line, whatever is in it."""
    sizes: dict[Pool, list[int]] = {}
    for segment in segments:
        size = sizes.setdefault(pool_of(segment), [0, 0])
        size[0] += segment["allocated_size"]
        size[1] += segment["total_size"]
    # (n, 0) is made by a capture. (0, n) is a MemPool or a handle that graphs share: only the graphs
    # that are there tell which, and looking for them costs a walk over all objects.
    shared = any(pool[0] == 0 and pool[1] != 0 for pool in sizes)
    captured = graph_pools() if shared else set()
    lines = []
    for pool in sorted(sizes):
        allocated, total = sizes[pool]
        if pool == (0, 0):
            lines += ledger_lines("torch", allocated, total - allocated)
        elif pool[0] != 0 or pool in captured:
            lines.append(("graphs", f"captured graphs, pool {pool}", total))
        else:
            lines += ledger_lines(f"torch MemPool {pool}", allocated, total - allocated)
    return lines


class Fraction(Setting):
    """The share of the device that torch's allocator may take: lowered to what is live."""

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
            raise RuntimeError("this torch does not tell the fraction, so it could not come back")
        before = float(ask(index))
        total = int(module.cuda.get_device_properties(index).total_memory)
        memory.set_per_process_memory_fraction(min(before, self._device.counts()[0] / total), index)

        def restore() -> None:
            # torch keeps whole bytes, rounded down: half a byte more, and none is lost on the way.
            memory.set_per_process_memory_fraction(min(1.0, before + 0.5 / total), index)

        return restore

    def reset_statistics(self) -> None:
        module = initialised()
        if module is not None:
            module.cuda.reset_peak_memory_stats(self._device.index)
            module.cuda.reset_accumulated_memory_stats(self._device.index)
