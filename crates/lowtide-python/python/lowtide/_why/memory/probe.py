"""Which objects hold device memory, how much, and whether native code holds it too.

The native walk passes in every object of the few types that can hold memory. The answer identifies
memory by its storage, so that views share it.

No code of the program runs: torch's dispatch to subclasses and modes is switched off meanwhile,
attributes are read through the descriptors of torch's base classes, and a subclass that only wraps
other tensors holds nothing itself. The probe has to be fast, and it leaves nothing behind: torch
keeps the Python object of a storage for as long as the storage lives, so the probe creates none
(see `storages.py`).
"""

from __future__ import annotations

import gc
import sys
from enum import Enum

from ..._native import Memory
from ..._runtime.torch import UNREADABLE, Tensor, Torch, tensor_base, torch
from . import foreign, unusual
from .parts import parts_of, work_type
from .storages import Region, Storages, are_allocated_by_torch, show


class Form(Enum):
    """How an object is asked for its memory."""

    TENSOR = "an ordinary tensor"
    WRAPPER = "a tensor subclass with its own dispatch"
    WITHOUT_STORAGE = "a tensor without one storage: sparse, opaque, or inside a function transform"
    STORAGE = "a storage"
    GRAPH = "a captured graph"
    POOL = "a memory pool"
    ARRAY = "an array of CuPy"
    SCRIPTED = "an object with tensors in native code: a scripted module, a future, a collective"
    SHOWN = "a capsule of DLPack, or a buffer of Arrow"


_Others = list[tuple[int, Form]]
"""The positions of objects that are no ordinary tensors, and what each is."""
_Bases = list[tuple[type, Form]]
"""Base classes, and how objects of their subclasses are asked."""


def candidate_types() -> list[type]:
    """Returns the types whose objects `probe` knows, subclasses included, as far as imported."""
    types: list[type] = []
    module = torch()
    if module is not None:
        types += [module.Tensor, module.UntypedStorage]
        types += [one for one, _ in (*_pool_types(module), *_scripted_types(module))]
    array = _cupy_array()
    types += foreign.asked_types() + foreign.table_types()
    # Which capsules hold tensors, the walk sees by their names.
    types += [one for one in foreign.buffer_types() if one is not foreign.CAPSULE]
    return types if array is None else [*types, array]


def bytes_on(objects: list[object], device: str) -> int:
    """Returns how much of a device's memory some objects hold, each piece of memory counted once."""
    module = torch()
    inside: list[Tensor] = []
    if module is not None:
        with module._C.DisableTorchFunction(), module._C._DisableTorchDispatch():
            inside = [part for one in objects for part in parts_of(module, one)]
    held = [one for one in probe([*objects, *inside]) if one is not None and one.device == device]
    return sum({one.key: one.bytes for one in held}.values())


def have_own_memory(objects: list[Tensor]) -> bool:
    """Returns whether these are ordinary tensors, each with memory that torch has allocated for it. The base of a
    view may have other holders, and so may an array of numpy; their references are not on the tensor."""
    module, others = torch(), list[tuple[int, Form]]()
    if module is None:
        return not objects
    is_view = tensor_base(module)._is_view
    with module._C.DisableTorchFunction(), module._C._DisableTorchDispatch():
        tensors = [objects[i] for i in _sort(objects, _bases(module), others)]
        try:
            is_own = not any(map(is_view, tensors)) and are_allocated_by_torch(module, tensors)
        except UNREADABLE:
            return False
    return is_own and not others


def probe(objects: list[Tensor], regions: list[Region] | None = None) -> list[Memory | None]:
    """Returns for each object the device memory that it holds, or `None` if it holds none.

    `regions` are places of storages that are known already. Those of these objects are added.
    """
    # A collection in the middle would run finalizers of the program, and would walk over everything
    # that is being asked about.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _probe(objects, [] if regions is None else regions)
    finally:
        if collects:
            gc.enable()


