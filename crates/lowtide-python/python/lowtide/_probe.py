"""Which objects hold device memory, how much of which, and whether native code holds it too.

The walk over the heap hands over every object of the few types that can; the answer names the memory
by its storage, so that views share it. Nothing of the user's runs: torch's dispatch to subclasses and
modes is off meanwhile, attributes are read through the descriptors of torch's base classes, and a
subclass that is only a wrapper around other tensors is taken for what it is, nothing. It has to be
quick, and it leaves nothing behind: torch keeps the Python object of a storage for as long as the
storage lives, so none is made for each tensor (see `_sizes`).
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from ._autograd import autograd_edges
from ._torch import UNREADABLE, torch

__all__ = ["Memory", "autograd_edges", "candidate_types", "probe"]


Memory = tuple[int, int, str, int | None, str]
"""What one object holds: key, bytes, device, native, kind.

`key` is which memory, the same for all that share it. `native` is how many holders it has in native
code beyond the objects that were asked about and beyond what these explain (a view explains its
base), the same for all that share it, and `None` where that is not known. Autograd counts as native
code: `autograd_edges` tells what of it is its. `kind` is "tensor", "storage", "graph", "pool" or
"array". A plain tuple, because there may be a hundred thousand.
"""


def candidate_types() -> list[type]:
    """The types, with their subclasses, whose objects `probe` knows; those that are imported."""
    types: list[type] = []
    module = torch()
    if module is not None:
        types += [module.Tensor, module.UntypedStorage]
        types += [one for one, _ in _pool_types(module)]
    cupy = sys.modules.get("cupy")
    array = getattr(cupy, "ndarray", None)
    if isinstance(array, type):
        types.append(array)
    return types


def probe(objects: list[Any]) -> list[Memory | None]:
    """For each object the device memory that it holds, or `None` where it holds none."""
    # A collection that begins in the middle runs finalizers of the user's, and walks over everything
    # that is being asked about.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _probe(objects)
    finally:
        if collects:
            gc.enable()


def _probe(objects: list[Any]) -> list[Memory | None]:
    module = torch()
    answers: list[Memory | None] = [None] * len(objects)
    kinds: dict[type, str | None] = {}
    rare: list[tuple[int, str]] = []
    if module is None:
        _sort(objects, kinds, _bases(None), rare)
        _rare(None, objects, rare, answers)
        return answers
    # Both: subclasses' and modes' functions, and what dispatches beneath them.
    with module._C.DisableTorchFunction(), module._C._DisableTorchDispatch():
        plain = _sort(objects, kinds, _bases(module), rare)
        own = module._C.TensorBase._fix_weakref
        for i in plain:
            # Found in a list, not handed out by torch: where native code owns a tensor's object, torch
            # has to hear that somebody else has it too, or the tensor ends under it.
            own(objects[i])
        memories = _Memories(module)
        memories.add(objects, plain, rare)
        memories.add_storages([(i, objects[i]) for i, kind in rare if kind == "storage"])
        memories.fill(objects, answers)
        _rare(module, objects, rare, answers)
    return answers


def _bases(module: Any | None) -> list[tuple[type, str]]:
    bases: list[tuple[type, str]] = []
    if module is not None:
        bases = [(module._C.TensorBase, "tensor"), (module._C.StorageBase, "storage")]
        bases += _pool_types(module)
    array = getattr(sys.modules.get("cupy"), "ndarray", None)
    return [*bases, (array, "array")] if isinstance(array, type) else bases


def _pool_types(module: Any) -> list[tuple[type, str]]:
    native = [("_CUDAGraph", "graph"), ("_MemPool", "pool")]
    found = [(getattr(module._C, name, None), kind) for name, kind in native]
    return [(one, kind) for one, kind in found if isinstance(one, type)]


def _sort(
    objects: list[Any],
    kinds: dict[type, str | None],
    bases: list[tuple[type, str]],
    rare: list[tuple[int, str]],
) -> list[int]:
    """Which objects are plain tensors; the others that matter go to `rare`."""
    plain = []
    for i, one in enumerate(objects):
        of = type(one)
        try:
            kind = kinds[of]
        except KeyError:
            kind = kinds[of] = _kind(of, bases)
        if kind == "plain":
            plain.append(i)
        elif kind is not None:
            rare.append((i, kind))
    return plain


def _kind(of: type, bases: list[tuple[type, str]]) -> str | None:
    # As `type` has it: a metaclass may answer otherwise.
    ancestors = type.__dict__["__mro__"].__get__(of)
    for base, kind in bases:
        if base in ancestors:
            if kind != "tensor":
                return kind
            # A subclass with its own dispatch may be a wrapper, and may answer for its device itself.
            for ancestor in ancestors:
                own = vars(ancestor).get("__torch_dispatch__")
                if own is not None:
                    disabled = getattr(own, "__name__", "") == "_disabled_torch_dispatch_impl"
                    return "plain" if disabled or ancestor is base else "wrapper"
            return "plain"
    return None


class _Memories:
    """The storages behind some tensors, and how many holders each has.

    Dicts of plain numbers, one per column: a small object per storage would have the collector run
    over the whole heap again and again while it is asked about.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._devices: dict[Any, str | None] = {}
        self._device: dict[int, str | None] = {}
        self._size: dict[int, int] = {}
        self._native: dict[int, int] = {}
        # Positions of the objects that hold something, and what: tensors first, then storages.
        self._at: list[int] = []
        self._key: list[int] = []
        self._tensors = 0

    def add(self, objects: list[Any], plain: list[int], rare: list[tuple[int, str]]) -> None:
        c = self._module._C
        storage_id, storage_uses = c._storage_id, c._storage_Use_Count
        tensor_uses, device_of = c.TensorBase._use_count, c.TensorBase.device.__get__
        native, first = self._native, []
        at, keys = self._at, self._key
        for i in plain:
            tensor = objects[i]
            try:
                key = storage_id(tensor)
            except UNREADABLE:
                rare.append((i, "strange"))  # Sparse, opaque, or inside a function transform.
                continue
            # The tensor is one of the storage's holders, and its object one of the tensor's.
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

    def add_storages(self, storages: list[tuple[int, Any]]) -> None:
        c = self._module._C
        base = c.StorageBase
        for i, storage in storages:
            try:
                key, size = base._cdata.__get__(storage), base.nbytes(storage)
                device = self._name(base.device.__get__(storage))
                if device is None or base.data_ptr(storage) == 0:
                    size = 0
                uses = c._storage_Use_Count(key)
            except UNREADABLE:
                continue  # A storage that forbids to be looked at holds nothing of its own.
            self._device.setdefault(key, device)
            self._size.setdefault(key, size)
            self._native[key] = self._native.get(key, uses) - 1
            self._at.append(i)
            self._key.append(key)

    def _name(self, device: Any) -> str | None:
        try:
            return self._devices[device]
        except KeyError:
            name = str(device)
            self._devices[device] = None if name == "meta" else name
            return self._devices[device]

    def fill(self, objects: list[Any], answers: list[Memory | None]) -> None:
        self._explain(objects)
        kind = "tensor"
        for position, (i, key) in enumerate(zip(self._at, self._key)):
            if position == self._tensors:
                kind = "storage"
            device, size, native = self._device[key], self._size[key], self._native[key]
            if size > 0 and device is not None:
                answers[i] = (key, size, device, max(0, native), kind)

    def _explain(self, objects: list[Any]) -> None:
        """Takes off the counts what is no holder in native code: the base of a view, and a storage's
        own Python object that nobody was told of."""
        native, base = self._native, self._module._C.TensorBase
        if not any(more > 0 for more in native.values()):
            return
        is_view, base_of = base._is_view, base._base.__get__
        asked = set(map(id, objects))
        bases: dict[int, int] = {}
        for i, key in zip(self._at[: self._tensors], self._key):
            if native[key] > 0 and is_view(objects[i]):
                of = base_of(objects[i])
                if id(of) not in asked:
                    # It is a holder of the storage, whichever of its views is asked.
                    own = base._cdata.__get__(of)
                    if own in bases:
                        continue
                    bases[own] = key
                native[key] -= 1
        self._explain_own_objects(objects, list(bases.values()))

    def _explain_own_objects(self, objects: list[Any], bases: list[int]) -> None:
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
            # Only where something beside the tensors holds the storage. Its own object is one holder
            # more from when it is first asked for; asking again changes nothing. So it was there
            # before if the count stays the same.
            before = uses(key)
            if before > holders[key]:
                storage = self._module._C.TensorBase.untyped_storage(objects[i])
                native[key] -= 1 if uses(key) == before else 0
                del storage


