"""Hooks that native code has: those of autograd's nodes and of `readline`.

Neither shows them. Where a node of autograd has its hooks is learnt once from nodes of our own.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ..._native import NodeHooks, hook_lists, module_state
from .look import module_dict, module_value, mro, namespace_of, read, type_name
from .reference import UNWRITTEN, Reference

_MOST_NODES = 10_000
_WHY = (
    "call remove() of the handle that register_hook() or register_prehook() returned, or drop the "
    "tensors whose graph has the node"
)
_READLINE = (
    "set_completion_display_matches_hook",
    "set_startup_hook",
    "set_pre_input_hook",
    "set_completer",
)
"""The functions that set the hooks of `readline`, in the order of its state."""


def node_hooks() -> NodeHooks | None:
    """Returns what finds the hooks of nodes during one question, or None if they cannot be found."""
    if module_value("torch", "ones") is None or module_value("torch._C", "_FunctionBase") is None:
        return None
    places = _places()
    return NodeHooks(OrderedDict, places) if places else None


@functools.cache
def _places() -> list[int]:
    """Learns where nodes have their hooks, from a node that has some: those of `register_hook`, those of
    `register_prehook`, and those of the tensor that it computes."""
    native: Any = module_value("torch", "_C")
    inference: Any = module_value("torch", "inference_mode")
    grad: Any = module_value("torch", "enable_grad")
    try:
        quiet = native.DisableTorchFunction(), native._DisableTorchDispatch()
        with quiet[0], quiet[1], inference(False), grad():
            return _learnt(module_value("torch", "ones"))
    except (AttributeError, RuntimeError, TypeError):
        return []


def _learnt(ones: Any) -> list[int]:
    made = ones(1, requires_grad=True, device="cpu") * 1
    made.register_hook(_nothing)
    node = made.grad_fn
    after, before = (
        register(_nothing).hooks_dict_ref()
        for register in (node.register_hook, node.register_prehook)
    )
    dicts = (after, before, made._backward_hooks)
    return sorted({place for one in dicts for place in hook_lists([(node, one)])})


def _nothing(*_: object) -> None:
    """Stands for a hook."""


def hooks_of(hooks: NodeHooks, node: object) -> list[Any]:
    """Returns the dicts with the hooks of a node that is written in C++. A function of the program
    shows its hooks itself."""
    return [] if module_value("torch._C", "_FunctionBase") in mro(type(node)) else hooks.of(node)


def read_hooks_of_graph(node: object, held: object) -> Iterator[Reference]:
    """Yields the hooks of a node of a tensor's graph, whose first node is `node`."""
    hooks = node_hooks() if type(held) is OrderedDict else None
    if hooks is None:
        return
    for at in nodes_of(node):
        if any(one is held for one in hooks_of(hooks, at)):
            yield _hooks(f" (hooks of {type_name(type(at))})", ".grad_fn")
            return


def read_hooks_of_node(holder: object, held: object) -> Iterator[Reference]:
    """Yields the hooks of a node that the program has."""
    hooks = node_hooks() if type(held) is OrderedDict else None
    if hooks is not None and any(one is held for one in hooks_of(hooks, holder)):
        yield _hooks(" (hooks)", "")


def _hooks(step: str, steps: str) -> Reference:
    """Returns the reference to the hooks of a node. Python has no way to them."""
    reach, remark = f"{{holder}}{steps}{UNWRITTEN}hooks", step.strip(" ()")
    return Reference(step, "hooks", why_not=_WHY, reach=reach, remark=remark)


def nodes_of(node: object) -> Iterator[object]:
    """Yields the nodes of a graph, the nearest first. torch makes a new object of a node that nobody holds."""
    seen = {id(node): node}
    for at in (waiting := [node]):
        yield at
        for following in next_nodes(at) if len(seen) <= _MOST_NODES else ():
            if id(following) not in seen:
                seen[id(following)] = following
                waiting.append(following)


def next_nodes(node: object) -> list[object]:
    """Returns the nodes that follow a node of autograd."""
    return [one for one, _ in read(node, "next_functions") or () if one is not None]


def read_module_hooks(holder: ModuleType, held: object) -> Iterator[Reference]:
    """Yields the hooks of `readline`."""
    if namespace_of(module_dict(holder)) != "readline":
        return
    for name, number in zip(_READLINE, module_state(holder)):
        if number == id(held):
            step, verb = f".{name}(…)", f"{{holder}}.{name}(None)"
            yield Reference(step, "registered hook", verb, reach="", remark=name)
