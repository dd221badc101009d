"""Naming one reference from an object to another.

The walk over the heap knows only that `holder` refers to `held`. A person needs to know where: an
attribute, an item, a closure. `references` answers that, for every type that the interpreter, its
library and torch bring along, without running a line of the program's own code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar, Token
from functools import partial
from types import (
    AsyncGeneratorType,
    BuiltinMethodType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodWrapperType,
    ModuleType,
    TracebackType,
)
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, WeakValueDictionary

from . import _callables, _containers, _contexts, _tensors
from ._cut import Reference
from ._locals import locals_of
from ._look import module_value, mro

__all__ = ["Reference", "locals_of", "references"]

Reader = Callable[[Any, object], Iterator[Reference]]

_READERS: tuple[tuple[type, Reader], ...] = (
    (dict, _containers.read_dict),
    (list, _containers.read_list),
    (tuple, _containers.read_tuple),
    (set, _containers.read_set),
    (frozenset, _containers.read_frozenset),
    (deque, _containers.read_deque),
    (MappingProxyType, _containers.read_proxy),
    (ModuleType, _containers.read_module),
    (type, _containers.read_class),
    (WeakKeyDictionary, _containers.read_weak_mapping),
    (WeakValueDictionary, _containers.read_weak_mapping),
    (ReferenceType, _containers.read_weakref),
    (FunctionType, _callables.read_function),
    (CellType, _callables.read_cell),
    (BuiltinMethodType, _callables.read_builtin_method),
    (MethodWrapperType, _callables.read_builtin_method),
    (partial, _callables.read_partial),
    (_callables.LruCache, _callables.read_lru_cache),
    (GeneratorType, _callables.read_suspended),
    (CoroutineType, _callables.read_suspended),
    (AsyncGeneratorType, _callables.read_suspended),
    (FrameType, _callables.read_frame),
    (TracebackType, _callables.read_traceback),
    (BaseException, _callables.read_exception),
    (Context, _contexts.read_context),
    (ContextVar, _contexts.read_variable),
    (Token, _contexts.read_token),
)
# By identity: a metaclass may say what the hash of its classes is.
_BY_TYPE: dict[int, Reader] = {id(base): reader for base, reader in _READERS}

# Types of modules that may not be imported yet, looked up at each question.
_LATER: tuple[tuple[str, str, Reader], ...] = (
    ("_thread", "_local", _contexts.read_thread_local),
    ("_asyncio", "Task", _contexts.read_task),
    ("_asyncio", "Future", _contexts.read_future),
    ("asyncio.events", "Handle", _contexts.read_handle),
)

# What every object may have, the nearest meaning first.
_GENERAL: tuple[Reader, ...] = (
    _containers.read_instance,
    _containers.read_members,
    _tensors.read_tensor,
    _tensors.read_node,
    _containers.read_type_of,
)


def references(holder: object, held: object) -> list[Reference]:
    """Every visible reference from `holder` to `held`, the nearest meaning first.

    References through the plumbing in between (the dict of an instance, a closure's cell, the
    tables of an nn.Module) count as the holder's own. What the collector sees but nobody can name
    is one reference of kind "hidden". An empty list: nothing refers from the one to the other that
    Python can see.

    >>> class Runner: ...
    >>> runner, model = Runner(), object()
    >>> runner.model = model
    >>> references(runner, model)
    [Reference('.model', 'attribute', '{path} = None')]
    """
    found: list[Reference] = []
    for reader in _readers_of(type(holder)):
        for reference in reader(holder, held):
            if not any(_says_the_same(reference, other) for other in found):
                found.append(reference)
    if not found:
        found.extend(_containers.read_hidden(holder, held))
    return found


def _says_the_same(one: Reference, other: Reference) -> bool:
    # What a type's own reader knows better (`.__wrapped__` of a cache) comes again as an attribute.
    return one.step == other.step or other.step.startswith(f"{one.step} (")


def _readers_of(cls: type) -> Iterator[Reader]:
    yield _tensors.read_module_parts
    bases = mro(cls)
    later = {id(module_value(module, name)): reader for module, name, reader in _LATER}
    later.pop(id(None), None)
    for base in bases:
        reader = _BY_TYPE.get(id(base)) or later.get(id(base))
        if reader is not None:
            yield reader
    yield from _GENERAL
