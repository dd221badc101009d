"""The rarer holders of device memory: subclasses of tensors with their own dispatch, sparse tensors,
captured graphs, memory pools, and CuPy's arrays. Each is looked at on its own, slowly and carefully.
"""

from __future__ import annotations

from typing import Any

Pools = dict[tuple[int, int], tuple[str, int]]
"""torch's memory pools: which device, and how many bytes in it nobody has."""
Found = tuple[int, int, str, int | None, str]


def wrapper(module: Any, tensor: Any, _: Pools) -> Found | None:
    """A subclass with its own dispatch: asked through its storage, never itself. One that only wraps
    other tensors has a storage with a size and no memory; a fake one has it on the meta device."""
    base = module._C.StorageBase
    storage = module._C.TensorBase.untyped_storage(tensor)
    device = str(base.device.__get__(storage))
    if device == "meta" or base.data_ptr(storage) == 0:
        return None
    return base._cdata.__get__(storage), int(base.nbytes(storage)), device, None, "tensor"


def sparse(module: Any, tensor: Any, _: Pools) -> Found | None:
    """A sparse tensor has its numbers and their places in storages of their own; the memory is named
    by the numbers'. What is opaque, or inside a function transform, cannot be seen."""
    of = module._C.TensorBase
    layout = of.layout.__get__(tensor)
    if layout is module.sparse_coo:
        parts = [of._values(tensor), of._indices(tensor)]
    elif layout in (module.sparse_csr, module.sparse_bsr):
        parts = [of.values(tensor), of.crow_indices(tensor), of.col_indices(tensor)]
    elif layout in (module.sparse_csc, module.sparse_bsc):
        parts = [of.values(tensor), of.ccol_indices(tensor), of.row_indices(tensor)]
    else:
        return None
    storages = [of.untyped_storage(part) for part in parts]
    sizes = {one._cdata: int(module._C.StorageBase.nbytes(one)) for one in storages}
    device = str(of.device.__get__(tensor))
    return storages[0]._cdata, sum(sizes.values()), device, None, "tensor"


def pools() -> Pools:
    """What each of torch's pools holds beside the blocks that somebody has. Those blocks are their
    tensors' business."""
    from ._cuda import pool_of, snapshot

    free: dict[tuple[int, int], tuple[str, int]] = {}
    for segment in snapshot():
        key = pool_of(segment)
        before = free.get(key, ("", 0))[1]
        unused = segment["total_size"] - segment["allocated_size"]
        free[key] = (f"cuda:{segment['device']}", before + unused)
    return free


def graph(module: Any, one: Any, known: Pools) -> Found | None:
    from ._cuda import pool_of_graph

    key = pool_of_graph(module, one)
    return None if key is None else _of_pool(key, known, "graph")


def pool(module: Any, one: Any, known: Pools) -> Found | None:
    first, second = module._C._MemPool.id.__get__(one)
    return _of_pool((int(first), int(second)), known, "pool")


def _of_pool(key: tuple[int, int], known: Pools, kind: str) -> Found | None:
    if key not in known:
        return None
    device, free = known[key]
    # Where no storage's address is; the same for all graphs that share the pool.
    return 1 << 63 | key[0] << 31 | key[1], free, device, None, kind


def array(_: Any, one: Any, __: Pools) -> Found | None:
    """A CuPy array. Memory that it only borrows, as torch's through DLPack, is its owner's."""
    memory = one.data.mem
    if type(memory).__name__ not in ("Memory", "PooledMemory", "MemoryAsync"):
        return None
    return int(memory.ptr), int(memory.size), f"cuda:{int(memory.device_id)}", None, "array"
