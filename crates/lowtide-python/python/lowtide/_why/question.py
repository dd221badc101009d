"""What the native walk has to know. It sees addresses; this is what it cannot find out itself.

Which types are dicts, functions or tensors; where the files of this package are, so that its frames
are not mistaken for the program's; and who can tell what a tensor holds.
"""

from __future__ import annotations

import _thread
import collections
import contextvars
import functools
import gc
import os
import sys
import time
import types
from collections.abc import Sequence
from typing import Any, Final

from .._native import Examination, ObjectKind, TypeKind, examine
from .._runtime.heap import IMMORTAL, Interpreter
from .._runtime.torch import torch
from .alone import is_alone
from .interpreter import Registered, roots
from .memory.autograd import autograd_edges
from .memory.foreign import owner_types
from .memory.probe import candidate_types, probe
from .rare import list_number
from .references.arrays import item_layout
from .references.look import AnyDict, module_value

_PACKAGE: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_VIEW: Final[type] = (lambda: type(sys._getframe().f_locals))()  # noqa: PLC3002
"""The type of `f_locals` in a function: dict, or a view from Python 3.13 on."""
_KINDS: Final[list[TypeKind]] = [
    TypeKind(dict, ObjectKind.DICT),
    TypeKind(collections.OrderedDict, ObjectKind.DICT),
    TypeKind(collections.defaultdict, ObjectKind.DICT),
    TypeKind(list, ObjectKind.CONTAINER),
    TypeKind(set, ObjectKind.CONTAINER),
    TypeKind(collections.deque, ObjectKind.CONTAINER),
    TypeKind(Registered, ObjectKind.CONTAINER),
    TypeKind(tuple, ObjectKind.IMMUTABLE),
    TypeKind(frozenset, ObjectKind.IMMUTABLE),
    TypeKind(types.ModuleType, ObjectKind.MODULE, subclasses=True),
    TypeKind(types.FunctionType, ObjectKind.FUNCTION),
    TypeKind(types.CellType, ObjectKind.CELL),
    TypeKind(types.FrameType, ObjectKind.FRAME),
    TypeKind(types.GeneratorType, ObjectKind.GENERATOR),
    TypeKind(types.CoroutineType, ObjectKind.GENERATOR),
    TypeKind(types.AsyncGeneratorType, ObjectKind.GENERATOR),
    TypeKind(functools._lru_cache_wrapper, ObjectKind.CACHE),
]


def caller() -> types.FrameType | None:
    """Returns the frame that called this package."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame


def caller_scope() -> AnyDict | None:
    """Returns the namespace of the code that called this package: statements will run there."""
    frame = caller()
    return None if frame is None else frame.f_globals


class _Sample:
    """A class written in Python. All instances of such classes are traversed like this one's."""


class Question:
    """A question to the native walk. It holds its targets, and the walk knows that it does.

    Without targets it asks for all memory of a device. With targets it asks what holds each of
    them; or, if they are tensors and `grouped`, what holds their memory.
    """

    def __init__(
        self,
        targets: Sequence[object] | None = None,
        *,
        grouped: bool = False,
        device: str | None = None,
        most: int = 1,
        until: float | None = None,
    ) -> None:
        self.targets = None if targets is None else list(targets)
        self.grouped = grouped
        self.device = device
        self.most = most
        # Remembers where the storages are: objects that it meets later may show them.
        self.probe = functools.partial(probe, regions=[])
        self.autograd = autograd_edges
        self.layout = item_layout
        self.node = _node()
        module = torch()
        # People know their objects as one thing, whatever they are made of.
        models = [] if module is None else [module.nn.Module, module.optim.Optimizer]
        structure = module_value("_ctypes", "Structure")
        # The base of all types of ctypes.
        foreign = [] if structure is None else [structure.__mro__[1]]
        self.kinds = [
            *(TypeKind(one, ObjectKind.TENSOR, subclasses=True) for one in candidate_types()),
            *(TypeKind(one, ObjectKind.MODEL, subclasses=True) for one in models),
            *(TypeKind(one, ObjectKind.FOREIGN, subclasses=True) for one in foreign),
            *_KINDS,
            *(TypeKind(one, ObjectKind.CALL) for one in _calls()),
            *(TypeKind(one, ObjectKind.CONTAINER) for one in _context_types()),
        ]
        self.sample = _Sample
        self.package = _PACKAGE
        self.immortal = IMMORTAL
        self.view = _VIEW
        self.thread = _thread.get_ident()
        self.interpreter = Interpreter
        self.arrays = _arrays()
        self.kept = roots()
        self.at_exit = list_number()
        self.limit_s = None if until is None else max(0.0, until - time.monotonic())
        # The walk leaves out what another examination holds, which is not at its end.
        self.nested = not is_alone()
        self.own_types = _own_types() if self.nested else []

    def ask(self) -> Examination:
        """Asks. Where only native code seems to have an object, its owner is looked for among many small ones."""
        found = examine(self)
        owners = owner_types([one.object for one in found.native])
        if owners:
            del found
            self.kinds[:0] = [TypeKind(one, ObjectKind.TENSOR, subclasses=True) for one in owners]
            found = examine(self)
        return found


