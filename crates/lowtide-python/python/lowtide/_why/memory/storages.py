"""The storages behind ordinary tensors: their sizes, their devices, and how many native holders
each has.

torch reports a storage's size through the storage's Python object, which it creates at the first
question and keeps from then on: 104 bytes and one more object for the collector per tensor, for
good, in a program that only asked why its memory is full. The number itself lies at a fixed offset
in the native storage, which is found once with three storages of known size. Where that is not
certain, torch is asked.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from typing import NamedTuple

from ..._native import Memory, MemoryKind
from ..._runtime.torch import UNREADABLE, Tensor, Torch, tensor_base
from .foreign import Place


class Region(NamedTuple):
    """Memory that one storage shows, or several: their first key, and where it begins and ends."""

    key: int
    begin: int
    end: int
    device: str


class Storages:
    """The storages behind some tensors.

    Dicts of plain numbers, one per column: one small object per storage would make the collector
    run over the whole heap again and again.
    """

    def __init__(self, module: Torch) -> None:
        self._module = module
        self._devices: dict[object, str | None] = {}
        self._device: dict[int, str | None] = {}
        self._size: dict[int, int] = {}
        self._native: dict[int, int] = {}
        # Positions of the objects that hold a storage, and its key: tensors first, then storages.
        self._at: list[int] = []
        self._key: list[int] = []
        self._tensors = 0
        # Regions of memory in order, and by the keys of storages that share one.
        self.regions: list[Region] = []
        self._shared: dict[int, Region] = {}

    def add_tensors(self, objects: list[Tensor], tensors: list[int]) -> list[int]:
        """Adds the storages of some tensors. Returns the positions of tensors that have none."""
        c = self._module._C
        storage_id, storage_uses = c._storage_id, c._storage_Use_Count
        base = tensor_base(self._module)
        # A torch that does not count them shows no native references to a tensor, only to storages.
        tensor_uses, device_of = getattr(base, "_use_count", lambda _: 1), base.device.__get__
        native, first, without = self._native, [], []
        at, keys = self._at, self._key
        for i in tensors:
            tensor = objects[i]
            try:
                key = storage_id(tensor)
            except UNREADABLE:
                without.append(i)
                continue
            # The tensor is one of the storage's holders, and its Python object one of the tensor's.
            if key in native:
                native[key] += tensor_uses(tensor) - 2
            else:
                native[key] = storage_uses(key) + tensor_uses(tensor) - 2
                first.append(tensor)
            at.append(i)
            keys.append(key)
        self._tensors = len(keys)
        name = self._name
        self._device = {key: name(device_of(one)) for key, one in zip(native, first)}
        self._size = _sizes(self._module, list(native), first)
        return without

    def add_storages(self, objects: list[Tensor], storages: list[int]) -> None:
        """Adds storages that the program holds as objects."""
        c = self._module._C
        base = c.StorageBase
        for i in storages:
            storage = objects[i]
            try:
                key, size = base._cdata.__get__(storage), base.nbytes(storage)
                device = self._name(base.device.__get__(storage))
                if device is None or base.data_ptr(storage) == 0:
                    size = 0
                uses = c._storage_Use_Count(key)
            except UNREADABLE:
                continue  # A storage that may not be read holds nothing of its own.
            self._device.setdefault(key, device)
            self._size.setdefault(key, size)
            self._native[key] = self._native.get(key, uses) - 1
            self._at.append(i)
            self._key.append(key)

    def _name(self, device: object) -> str | None:
        try:
            return self._devices[device]
        except KeyError:
            name = str(device)
            self._devices[device] = None if name == "meta" else name
            return self._devices[device]

    def fill(self, objects: list[Tensor], answers: list[Memory | None]) -> None:
        """Writes the memory of each object to its position in `answers`."""
        self._subtract_known_holders(objects)
        self._find_shared()
        kind = MemoryKind.TENSOR
        for position, (i, key) in enumerate(zip(self._at, self._key)):
            if position == self._tensors:
                kind = MemoryKind.STORAGE
            device, size, native = self._device[key], self._size[key], self._native[key]
            if size > 0 and device is not None:
                region = self._shared.get(key)
                through = key
                if region is not None:
                    key, size = region.key, region.end - region.begin
                    native = self._native[key]
                answers[i] = Memory(key, size, device, max(0, native), kind, through)

    def _find_shared(self) -> None:
        """Finds storages that show the same memory: `torch.from_numpy`, DLPack, lazy clones.

        Who shows the memory of another keeps it, so that each but one is a known holder.
        """
        at = _offsets(self._module).data
        if at is None:
            return
        from ctypes import c_int64

        read, device = c_int64.from_address, self._device
        known = [key for key, size in self._size.items() if size > 0 and device[key] is not None]
        order = sorted(zip([read(key + at).value for key in known], known))
        regions: list[Region] = []
        for begin, key in order:
            end, last = begin + self._size[key], regions[-1] if regions else None
            if last is None or begin >= last.end or begin == 0 or device[key] != last.device:
                regions.append(Region(key, begin, end, device[key] or ""))
                continue
            regions[-1] = last._replace(end=max(end, last.end))
            self._native[last.key] += self._native[key] - 1
            self._shared[key] = self._shared[last.key] = last
        self.regions = regions
        if self._shared:
            whole = {one.key: one for one in regions}
            self._shared = {key: whole[one.key] for key, one in self._shared.items()}

    def _subtract_known_holders(self, objects: list[Tensor]) -> None:
        """Subtracts holders that are known from the counts of native ones.

        These are the base of a view, and a storage's own Python object.
        """
        native, base = self._native, tensor_base(self._module)
        if not any(more > 0 for more in native.values()):
            return
        is_view, base_of = base._is_view, base._base.__get__
        asked = set(map(id, objects))
        bases: dict[int, int] = {}
        for i, key in zip(self._at[: self._tensors], self._key):
            if native[key] > 0 and is_view(objects[i]):
                of = base_of(objects[i])
                if id(of) not in asked:
                    # It holds the storage once, however many of its views are asked about.
                    own = base._cdata.__get__(of)
                    if own in bases:
                        continue
                    bases[own] = key
                native[key] -= 1
        self._subtract_own_objects(objects, list(bases.values()))

    def _subtract_own_objects(self, objects: list[Tensor], bases: list[int]) -> None:
        native, uses = self._native, self._module._C._storage_Use_Count
        left = {key for key, more in native.items() if more > 0 and self._size[key] > 0}
        left.difference_update(self._key[self._tensors :])
        if not left:
            return
        tensors = {key: i for i, key in zip(self._at[: self._tensors], self._key) if key in left}
        holders = dict.fromkeys(left, 0)
        for key in [*self._key[: self._tensors], *bases]:
            if key in left:
                holders[key] += 1
        for key, i in tensors.items():
            # Only where something beside the tensors holds the storage. The storage's own Python
            # object is one more holder from the first time that it is asked for; asking again
            # changes nothing. So it existed before if the count stays the same.
            before = uses(key)
            if before > holders[key]:
                storage = tensor_base(self._module).untyped_storage(objects[i])
                native[key] -= 1 if uses(key) == before else 0
                del storage


def show(regions: list[Region], place: Place) -> Memory | None:
    """Returns the memory of a storage at a place that another object shows, if there is one."""
    at = bisect_right(regions, place.address, key=lambda one: one.begin) - 1
    if at < 0 or place.address >= regions[at].end or regions[at].device != place.device:
        return None
    region = regions[at]
    size = region.end - region.begin
    return Memory(region.key, size, region.device, None, MemoryKind.SHOWN, place.address | 1)


def are_allocated_by_torch(module: Torch, tensors: list[Tensor]) -> bool:
    """Returns whether torch has allocated the memory of each tensor, which nobody shares: no other tensor and no
    storage. The memory of an array of numpy has another owner."""
    at = _offsets(module)
    if at.data is None or at.owner is None:
        return False
    from ctypes import c_int64

    read, data, owner = c_int64.from_address, at.data, at.owner
    uses, keys = module._C._storage_Use_Count, map(module._C._storage_id, tensors)
    return all(uses(key) == 1 and read(key + data).value == read(key + owner).value for key in keys)


class _Offsets(NamedTuple):
    """Where a native storage has its size, the address of its memory and its owner; `None` if not certain."""

    size: int | None
    data: int | None
    owner: int | None = None


def _sizes(module: Torch, keys: list[int], tensors: list[Tensor]) -> dict[int, int]:
    """Returns the sizes of some storages, each with a tensor over it."""
    at = _offsets(module).size
    untyped, nbytes = tensor_base(module).untyped_storage, module._C.StorageBase.nbytes
    if at is None:
        return {key: nbytes(untyped(tensor)) for key, tensor in zip(keys, tensors)}
    from ctypes import c_int64

    read = c_int64.from_address
    # A symbolic size is a tagged pointer, and negative; such a storage has no memory.
    return {key: max(0, read(key + at).value) for key in keys}


@functools.cache
def _offsets(module: Torch) -> _Offsets:
    from ctypes import c_int64

    try:
        known = [(module.UntypedStorage(size), size) for size in (1_013, 20_011, 7_919)]
        keys = [(storage._cdata, size, storage.data_ptr()) for storage, size in known]
    except UNREADABLE:
        return _Offsets(None, None)
    read = c_int64.from_address
    # Behind the table of functions and the counts, and within the smallest storage torch ever had.
    places = range(16, 64, 8)
    sizes = [at for at in places if all(read(key + at).value == size for key, size, _ in keys)]
    data = [at for at in places if all(read(key + at).value == begin for key, _, begin in keys)]
    # The owner of memory that torch has allocated is known by the same address, and comes behind it.
    owner = data[1] if len(data) == 2 else None
    return _Offsets(sizes[0] if len(sizes) == 1 else None, data[0] if data else None, owner)