def _probe(objects: list[Tensor], regions: list[Region]) -> list[Memory | None]:
    module = torch()
    answers: list[Memory | None] = [None] * len(objects)
    others: _Others = []
    if module is None:
        _sort(objects, _bases(None), others)
        _probe_others(None, objects, others, answers)
        return answers
    # Both: functions of subclasses and modes, and what dispatches beneath them.
    with module._C.DisableTorchFunction(), module._C._DisableTorchDispatch():
        tensors = _sort(objects, _bases(module), others)
        own = tensor_base(module)._fix_weakref
        for i in tensors:
            # The walk found this object by its address; torch did not hand it out. Where native
            # code owns a tensor's Python object, torch has to be told of the new reference, or the
            # tensor is freed while we use it.
            own(objects[i])
        storages = Storages(module)
        without = storages.add_tensors(objects, tensors)
        others += [(i, Form.WITHOUT_STORAGE) for i in without]
        storages.add_storages(objects, [i for i, form in others if form is Form.STORAGE])
        storages.fill(objects, answers)
        _probe_others(module, objects, others, answers)
        if len(storages.regions) > len(regions):
            regions[:] = storages.regions
        for i, form in others:
            place = foreign.place_of(objects[i]) if form is Form.SHOWN else None
            if place is not None:
                answers[i] = show(regions, place)
    return answers


def _bases(module: Torch | None) -> _Bases:
    bases: _Bases = []
    if module is not None:
        bases.append((tensor_base(module), Form.TENSOR))
        bases.append((module._C.StorageBase, Form.STORAGE))
        bases += [*_pool_types(module), *_scripted_types(module)]
        bases += [(one, Form.SHOWN) for one in foreign.buffer_types()]
    array = _cupy_array()
    return bases if array is None else [*bases, (array, Form.ARRAY)]


def _pool_types(module: Torch) -> _Bases:
    native = (("_CUDAGraph", Form.GRAPH), ("_MemPool", Form.POOL))
    found = [(getattr(module._C, name, None), form) for name, form in native]
    return [(one, form) for one, form in found if isinstance(one, type)]


def _scripted_types(module: Torch) -> _Bases:
    names = ("ScriptObject", "ScriptFunction", "_FunctionBase", "Future")
    found = [getattr(module._C, name, None) for name in names] + [work_type()]
    return [(one, Form.SCRIPTED) for one in found if isinstance(one, type)]


def _cupy_array() -> type | None:
    array = getattr(sys.modules.get("cupy"), "ndarray", None)
    return array if isinstance(array, type) else None


def _sort(objects: list[Tensor], bases: _Bases, others: _Others) -> list[int]:
    """Returns the positions of ordinary tensors; other objects that may hold memory go to `others`."""
    forms: dict[type, Form | None] = {}
    tensors = []
    for i, one in enumerate(objects):
        of = type(one)
        try:
            form = forms[of]
        except KeyError:
            form = forms[of] = _form(of, bases)
        if form is Form.TENSOR:
            tensors.append(i)
        elif form is not None:
            others.append((i, form))
    return tensors


def _form(of: type, bases: _Bases) -> Form | None:
    # As `type` reports it: a metaclass may answer otherwise.
    ancestors = type.__dict__["__mro__"].__get__(of)
    for base, form in bases:
        if base in ancestors:
            if form is not Form.TENSOR:
                return form
            # A subclass with its own dispatch may be a wrapper, and may answer for its device
            # itself.
            for ancestor in ancestors:
                own = vars(ancestor).get("__torch_dispatch__")
                if own is not None:
                    disabled = getattr(own, "__name__", "") == "_disabled_torch_dispatch_impl"
                    return Form.TENSOR if disabled or ancestor is base else Form.WRAPPER
            return Form.TENSOR
    return None


_ASKED = {
    Form.WRAPPER: unusual.wrapper,
    Form.WITHOUT_STORAGE: unusual.without_storage,
    Form.SCRIPTED: unusual.packed,
    Form.GRAPH: unusual.graph,
    Form.POOL: unusual.pool,
    Form.ARRAY: unusual.array,
}


def _probe_others(
    module: Torch | None, objects: list[Tensor], others: _Others, answers: list[Memory | None]
) -> None:
    pools: unusual.Pools = {}
    for i, form in others:
        if form not in _ASKED:
            continue
        if form in (Form.GRAPH, Form.POOL) and not pools:
            pools = unusual.pools()
        try:
            found = _ASKED[form](module, objects[i], pools)
        except UNREADABLE:
            continue  # What cannot be read is left out; nothing is guessed.
        if found is not None and found.bytes > 0 and found.device != "meta":
            answers[i] = found
