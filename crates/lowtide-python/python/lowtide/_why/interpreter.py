"""Objects that the interpreter and torch keep outside of modules, and what each is called.

Some of them can be asked for: profile and trace functions, signal handlers, hooks, exit callbacks,
the modes that are active in torch. They are roots of the walk, under the expression that gives them.
Others are lists and dicts that no function gives: what runs at a fork, codecs and their error
handlers. The walk finds them as objects that only native code has, and they are recognised by what
everybody finds in them.
"""

from __future__ import annotations

import _io
import functools
import sys
from contextvars import Context, copy_context
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from .alone import EXAMINING
from .references.look import is_a, item, module_value, pairs, plain, read, type_name
from .references.reference import Reference

_MOST_SIGNALS = 65


class Kept(NamedTuple):
    """An object that the interpreter keeps, and an expression or words for it."""

    name: str
    value: object


def kept() -> list[Kept]:
    """Returns what the interpreter keeps and gives when it is asked."""
    hooks = sys.get_asyncgen_hooks()
    found = [
        Kept("sys.getprofile()", sys.getprofile()),
        Kept("sys.gettrace()", sys.gettrace()),
        Kept("sys.get_asyncgen_hooks().firstiter", hooks.firstiter),
        Kept("sys.get_asyncgen_hooks().finalizer", hooks.finalizer),
    ]
    getsignal = module_value("_signal", "getsignal")
    if getsignal is not None:
        for number in range(1, _MOST_SIGNALS):
            try:
                handler = getsignal(number)
            except ValueError:
                continue
            if type(handler) is not int:
                found.append(Kept(f"signal.getsignal({number})", handler))
    found += _torch_keeps()
    return [one for one in found if one.value is not None]


