"""Tensors inside of objects that no traverse slot shows.

A sparse tensor has its values and its indices, a tensor of `torch.func` the one that it wraps, a
scripted module its parameters, packed parameters of a quantised module their weights, and the handle
of a collective what it was called with: all in native code. Each part is a tensor with a storage of its own, so each piece of memory counts once,
whoever else has the part.
"""

from __future__ import annotations

from typing import Any

from ..._runtime.torch import UNREADABLE, Tensor, Torch, tensor_base
from ..references.look import module_value

_COLUMNS = ("crow_indices", "col_indices")
_ROWS = ("ccol_indices", "row_indices")
_MOST_WRAPPED = 64


def parts_of(module: Torch, one: Any) -> list[Tensor]:
    """Returns the tensors inside of an object; none for a storage, and for a tensor that has one."""
    of = type.__dict__["__mro__"].__get__(type(one))
    try:
        if tensor_base(module) in of:
            try:
                module._C._storage_id(one)
            except UNREADABLE:
                return _of_tensor(module, one)
            return []
        if module._C.StorageBase in of:
            return []
        if module._C.ScriptModule in of:
            return _of_script_module(module, one)
        if module._C.ScriptFunction in of:
            return _constants(module._C.ScriptFunction.graph.__get__(one))
        if module._C.ScriptObject in of:
            return shared(module, one)
        if module._C.Future in of:
            # Native code has the result.
            result = module._C.Future.value(one) if module._C.Future.done(one) else None
            return [] if result is None else [result, *_tensors_in(module, result)]
        if (work := work_type()) is not None and work in of:
            # Before it has ended, nobody may ask.
            return list(work.result(one)) if work.is_completed(one) else []
    except (*UNREADABLE, NotImplementedError, IndexError, KeyError):
        pass  # What cannot be read is left out; nothing is guessed.
    return []


def work_type() -> Any:
    """Returns the class of what `torch.distributed` returns for a collective that runs beside the
    program, or None if it is not imported."""
    return module_value("torch._C._distributed_c10d", "Work")


def _tensors_in(module: Torch, value: Any) -> list[Tensor]:
    """Returns the tensors in a value and in the tuples and lists of which it consists."""
    found, todo = [], [value]
    while todo:
        at = todo.pop()
        if type(at) is tuple or type(at) is list:
            todo += at
        elif tensor_base(module) in type(at).__mro__:
            found.append(at)
    return found


def _of_tensor(module: Torch, one: Tensor) -> list[Tensor]:
    of = tensor_base(module)
    functorch = module._C._functorch
    if functorch.is_functorch_wrapped_tensor(one):
        inner = functorch.get_unwrapped(one)
        for _ in range(_MOST_WRAPPED):
            if not functorch.is_functorch_wrapped_tensor(inner):
                break
            inner = functorch.get_unwrapped(inner)
        return [inner]
    layout = of.layout.__get__(one)
    if layout is module.sparse_coo:
        return [of._values(one), of._indices(one)]
    if layout in (module.sparse_csr, module.sparse_bsr):
        return [of.values(one), *(getattr(of, name)(one) for name in _COLUMNS)]
    if layout in (module.sparse_csc, module.sparse_bsc):
        return [of.values(one), *(getattr(of, name)(one) for name in _ROWS)]
    return []


def _of_script_module(module: Torch, one: Any) -> list[Tensor]:
    """Returns the parameters and buffers of a scripted module and of all modules inside of it."""
    c = module._C
    found = []
    todo = [one]
    while todo:
        at = todo.pop()
        for table in (c.ParameterDict(at), c.BufferDict(at)):
            found += [tensor for _, tensor in table.items()]
        todo += [inner for _, inner in c.ModuleDict(at).items()]
        for name in c.ScriptModule._method_names(at):
            method = c.ScriptModule._get_method(at, name)
            found += _constants(method.graph)
    return found


def _constants(graph: Any) -> list[Tensor]:
    """Returns the tensors that a graph has as constants."""
    nodes = graph.findAllNodes("prim::Constant")
    known = [node for node in nodes if node.hasAttribute("value") and node.kindOf("value") == "t"]
    return [node.t("value") for node in known]


def _state(module: Torch, one: Any) -> list[Tensor]:
    """Returns the tensors of packed parameters; some are copies."""
    if "PackedParams" not in str(module._C.ScriptObject._type(one)):
        return []
    return _tensors_in(module, module._C.ScriptObject.__getattr__(one, "__getstate__")())


def shared(module: Torch, one: Any) -> list[Tensor]:
    """Returns the tensors that packed parameters have as such: they are the same at each question."""
    storage_id = module._C._storage_id
    first = _state(module, one)
    again = {storage_id(tensor) for tensor in _state(module, one)} if first else set()
    return [tensor for tensor in first if storage_id(tensor) in again]


def packed_bytes(module: Torch, one: Any) -> int:
    """Returns the size of the tensors that packed parameters have in a form of their own."""
    known = {module._C._storage_id(tensor) for tensor in shared(module, one)}
    sizes = [
        tensor.nbytes
        for tensor in _state(module, one)
        if module._C._storage_id(tensor) not in known
    ]
    return sum(sizes)