_size_at: list[int | None] = []


def _sizes(module: Any, keys: list[int], tensors: list[Any]) -> dict[int, int]:
    """The sizes of some storages, each with a tensor over it.

    torch's way is through the storage's Python object, which it makes at the first question and keeps
    from then on: 104 bytes and one object more for the collector per tensor, for good, in a program
    that only asked why its memory is full. The number itself lies at a fixed place in the native
    storage. Where, is found once by three storages of known size; where that is not certain, torch's
    way is taken.
    """
    if not _size_at:
        _size_at.append(_find_size(module))
    at = _size_at[0]
    untyped, nbytes = module._C.TensorBase.untyped_storage, module._C.StorageBase.nbytes
    if at is None:
        return {key: nbytes(untyped(tensor)) for key, tensor in zip(keys, tensors)}
    from ctypes import c_int64

    read = c_int64.from_address
    # A symbolic size is a tagged pointer, and negative; only what has no memory has one.
    return {key: max(0, read(key + at).value) for key in keys}


def _find_size(module: Any) -> int | None:
    from ctypes import c_int64

    try:
        known = [(module.UntypedStorage(size), size) for size in (1_013, 20_011, 7_919)]
        keys = [(storage._cdata, size) for storage, size in known]
    except UNREADABLE:
        return None
    # Behind the table of functions and the counts; within the smallest storage torch ever had.
    places = [
        at
        for at in range(16, 64, 8)
        if all(c_int64.from_address(key + at).value == size for key, size in keys)
    ]
    return places[0] if len(places) == 1 else None


def _rare(
    module: Any | None,
    objects: list[Any],
    rare: list[tuple[int, str]],
    answers: list[Memory | None],
) -> None:
    from . import _probe_rare

    look = {
        "wrapper": _probe_rare.wrapper,
        "strange": _probe_rare.sparse,
        "graph": _probe_rare.graph,
        "pool": _probe_rare.pool,
        "array": _probe_rare.array,
    }
    pools: dict[tuple[int, int], tuple[str, int]] | None = None
    for i, kind in rare:
        if kind == "storage":
            continue
        if kind in ("graph", "pool") and pools is None:
            pools = _probe_rare.pools()
        try:
            found = look[kind](module, objects[i], pools or {})
        except UNREADABLE:
            continue  # What cannot be looked at is left out; nothing is guessed.
        if found is not None and found[1] > 0 and found[2] != "meta":
            answers[i] = found
