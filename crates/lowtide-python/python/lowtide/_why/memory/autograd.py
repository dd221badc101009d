"""Tensors that other tensors keep alive in native code.

A view keeps its base, a leaf its gradient, and a result keeps the tensors that its autograd graph
saved for the backward pass and the leaves where the graph ends. The collector sees one step of that
graph at most.

The graph is followed through `next_functions`. Saved tensors are read in their raw form, so that
hooks which the program has set on saved tensors never run. Where there is such a hook, its packed
value is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, GetSetDescriptorType
from typing import Any, NamedTuple

from ..._runtime.torch import UNREADABLE, Tensor, Torch, tensor_base, torch
from ..references.functions import cell_contents
from ..references.hooks import hooks_of, node_hooks
from ..references.look import instance_dict, item, module_value, mro
from .foreign import asked_types, buffers_of, references_of, table_types
from .parts import parts_of

MOST_NODES = 200_000
"""Beyond this number of visits, each node is visited once for all tensors, not once for each."""


class KeptTensors(NamedTuple):
    """The objects that one object keeps alive in native code. `position` is its place in the list
    that was asked."""

    position: int
    kept: list[Any]
    is_counted: bool = False
    """Whether it has a reference to each as a Python object, which no traverse slot shows."""


def autograd_edges(tensors: list[Tensor], most_nodes: int = MOST_NODES) -> list[KeptTensors]:
    """Returns what each tensor keeps alive in native code; tensors that keep nothing are left out.

    Saved tensors without a Python object come as new objects over the same storage. What cannot be
    seen (saved objects of an older torch, values that a hook has packed elsewhere) is left out.
    """
    module = torch()
    foreign = _foreign_edges(tensors)
    if module is None or not tensors:
        return foreign
    with module._C.DisableTorchFunction(), module._C._DisableTorchDispatch():
        return [*foreign, *_edges(module, tensors, most_nodes)]


def _foreign_edges(objects: list[Tensor]) -> list[KeptTensors]:
    """Returns what objects of other libraries refer to, and the buffers of which they consist."""
    edges: list[KeptTensors] = []
    asked, tables = asked_types(many=True), table_types()
    if not asked and not tables:
        return edges
    kinds: dict[type, tuple[bool, bool]] = {}
    for i, one in enumerate(objects):
        if type(one) not in kinds:
            of = mro(type(one))
            kinds[type(one)] = any(base in of for base in asked), any(base in of for base in tables)
        is_asked, is_table = kinds[type(one)]
        if is_asked:
            edges.append(KeptTensors(i, references_of(one), is_counted=True))
        elif is_table:
            edges.append(KeptTensors(i, buffers_of(one)))
    return edges


def _edges(module: Torch, tensors: list[Tensor], most_nodes: int) -> list[KeptTensors]:
    base = tensor_base(module)
    requires, node_of = base.requires_grad.__get__, base.grad_fn.__get__
    base_of = base._base.__get__
    retains, gradient_of = base.retains_grad.__get__, base._grad.__get__
    graph = _Graph(module)
    edges: list[KeptTensors] = []
    everywhere: dict[int, object] = {}
    left = most_nodes
    for i, tensor in enumerate(tensors):
        # A node itself, which the program has; or a tensor, or what has tensors inside.
        is_node = graph.is_node(type(tensor))
        inside = graph.kept_from(tensor, {}) if is_node else parts_of(module, tensor)
        kept = {id(one): one for one in inside} if inside else {}
        node = gradient = None
        try:
            viewed = None if is_node else base_of(tensor)
            if viewed is not None:
                kept[id(viewed)] = viewed
            if not is_node and requires(tensor):
                node = node_of(tensor)
                # torch warns about this question where there can be no gradient.
                gradient = gradient_of(tensor) if node is None or retains(tensor) else None
        except UNREADABLE:
            node = gradient = None
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
            edges.append(KeptTensors(i, list(kept.values())))
    return edges


Read = Callable[[Any], Any]


class _Reader(NamedTuple):
    """How nodes of one type are read."""

    follow: Read | None
    leaf: Read | None
    saved: list[Read]


class _Node(NamedTuple):
    """A node that was read. It holds the node itself: otherwise torch would make a new Python
    object for it, with another id."""

    node: object
    following: list[object]
    kept: list[Tensor]


class _Graph:
    """Reads the nodes of autograd's graph, each node once."""

    def __init__(self, module: Torch) -> None:
        self._tensor: type = tensor_base(module)
        self._python: type = module._C._FunctionBase
        self._saved: Any = module._C._autograd.SavedTensor
        self._shows_hooks = hasattr(module._C._autograd.SavedTensor, "unpack_hook")
        self._hooks = node_hooks()
        self._readers: dict[type, _Reader] = {}
        self._read: dict[int, _Node] = {}

    def is_node(self, of: type) -> bool:
        """Returns whether objects of a type are nodes."""
        return self._tensor not in of.__mro__ and self._reader(of).follow is not None

    def kept_from(self, start: object, seen: dict[int, object]) -> list[Tensor]:
        """Returns what the graph from `start` on keeps, without the nodes in `seen`: tensors, and
        the Python objects of its nodes, which newer versions of torch keep with the nodes."""
        kept: list[Tensor] = []
        todo = [start]
        while todo:
            node = todo.pop()
            if id(node) in seen:
                continue
            seen[id(node)] = node
            read = self._node(node)
            kept += read.kept
            kept.append(node)
            todo += read.following
        return kept

    def _node(self, node: object) -> _Node:
        known = self._read.get(id(node))
        if known is None:
            reader = self._reader(type(node))
            following: list[object] = []
            if reader.follow is not None:
                following = [one for one, _ in reader.follow(node) if one is not None]
            kept: list[Tensor] = [reader.leaf(node)] if reader.leaf is not None else []
            for read in reader.saved:
                self._collect(kept, read, node)
            if self._hooks is not None:
                kept += hooks_of(self._hooks, node)
            if self._python in type(node).__mro__:
                attributes = object.__getattribute__(node, "__dict__")
                self._add(kept, list(dict.values(attributes)))
            kept = [one for one in kept if one is not None]
            known = self._read[id(node)] = _Node(node, following, kept)
        return known

    def _reader(self, of: type) -> _Reader:
        reader = self._readers.get(of)
        if reader is None:
            # Native properties only: a function of the program may have others of the same names.
            natives: dict[str, Read] = {}
            for ancestor in of.__mro__:
                for name, property in vars(ancestor).items():
                    if type(property) is GetSetDescriptorType:
                        natives.setdefault(name, property.__get__)
            saved = [read for name, read in natives.items() if name.startswith("_raw_saved_")]
            reader = _Reader(natives.get("next_functions"), natives.get("variable"), saved)
            self._readers[of] = reader
        return reader

    def _collect(self, kept: list[Tensor], read: Read, node: object) -> None:
        try:
            raw = read(node)
        except UNREADABLE:
            return  # The graph was used up, and its saved tensors are gone.
        for one in raw if type(raw) is tuple or type(raw) is list else (raw,):
            try:
                # Never `unpack`, and never `_saved_…`: those run the hooks.
                data = type(one).data.__get__(one)
                hook = type(one).unpack_hook.__get__(one) if self._shows_hooks else None
            except UNREADABLE:
                continue
            self._add(kept, [data])
            # What a hook has packed, and the hook itself: activation checkpointing has in its hook
            # what it computes the values from again.
            if hook is not None:
                kept += [hook, data]
                self._add_arguments(kept, hook)

    def _add_arguments(self, kept: list[Tensor], hook: object) -> None:
        """Adds the arguments that activation checkpointing has saved for its second run.

        It has them in objects of its own. Those of a graph must not be read like this: they may be
        gone with their node.
        """
        frame_type = module_value("torch.utils.checkpoint", "_CheckpointFrame")
        if frame_type is None or type(hook) is not FunctionType:
            return
        for cell in hook.__closure__ or ():
            frame = cell_contents(cell)
            if type(frame) is not frame_type:
                continue
            saved = item(instance_dict(frame) or {}, "saved_args")
            for one in saved if type(saved) is list else ():
                if type(one) is self._saved:
                    self._add(kept, [self._saved.data.__get__(one)])

    def _add(self, kept: list[Tensor], values: list[Any]) -> None:
        """Adds the tensors among some values, and those one level down in plain containers."""
        for value in values:
            if self._tensor in type(value).__mro__:
                kept.append(value)
            elif any(type(value) is kind for kind in (tuple, list, dict)):
                inner = dict.values(value) if type(value) is dict else value
                kept += [one for one in inner if self._tensor in type(one).__mro__]
