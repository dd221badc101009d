"""Objects that the interpreter and torch keep outside of modules, and what each is called.

Some of them can be asked for: profile and trace functions, signal handlers, hooks, exit callbacks,
the modes that are active in torch. They are roots of the walk, under the expression that gives them.
Those that were set by a function are in lists of their own (`Registered`), so that a cut may undo that.
Others are lists and dicts that no function gives: what runs at a fork, codecs and their error
handlers. The walk finds them as objects that only native code has, and they are recognised by what
everybody finds in them.
"""

from __future__ import annotations

import _io
import sys
from collections.abc import Sequence
from contextvars import Context, copy_context
from types import FunctionType, MethodType
from typing import NamedTuple

from .._runtime.heap import objects_of
from . import rare
from .alone import EXAMINING
from .references.functions import function_name
from .references.look import global_name, is_a, item, module_value, type_name
from .references.reference import Reference

_MOST_SIGNALS = 65
_METHOD = type(EXAMINING.before_fork)
_FILE = vars(_io)["_IOBase"]


class Kept(NamedTuple):
    """An object that the interpreter keeps, an expression or words for it, and what unregisters it."""

    name: str
    value: object
    undo: Reference | None = None


class Registered(list[object]):
    """What one call has registered. As a root of the walk, it stands for the interpreter: a reference
    from it is cut by undoing that call."""

    def __init__(self, undo: Reference) -> None:
        super().__init__()
        self.undo = undo


def roots() -> list[object]:
    """Returns what the interpreter keeps, as roots of the walk."""
    by_call: dict[str | None, Registered] = {}
    others = []
    for one in kept():
        if one.undo is None:
            others.append(one.value)
        else:
            by_call.setdefault(one.undo.verb, Registered(one.undo)).append(one.value)
    return [*others, *by_call.values()]


def registered_at(objects: Sequence[object]) -> Registered | None:
    """Returns the registration with which a path begins, or None."""
    first = objects[0] if objects else None
    return first if type(first) is Registered else None


def kept() -> list[Kept]:
    """Returns what the interpreter keeps and gives when it is asked."""
    hooks = sys.get_asyncgen_hooks()
    found = [
        Kept("sys.getprofile()", sys.getprofile(), _undo("sys.setprofile(None)", "sys")),
        Kept("sys.gettrace()", sys.gettrace(), _undo("sys.settrace(None)", "sys")),
    ]
    for name, hook in (("firstiter", hooks.firstiter), ("finalizer", hooks.finalizer)):
        undo = _undo(f"sys.set_asyncgen_hooks({name}=None)", "sys")
        found.append(Kept(f"sys.get_asyncgen_hooks().{name}", hook, undo))
    errors = module_value("numpy", "geterrcall")
    if errors is not None:
        undo = _undo("numpy.seterrcall(None)", "numpy")
        found.append(Kept("numpy.geterrcall()", errors(), undo))
    found += [*_signal_handlers(), *_torch_keeps()]
    return [one for one in found if one.value is not None]


def _undo(statement: str, needs: str) -> Reference:
    """Returns what unregisters an object: a statement, with the module that it needs."""
    return Reference("", "registered hook", statement, imports=(needs,))


def _signal_handlers() -> list[Kept]:
    """Returns the handlers of signals."""
    found = []
    getsignal = module_value("_signal", "getsignal")
    default = module_value("_signal", "default_int_handler")
    for number in range(1, _MOST_SIGNALS) if getsignal is not None else ():
        try:
            handler = getsignal(number)
        except ValueError:
            continue
        if type(handler) is int:
            continue
        name = f"signal.getsignal({number})"
        # 2 is SIGINT.
        before = "default_int_handler" if number == 2 else "SIG_DFL"
        undo = _undo(f"signal.signal({number}, signal.{before})", "signal")
        found.append(Kept(name, handler, None if handler is default else undo))
    return found


def _torch_keeps() -> list[Kept]:
    """Returns the modes and hooks that are active in torch: it has them on stacks in native code."""
    found = []
    for module, name in _STACKS:
        stack = module_value(module, name)
        for number, one in enumerate(() if stack is None else stack()):
            found.append(Kept(f"{module}.{name}()[{number}]", one))
    top = module_value("torch._C._autograd", "_top_saved_tensors_default_hooks")
    hooks = None if top is None else top(True)
    statement = "torch._C._autograd._pop_saved_tensors_default_hooks()"
    undo = _undo(statement, "torch._C._autograd")
    for number, one in enumerate(hooks or ()):
        name = f"torch._C._autograd._top_saved_tensors_default_hooks(True)[{number}]"
        found.append(Kept(name, one, undo))
    return found


_STACKS = (
    ("torch.overrides", "_get_current_function_mode_stack"),
    ("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack"),
)


def name_of(value: object) -> str | None:
    """Returns what an object that the interpreter keeps is called, or None if it is not known."""
    for one in kept():
        if one.value is value:
            return one.name
    rare_name = rare.name_of(value)
    if rare_name is not None:
        return rare_name
    if type(value) is list:
        return _fork_name(value)
    if type(value) is Context:
        return "contextvars.copy_context()" if is_current(value) else "context of another thread"
    if type(value) is dict:
        copied = item(value, "__name__")
        if type(copied) is str and type(item(value, "__spec__")).__name__ == "ModuleSpec":
            return f"the interpreter's copy of the names of {copied}"
    return None


def _fork_name(value: list[object]) -> str | None:
    own = {
        "before_fork": "before",
        "after_fork": "after_in_parent",
        "after_fork_in_child": "after_in_child",
    }
    for one in value:
        if getattr(one, "__self__", None) is EXAMINING if type(one) is _METHOD else False:
            when = own.get(one.__name__)  # type: ignore[attr-defined]
            if when is not None:
                return f"functions of os.register_at_fork({when}=…)"
    return None


def is_current(context: Context) -> bool:
    """Returns whether a context has the same values as that of this thread."""
    here = copy_context()
    values = list(Context.items(context))
    return len(here) == len(values) and all(
        any(known is name and one is value for known, one in here.items()) for name, value in values
    )


def of_native(value: object) -> str:
    """Returns what a person does about an object that only native code holds, as a sentence."""
    name = type_name(type(value))
    if is_a(value, FunctionType) or type(value) is MethodType:
        whom = " or ".join(_takers()) or "a library"
        called = function_name(value).partition(" (")[0]
        return f"unregister {called}, given perhaps to {whom}"
    if type(value) is Context:
        return "set the variable to None in the thread that has this context, or end that thread"
    enabled = module_value("faulthandler", "is_enabled")
    if is_a(value, _FILE) and enabled is not None and enabled():
        return "call faulthandler.disable() if it is the file that faulthandler writes to"
    return (
        f"close or drop the object of a library that uses this {name}: an iterator, a session, a "
        "callback"
    )


_TAKERS = (
    ("sqlite3", "Connection", "create_function"),
    ("torch._C", "Future", "until its set_result"),
)
"""Classes whose objects have callbacks in native code, and what their users know of them."""


def _takers() -> list[str]:
    """Returns who may have a callback that only native code has, by its name if it is a global one."""
    found = []
    for module, name, how in _TAKERS:
        kind = module_value(module, name)
        takers = [] if kind is None else objects_of(kind)
        names = [known[1] for one in takers if (known := global_name(one))]
        if takers:
            found.append(f"{' or '.join(names[:2]) or f'a {name}'} ({how})")
    return found