class _Arrays:
    """The arrays of numpy, and their rows: the types, and examples to learn from where they have
    what."""

    def __init__(self, ndarray: Any, void: Any) -> None:
        self.class_ = ndarray
        self.base = ndarray((1,), "b")
        self.view = ndarray.view(self.base)
        self.row_class = void
        # Over the memory of another object: the walk asks for the layout of a structured array that
        # has its items itself, and is repeated.
        self.rows = ndarray((1,), [("x", "b")], bytearray(1))
        self.row = self.rows[0]
        # Structures without objects and with objects, with odd and even sizes.
        small, wide = [("x", "b")], [("x", "h")]
        self.plain = [ndarray((1,), one).dtype for one in (small, wide)]
        self.mixed = [ndarray((1,), [*one, ("y", "O")]).dtype for one in (small, wide)]


def _arrays() -> _Arrays | None:
    ndarray = module_value("numpy", "ndarray")
    void = module_value("numpy", "void")
    return _Arrays(ndarray, void) if isinstance(ndarray, type) and isinstance(void, type) else None


def _node() -> type | None:
    """Returns the type of a node of autograd. All of them are traversed like this one."""
    module = torch()
    node = None if module is None else getattr(module._C._functions, "AccumulateGrad", None)
    return node if isinstance(node, type) else None


def _own_types() -> list[type]:
    """Returns the classes of this package."""
    package = __name__.partition(".")[0]
    modules = [one for name, one in list(sys.modules.items()) if name.partition(".")[0] == package]
    values = [value for module in modules for value in list(vars(module).values())]
    return [one for one in values if type(one) is type and one.__module__.startswith(package)]


_CALLS: Final = (
    ("weakref", "finalize", "_Info"),
    ("concurrent.futures.thread", "_WorkItem"),
    ("concurrent.futures.process", "_WorkItem"),
    ("concurrent.futures.process", "_CallItem"),
    ("multiprocessing.util", "Finalize"),
    ("torch.nn.modules.module", "_WrappedHook"),
)
"""Classes of calls that wait, in modules that may not be imported yet."""


def _calls() -> list[type]:
    """Returns the types of calls that wait for their turn."""
    found: list[type] = [functools.partial]
    for module, name, *inside in _CALLS:
        value = module_value(module, name)
        for attribute in inside:
            value = None if value is None else vars(value).get(attribute)
        if isinstance(value, type):
            found.append(value)
    return found


@functools.cache
def _context_types() -> list[type]:
    """Returns the types of which a context is made: they have no names."""
    context = contextvars.Context()
    # With that many variables a context has every kind of part.
    for _ in range(40):
        context.run(contextvars.ContextVar[int]("lowtide").set, 1)
    found: dict[type, None] = {}
    todo = gc.get_referents(context)
    while todo:
        one = todo.pop()
        if type(one).__name__.startswith("hamt"):
            found[type(one)] = None
            todo += gc.get_referents(one)
    return list(found)
