"""What tensors keep of each other in native code: a view its base, a leaf its gradient, a result the
tensors that its graph has saved for the backward and the leaves it ends in. The collector sees one
hop of that graph at most.

The graph is followed by `next_functions`. A saved tensor is read in its raw form, so that hooks which
the program has set on saved tensors never run: where there is one, what it packed is looked at.
"""

from __future__ import annotations

from types import GetSetDescriptorType
from typing import Any

from ._torch import UNREADABLE, torch

MOST_NODES = 200_000
"""Beyond so many visits each node is visited once for all tensors, not once for each."""


def autograd_edges(
    tensors: list[Any], most_nodes: int = MOST_NODES
) -> list[tuple[int, list[object]]]:
    """For each tensor that keeps others in native code: its position, and those others.

    Saved tensors that autograd has no object for come as new objects over the same storage. What
    cannot be seen (saved objects of an older torch, what a hook has packed elsewhere) is left out.
    """
    module = torch()
    if module is None or not tensors:
        return []
    with module._C.DisableTorchFunction(), module._C._DisableTorchDispatch():
        return _edges(module, tensors, most_nodes)


def _edges(module: Any, tensors: list[Any], most_nodes: int) -> list[tuple[int, list[object]]]:
    base = module._C.TensorBase
    requires, node_of = base.requires_grad.__get__, base.grad_fn.__get__
    base_of = base._base.__get__
    retains, gradient_of = base.retains_grad.__get__, base._grad.__get__
    graph = _Graph(module)
    edges: list[tuple[int, list[object]]] = []
    everywhere: dict[int, object] = {}
    left = most_nodes
    for i, tensor in enumerate(tensors):
        kept: dict[int, object] = {}
        try:
            viewed = base_of(tensor)
            if viewed is not None:
                kept[id(viewed)] = viewed
            if not requires(tensor):
                if kept:
                    edges.append((i, [viewed]))
                continue
            node = node_of(tensor)
            # torch warns of the question where there can be none.
            gradient = gradient_of(tensor) if node is None or retains(tensor) else None
        except UNREADABLE:
            continue
        if gradient is not None:
            kept[id(gradient)] = gradient
        if node is not None:
            seen = {} if left > 0 else everywhere
            before = len(seen)
            for one in graph.kept_from(node, seen):
                kept.setdefault(id(one), one)
            left -= len(seen) - before
            if left <= 0 and seen is not everywhere:
                everywhere.update(seen)
        kept.pop(id(tensor), None)
        if kept:
            edges.append((i, list(kept.values())))
    return edges


class _Graph:
    """Reads the nodes of autograd's graph; a node is read once."""

    def __init__(self, module: Any) -> None:
        self._tensor = module._C.TensorBase
        self._python = module._C._FunctionBase
        self._readers: dict[type, tuple[Any, Any, list[Any]]] = {}
        # By identity, the node with it: its Python object would else be made anew, elsewhere.
        self._read: dict[int, tuple[object, list[Any], list[object]]] = {}

    def kept_from(self, start: Any, seen: dict[int, object]) -> list[object]:
        kept: list[object] = []
        todo = [start]
        while todo:
            node = todo.pop()
            if id(node) in seen:
                continue
            seen[id(node)] = node
            _, following, saved = self._node(node)
            kept += saved
            todo += following
        return kept

    def _node(self, node: Any) -> tuple[object, list[Any], list[object]]:
        known = self._read.get(id(node))
        if known is None:
            follow, leaf, saved = self._reader(type(node))
            following = [one for one, _ in follow(node) if one is not None] if follow else []
            kept = [leaf(node)] if leaf else []
            for read in saved:
                self._collect(kept, read, node)
            if self._python in type(node).__mro__:
                attributes = object.__getattribute__(node, "__dict__")
                self._add(kept, list(dict.values(attributes)))
            kept = [one for one in kept if one is not None]
            known = self._read[id(node)] = (node, following, kept)
        return known

    def _reader(self, of: type) -> tuple[Any, Any, list[Any]]:
        reader = self._readers.get(of)
        if reader is None:
            # Native properties only: a function of the user's may have others of the same names.
            natives: dict[str, Any] = {}
            for ancestor in of.__mro__:
                for name, property in vars(ancestor).items():
                    if type(property) is GetSetDescriptorType:
                        natives.setdefault(name, property.__get__)
            saved = [read for name, read in natives.items() if name.startswith("_raw_saved_")]
            follow, leaf = natives.get("next_functions"), natives.get("variable")
            reader = self._readers[of] = (follow, leaf, saved)
        return reader

    def _collect(self, kept: list[object], read: Any, node: Any) -> None:
        try:
            raw = read(node)
        except UNREADABLE:
            return  # The graph was used up, and its saved tensors are gone.
        for one in raw if type(raw) in (tuple, list) else (raw,):
            try:
                # Never `unpack`, and never `_saved_…`: those run the hooks.
                self._add(kept, [type(one).data.__get__(one)])
            except UNREADABLE:
                continue

    def _add(self, kept: list[object], values: list[Any]) -> None:
        """The tensors among some values, and those one level down in plain containers."""
        for value in values:
            if self._tensor in type(value).__mro__:
                kept.append(value)
            elif type(value) in (tuple, list, dict):
                inner = dict.values(value) if type(value) is dict else value
                kept += [one for one in inner if self._tensor in type(one).__mro__]
