"""Finds and names the references from one object to another.

The walk over the heap knows only that `holder` refers to `held`. A person needs to know how: by an
attribute, an item, a closure. `references` answers that for every type of the interpreter, its
standard library and torch, without running any code of the program.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
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
from weakref import ReferenceType, WeakKeyDictionary, WeakValueDictionary

from . import arrays, classes, containers, contexts, functions, suspended, tensors
from .look import module_value, mro
from .reference import Reader, Reference
from .shell import as_known

_READERS: tuple[tuple[type, Reader], ...] = (
    (dict, containers.read_dict),
    (list, containers.read_list),
    (tuple, containers.read_tuple),
    (set, containers.read_set),
    (frozenset, containers.read_frozenset),
    (deque, containers.read_deque),
    (MappingProxyType, containers.read_proxy),
    (ModuleType, containers.read_module),
    (type, classes.read_class),
    (WeakKeyDictionary, containers.read_weak_mapping),
    (WeakValueDictionary, containers.read_weak_mapping),
    (ReferenceType, containers.read_weakref),
    (FunctionType, functions.read_function),
    (CellType, functions.read_cell),
    (BuiltinMethodType, functions.read_builtin_method),
    (MethodWrapperType, functions.read_builtin_method),
    (partial, functions.read_partial),
    (functions.LruCache, functions.read_lru_cache),
    (GeneratorType, suspended.read_suspended),
    (CoroutineType, suspended.read_suspended),
    (AsyncGeneratorType, suspended.read_suspended),
    (FrameType, suspended.read_frame),
    (TracebackType, suspended.read_traceback),
    (BaseException, suspended.read_exception),
    (Context, contexts.read_context),
    (ContextVar, contexts.read_variable),
    (Token, contexts.read_token),
    (memoryview, arrays.read_memoryview),
)
# By identity: a metaclass may define how its classes are hashed.
_BY_TYPE: dict[int, Reader] = {id(base): reader for base, reader in _READERS}

# Containers that have nothing else. A shutdown may ask one of them for each of a thousand elements.
_ONLY = frozenset(map(id, (dict, list, tuple, set, frozenset, deque)))

# Types of modules that may not be imported yet. They are looked up at each question.
_LATER: tuple[tuple[str, str, Reader], ...] = (
    ("_thread", "_local", contexts.read_thread_local),
    ("_queue", "SimpleQueue", containers.read_simple_queue),
    ("_asyncio", "Task", contexts.read_task),
    ("_asyncio", "Future", contexts.read_future),
    ("asyncio.events", "Handle", contexts.read_handle),
    ("numpy", "ndarray", arrays.read_array),
    ("numpy", "void", arrays.read_row),
    ("numpy", "dtype", arrays.read_dtype),
    ("datetime", "datetime", arrays.read_zone),
    ("datetime", "time", arrays.read_zone),
    ("_ssl", "_SSLContext", contexts.read_ssl),
    ("sqlite3", "Connection", contexts.read_database),
    ("numpy", "flatiter", arrays.read_iterator),
    ("numpy", "nditer", arrays.read_iterator),
    ("numpy", "broadcast", arrays.read_iterator),
    ("greenlet", "greenlet", suspended.read_greenlet),
    ("pandas._libs.internals", "BlockManager", arrays.read_blocks),
    ("pandas._libs.internals", "Block", arrays.read_blocks),
    ("pandas._libs.internals", "SharedBlock", arrays.read_blocks),
)

# Readers for every object, the most specific first.
_GENERAL: tuple[Reader, ...] = (
    classes.read_instance,
    classes.read_members,
    tensors.read_tensor,
    tensors.read_node,
    classes.read_type_of,
)


def references(holder: object, held: object) -> list[Reference]:
    """Returns every visible reference from `holder` to `held`, the most specific first.

    References through objects in between that nobody types (the dict of an instance, a closure's
    cell, the tables of an nn.Module) count as the holder's own. A reference that the collector sees
    and that has no name is of kind "hidden". The list is empty if Python can see no reference.

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
    found = found or list(containers.read_hidden(holder, held))
    found = as_known(found, holder, held)
    return [one.between(holder, held, references) for one in found]


def _says_the_same(one: Reference, other: Reference) -> bool:
    # What a type's own reader has named (`.__wrapped__` of a cache) comes again as an attribute.
    return one.step == other.step or other.step.startswith(f"{one.step} (")


def _readers_of(cls: type) -> Iterator[Reader]:
    if id(cls) in _ONLY:
        yield _BY_TYPE[id(cls)]
        return
    yield tensors.read_module_parts
    bases = mro(cls)
    later = {id(module_value(module, name)): reader for module, name, reader in _LATER}
    later.pop(id(None), None)
    for base in bases:
        reader = _BY_TYPE.get(id(base)) or later.get(id(base))
        if reader is not None:
            yield reader
    yield from _GENERAL
