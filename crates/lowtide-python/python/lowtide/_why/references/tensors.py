"""Readers for modules, tensors and autograd nodes of torch.

A module stores its children in dicts of its own, a tensor its gradient and its graph in C++.
Nothing here imports torch. Every question to a tensor is asked with overrides switched off, because
a subclass may run its own code for any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..._runtime.torch import Tensor
from .hooks import next_nodes, nodes_of, read_hooks_of_graph, read_hooks_of_node
from .look import (
    descriptor,
    instance_dict,
    is_a,
    is_name,
    item,
    key_text,
    literal,
    module_value,
    pairs,
    plain,
    read,
)
from .reference import Reference
from .spelling import hides

DETACH = "{holder}.detach_()"
_PLUMBING = ("_parameters", "_buffers", "_modules")
_LISTS = ("Sequential", "ModuleList", "ParameterList")
_DICTS = ("ModuleDict", "ParameterDict")
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def tensor_base() -> Any:
    """Returns the C class under every tensor, or None if torch is not imported."""
    # Before torch 2.2 it has another name.
    return module_value("torch._C", "TensorBase") or module_value("torch._C", "_TensorBase")


def is_tensor(value: object) -> bool:
    """Returns whether this is a tensor by its real type."""
    base = tensor_base()
    return base is not None and is_a(value, base)


def is_storage(value: object) -> bool:
    """Returns whether this is a storage: the memory of a tensor rather than a tensor."""
    for name in ("UntypedStorage", "TypedStorage"):
        storage = module_value("torch.storage", name)
        if storage is not None and is_a(value, storage):
            return True
    return False


def _quiet() -> Any:
    return module_value("torch._C", "DisableTorchFunction")()


def is_view(tensor: object) -> bool:
    """Returns whether a tensor shows a part of a storage, and so keeps more than it shows."""
    base = tensor_base()
    try:
        with _quiet():
            if base._is_view(tensor):
                return True
            held_bytes = base.untyped_storage(tensor).nbytes()
            return bool(held_bytes > base.nbytes.__get__(tensor))
    except (RuntimeError, NotImplementedError, TypeError):
        return False  # Sparse, meta and fake tensors have no storage to ask.


def read_module_parts(holder: object, held: object) -> Iterator[Reference]:
    """Yields parameters, buffers and children of an nn.Module, as people write them."""
    module = module_value("torch.nn.modules.module", "Module")
    if module is None or not is_a(holder, module):
        return
    attributes = instance_dict(holder) or {}
    for store in _PLUMBING:
        parts = item(attributes, store)
        if parts is None or parts is held or not is_a(parts, dict):
            continue
        for key, value in pairs(parts):
            if value is held:
                via, step = (id(attributes), id(parts)), _part_step(holder, store, key)
                yield Reference(step, "attribute", "{path} = None", via=via)


def _part_step(holder: object, store: str, key: object) -> str:
    text = literal(key)
    if type(key) is str and key.isdecimal() and _is_one_of(holder, *_LISTS):
        return f"[{key}]"
    if text is not None and _is_one_of(holder, *_DICTS):
        return f"[{text}]"
    if is_name(key) and not hides(holder, plain(key)):
        return f".{plain(key)}"
    return f".{store}[{text or repr(plain(key))}]"


def _is_one_of(holder: object, *names: str) -> bool:
    kinds = [module_value("torch.nn.modules.container", name) for name in names]
    return any(kind is not None and is_a(holder, kind) for kind in kinds)


def read_tensor(holder: Tensor, held: object) -> Iterator[Reference]:
    """Yields the gradient, hooks, graph and base of a tensor."""
    base = tensor_base()
    if base is None or not is_a(holder, base):
        return
    with _quiet():
        leaf = base.is_leaf.__get__(holder) or base.retains_grad.__get__(holder)
        # torch warns when the gradient of anything else is asked for, and a warning runs code.
        grad = base.grad.__get__(holder) if leaf else None
        node = base.grad_fn.__get__(holder)
        origin = base._base.__get__(holder)
        hooks = [
            (name, getattr(base, name).__get__(holder)) for name in _HOOKS if name in vars(base)
        ]
    if grad is not None and grad is held:
        yield Reference(".grad", "gradient", "{path} = None")
    if origin is not None and origin is held:
        why = "a view keeps the whole tensor: drop the view, or clone it"
        yield Reference(" (view)", "view", why_not=why, reach="{holder}._base", remark="view")
    for name, table in hooks:
        if table is not None and table is held:
            yield Reference(f".{name}", "hooks", why_not="remove the hooks by their handles")
        elif is_a(table, dict):
            for key, hook in pairs(table):
                if hook is held:
                    step = f".{name}[{key_text(key)}]"
                    yield Reference(step, "hook", "del {path}", via=(id(table),))
    if node is not None and node is held:
        yield Reference(".grad_fn", "autograd", _detach_verb(holder))
    elif node is not None and is_tensor(held) and _is_leaf_of(node, held):
        yield graph_reference(holder)
    elif node is not None:
        yield from read_hooks_of_graph(node, held)


def graph_reference(holder: object) -> Reference:
    """Returns the reference from a tensor to what its graph keeps for the backward pass."""
    found = Reference(" (autograd graph)", "autograd graph", _detach_verb(holder))
    return found.between(holder)


def number_of(result: Tensor, graph: Reference, before: Reference) -> Reference:
    """Returns the reference to the graph of a result as it is written: of a single number, only the number is kept,
    where something else can be put in its place."""
    with _quiet():
        is_number = tensor_base().numel(result) == 1
    can_put = before.verb in ("del {path}", "{path} = None")
    return replace(graph, verb="{holder} = {holder}.item()") if is_number and can_put else graph


def _detach_verb(holder: Tensor) -> str | None:
    # torch refuses to detach a view in place.
    with _quiet():
        return None if tensor_base()._is_view(holder) else DETACH


def has_graph(value: Tensor) -> bool:
    """Returns whether a tensor has an autograd graph."""
    if not is_tensor(value):
        return False
    with _quiet():
        return tensor_base().grad_fn.__get__(value) is not None


def has_gradient_graph(value: Tensor) -> bool:
    """Returns whether a leaf's gradient has a graph, which holds the leaf."""
    base = tensor_base()
    if not is_tensor(value):
        return False
    with _quiet():
        # torch warns when the gradient of anything but a leaf is asked for.
        gradient = base.grad.__get__(value) if base.is_leaf.__get__(value) else None
    return gradient is not None and has_graph(gradient)