class _Listener:
    """An object that is equal to nothing, and notes with what it is compared."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def __eq__(self, other: object) -> bool:
        self.heard.append(other)
        return False

    __hash__ = None  # type: ignore[assignment]


def exit_callbacks() -> list[object]:
    """Returns the functions that run at exit. No function lists them, but one compares them all."""
    unregister = module_value("atexit", "unregister")
    if not is_a(unregister, _BUILT_IN):
        return []  # The program has put its own in its place.
    listener: Any = _Listener()
    unregister(listener)
    heard = {id(one): one for one in listener.heard}
    return list(heard.values())


_BUILT_IN: type = type(len)


def is_exit_callback(value: object) -> bool:
    """Returns whether a function runs at exit."""
    return any(one is value for one in exit_callbacks())


def exit_reference(value: object) -> Reference:
    """Returns the reference to a function that runs at exit."""
    name = _qualified(value)
    same = [one for one in exit_callbacks() if _qualified(one) == name]
    verb = None
    if len(same) == 1:
        # `unregister` takes an equal function, and nothing else leads to this one.
        is_it = f"lambda _, one: getattr(one, '__qualname__', type(one).__name__) == {name!r}"
        verb = f"atexit.unregister(type('Same', (), {{'__eq__': {is_it}}})())"
    why = f"call atexit.unregister with {function_name(value)}"
    act = functools.partial(module_value("atexit", "unregister"), value)
    return Reference("", "exit callback", verb, act, why_not=why, imports=("atexit",))


def unregister_exit(number: int) -> None:
    """Unregisters the function with this id that runs at exit, if it still does."""
    for one in exit_callbacks():
        if id(one) == number:
            module_value("atexit", "unregister")(one)


def _qualified(value: Any) -> str:
    if type(value) is MethodType:
        value = value.__func__
    if is_a(value, FunctionType):
        return plain(FunctionType.__dict__["__qualname__"].__get__(value))
    name = read(value, "__qualname__")
    return name if type(name) is str else plain(type(value).__name__)


def _torch_keeps() -> list[Kept]:
    """Returns the modes and hooks that are active in torch: it has them on stacks in native code."""
    found = []
    for module, name in _STACKS:
        stack = module_value(module, name)
        for number, one in enumerate(() if stack is None else stack()):
            found.append(Kept(f"{module}.{name}()[{number}]", one))
    top = module_value("torch._C._autograd", "_top_saved_tensors_default_hooks")
    hooks = None if top is None else top(True)
    for number, one in enumerate(hooks or ()):
        name = f"torch._C._autograd._top_saved_tensors_default_hooks(True)[{number}]"
        found.append(Kept(name, one))
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
    if is_exit_callback(value):
        return f"exit callback {function_name(value)}"
    if type(value) is list:
        return _list_name(value)
    if type(value) is Context:
        return "contextvars.copy_context()" if is_current(value) else "context of another thread"
    if type(value) is dict:
        copied = item(value, "__name__")
        if type(copied) is str and type(item(value, "__spec__")).__name__ == "ModuleSpec":
            return f"the interpreter's copy of the names of {copied}"
        strict = module_value("codecs", "strict_errors")
        if strict is not None and any(one is strict for _, one in pairs(value)):
            return "error handlers of codecs.register_error"
        if any(key == "utf_8" or key == "utf-8" for key, _ in pairs(value) if type(key) is str):
            return "cache of codecs.lookup"
    return None


def _list_name(value: list[object]) -> str | None:
    search = module_value("encodings", "search_function")
    if search is not None and any(one is search for one in value):
        return "functions of codecs.register"
    own = {
        "before_fork": "before",
        "after_fork": "after_in_parent",
        "after_fork_in_child": "after_in_child",
    }
    for one in value:
        if getattr(one, "__self__", None) is EXAMINING if type(one) is _METHOD else False:
            when = own.get(one.__func__.__name__)  # type: ignore[attr-defined]
            if when is not None:
                return f"functions of os.register_at_fork({when}=…)"
    return None


_METHOD = type(EXAMINING.before_fork)


def is_current(context: Context) -> bool:
    """Returns whether a context has the same values as that of this thread."""
    here = copy_context()
    values = list(Context.items(context))
    return len(here) == len(values) and all(
        any(known is name and one is value for known, one in here.items()) for name, value in values
    )


def function_name(value: Any) -> str:
    """Returns a function with the place where it is defined: `save() (shop.py line 12)`."""
    bound = ""
    if type(value) is MethodType:
        bound, value = f"{type_name(type(value.__self__))}.", value.__func__
    if not is_a(value, FunctionType):
        name = read(value, "__name__")
        return f"{name}()" if type(name) is str else type_name(type(value))
    code = FunctionType.__dict__["__code__"].__get__(value)
    file = plain(code.co_filename).rpartition("/")[2]
    name = plain(FunctionType.__dict__["__name__"].__get__(value))
    return f"{bound}{name}() ({file} line {code.co_firstlineno})"


def of_native(value: object) -> str:
    """Returns what a person does about an object that only native code holds, as a sentence."""
    name = type_name(type(value))
    if is_a(value, FunctionType) or type(value) is MethodType:
        return (
            f"unregister {function_name(value)} where it was given to a library as a callback (one "
            "of sys.addaudithook stays until the process ends)"
        )
    if type(value) is Context:
        return "set the variable to None in the thread that has this context, or end that thread"
    if is_a(value, tuple) or is_a(value, dict):
        callbacks = [function_name(one) for one in exit_callbacks()][:_MOST_CALLBACKS]
        if callbacks:
            return (
                f"drop the call that has this {name} as its arguments; if it is one of atexit, call "
                f"atexit.unregister with its function, one of {', '.join(callbacks)}"
            )
    enabled = module_value("faulthandler", "is_enabled")
    if is_a(value, _FILE) and enabled is not None and enabled():
        return "call faulthandler.disable() if it is the file that faulthandler writes to"
    return (
        f"close or drop the object of a library that uses this {name}: an iterator, a session, a "
        "callback, a profiler of another thread"
    )


_FILE = vars(_io)["_IOBase"]
_MOST_CALLBACKS = 4
