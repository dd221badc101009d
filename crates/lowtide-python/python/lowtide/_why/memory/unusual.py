"""Less common holders of device memory: tensor subclasses with their own dispatch, opaque tensors,
packed parameters, captured graphs, memory pools and CuPy arrays. Each is asked on its own, slowly and carefully.
"""

from __future__ import annotations

from typing import NamedTuple

from ..._devices.cuda_pools import PoolId, pool_of, pool_of_graph, snapshot
from ..._native import Memory, MemoryKind
from ..._runtime.torch import Tensor, Torch, tensor_base
from .parts import packed_bytes


class Pool(NamedTuple):
    """A memory pool of torch: its device, and the bytes in it that are in no live block."""

    device: str
    free_bytes: int


Pools = dict[PoolId, Pool]


def wrapper(module: Torch, tensor: Tensor, known: Pools) -> Memory | None:
    """Reads a subclass with its own dispatch through its storage; the subclass itself is not asked.

    One that only wraps other tensors has a storage with a size and no memory. A fake tensor has its
    storage on the meta device.
    """
    base = module._C.StorageBase
    storage = tensor_base(module).untyped_storage(tensor)
    device = str(base.device.__get__(storage))
    if device == "meta" or base.data_ptr(storage) == 0:
        return None
    key, size = base._cdata.__get__(storage), int(base.nbytes(storage))
    return Memory(key, size, device, None, MemoryKind.TENSOR)


def without_storage(module: Torch, tensor: Tensor, known: Pools) -> Memory | None:
    """Reads an opaque tensor of MKL-DNN. Sparse tensors have their memory in their parts."""
    if tensor_base(module).layout.__get__(tensor) is not module._mkldnn:
        return None
    operators = module.ops.mkldnn
    key, size = int(operators.data_ptr(tensor)), int(operators._nbytes(tensor))
    device = str(tensor_base(module).device.__get__(tensor))
    return Memory(key, size, device, None, MemoryKind.ARRAY)


def packed(module: Torch, one: object, known: Pools) -> Memory | None:
    """Reads packed parameters of a quantised module, as far as they are no tensors."""
    of = type(one).__mro__
    if module._C.ScriptObject not in of or module._C.ScriptModule in of:
        return None
    # Two Python objects of the same parameters have the same hash.
    key = 1 << 62 | module._C.ScriptObject.__hash__(one) & ((1 << 62) - 1)
    return Memory(key, packed_bytes(module, one), "cpu", None, MemoryKind.ARRAY)


def pools() -> Pools:
    """Returns what each of torch's pools holds beside live blocks. Live blocks belong to tensors."""
    found: Pools = {}
    for segment in snapshot():
        key = pool_of(segment)
        before = found[key].free_bytes if key in found else 0
        unused = segment["total_size"] - segment["allocated_size"]
        found[key] = Pool(f"cuda:{segment['device']}", before + unused)
    return found


def graph(module: Torch, one: object, known: Pools) -> Memory | None:
    """Reads the pool of a captured graph."""
    key = pool_of_graph(module, one)
    return None if key is None else _of_pool(key, known, MemoryKind.GRAPH)


def pool(module: Torch, one: object, known: Pools) -> Memory | None:
    """Reads a `torch.cuda.MemPool`."""
    first, second = module._C._MemPool.id.__get__(one)
    return _of_pool(PoolId(int(first), int(second)), known, MemoryKind.POOL)


def _of_pool(pool: PoolId, known: Pools, kind: MemoryKind) -> Memory | None:
    if pool not in known:
        return None
    # No storage has such an address, and all graphs that share the pool get the same key.
    key = 1 << 63 | pool.first << 31 | pool.second
    return Memory(key, known[pool].free_bytes, known[pool].device, None, kind)


def array(module: Torch, one: Tensor, known: Pools) -> Memory | None:
    """Reads a CuPy array. Memory that it only borrows, such as torch's through DLPack, is left out."""
    memory = one.data.mem
    if type(memory).__name__ not in ("Memory", "PooledMemory", "MemoryAsync"):
        return None
    device = f"cuda:{int(memory.device_id)}"
    return Memory(int(memory.ptr), int(memory.size), device, None, MemoryKind.ARRAY)
