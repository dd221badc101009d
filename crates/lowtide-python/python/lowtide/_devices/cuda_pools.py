"""The segments and memory pools of torch's CUDA allocator.

The ledger shows captured graphs on their own line (R22), so each segment's pool has to be told
apart: the ordinary one, one that graphs use, or a `MemPool` of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from .._native import LedgerKind, LedgerLine, tag_at
from .._runtime.heap import objects_of
from .._runtime.torch import Torch, torch
from .device import ledger_lines

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class PoolId(NamedTuple):
    """torch's id of a memory pool. A capture makes (n, 0), a `MemPool` or a shared handle (0, n)."""

    first: int
    second: int


ORDINARY = PoolId(0, 0)


class Segment(TypedDict):
    """The part of an entry of `torch.cuda.memory_snapshot()` that lowtide reads."""

    device: int
    allocated_size: int
    active_size: int
    total_size: int
    address: NotRequired[int]
    segment_pool_id: NotRequired[tuple[int, int]]


def initialised() -> Torch | None:
    """Returns torch if the program has initialised CUDA in this process, else `None`."""
    module = torch()
    return module if module is not None and module.cuda.is_initialized() else None


def snapshot(device: int | None = None) -> list[Segment]:
    """Returns the allocator's segments, without the traces that make a snapshot slow.

    Raises RuntimeError where the allocator has no snapshot, such as cudaMallocAsync.
    """
    module = initialised()
    if module is None:
        return []
    try:
        segments: list[Segment] = module.cuda.memory_snapshot(include_traces=False)
    except TypeError:
        segments = module.cuda.memory_snapshot()
    return [segment for segment in segments if device is None or segment["device"] == device]


def pool_of(segment: Segment) -> PoolId:
    """Returns the pool that a segment belongs to."""
    first, second = segment.get("segment_pool_id", ORDINARY)
    return PoolId(int(first), int(second))


def pool_of_graph(module: Torch, graph: object) -> PoolId | None:
    """Returns the pool of a captured graph, or `None` if nothing was captured yet."""
    try:
        first, second = module._C._CUDAGraph.pool(graph)
    except RuntimeError:
        return None
    return PoolId(int(first), int(second))


def graph_pools() -> set[PoolId]:
    """Returns the pools that captured graphs in this process use. Looks at every object."""
    module: Torch = torch()
    base = getattr(module._C, "_CUDAGraph", None)
    if base is None:
        return set()
    pools = (pool_of_graph(module, one) for one in objects_of(base))
    return {pool for pool in pools if pool is not None}


def lines_of(segments: list[Segment], graph_pools: Callable[[], set[PoolId]]) -> list[LedgerLine]:
    """Returns the ledger lines of some segments. The pool of captured graphs is one line."""
    allocated: dict[PoolId, int] = {}
    total: dict[PoolId, int] = {}
    tagged: dict[str, tuple[int, int]] = {}
    for segment in segments:
        pool = pool_of(segment)
        tag = None if pool == ORDINARY else tag_at(segment.get("address", 0))
        if tag is not None:
            name, is_asleep = tag
            live, whole = tagged.get(name, (0, 0))
            # torch does not know that a segment sleeps: then it has nothing on the device.
            if not is_asleep:
                live, whole = live + segment["allocated_size"], whole + segment["total_size"]
            tagged[name] = live, whole
            continue
        allocated[pool] = allocated.get(pool, 0) + segment["allocated_size"]
        total[pool] = total.get(pool, 0) + segment["total_size"]
    # Whether graphs share a (0, n) pool is known only from the graphs, and finding them costs a
    # look at every object.
    shared = any(pool.first == 0 and pool != ORDINARY for pool in total)
    captured = graph_pools() if shared else set()
    lines = []
    for pool in sorted(total):
        cached = total[pool] - allocated[pool]
        number = f"({pool.first}, {pool.second})"
        if pool == ORDINARY:
            lines += ledger_lines("torch", allocated[pool], cached)
        elif pool.first != 0 or pool in captured:
            name = f"captured graphs, pool {number}"
            lines.append(LedgerLine(LedgerKind.GRAPHS, name, total[pool]))
        else:
            lines += ledger_lines(f"torch MemPool {number}", allocated[pool], cached)
    for name, (live, whole) in sorted(tagged.items()):
        lines += ledger_lines(f"tag {name}", live, whole - live)
    return lines