def leaves_with_gradient_graph(value: Any) -> list[tuple[Tensor, Tensor]]:
    """Returns the leaves among a tensor or the parameters of a module whose gradient has a graph,
    each with its gradient."""
    module = module_value("torch.nn.modules.module", "Module")
    leaves, todo = [], [value]
    while todo and module is not None:
        at = todo.pop()
        if is_tensor(at):
            leaves.append(at)
        elif is_a(at, module):
            attributes = instance_dict(at) or {}
            for store in ("_parameters", "_modules"):
                parts = item(attributes, store)
                todo += [part for _, part in pairs(parts)] if is_a(parts, dict) else []
    found = []
    for leaf in leaves:
        if has_gradient_graph(leaf):
            with _quiet():
                found.append((leaf, tensor_base().grad.__get__(leaf)))
    return found


def _is_leaf_of(node: object, held: object) -> bool:
    """Returns whether the graph from `node` ends in this tensor.

    Nodes are asked for their leaf, never for what they saved: unpacking that runs the program's
    hooks.
    """
    return any(read(one, "variable") is held for one in nodes_of(node))


def read_node(holder: object, held: object) -> Iterator[Reference]:
    """Yields the next nodes of an autograd graph, and the leaf where it ends."""
    if type(descriptor(holder, "_sequence_nr")) is not type(dict.__dict__["get"]):
        return
    why = "a graph is freed as a whole: detach the tensor that holds it"
    for index, following in enumerate(next_nodes(holder)):
        if following is held:
            yield Reference(f".next_functions[{index}][0]", "autograd", why_not=why)
    yield from read_hooks_of_node(holder, held)
    if is_tensor(held) and read(holder, "variable") is held:
        yield Reference(".variable", "autograd", why_not=why)
