"""The calls that `atexit` makes when the program ends, and how one is cancelled.

The interpreter has them outside of every module. They are read from its state (`exit_calls`), since the
only function that looks at all of them compares them, and that runs code of the program.
"""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import NamedTuple

from ..._native import exit_calls
from ..._runtime.guest import HOME, IS_GUEST
from ..references.functions import function_name
from ..references.look import descriptor, global_name, module_value
from ..references.reference import Reference


def _known_call() -> Callable[[], object]:
    """Returns a call at exit of ours. The native side finds the others by this one."""
    if IS_GUEST:
        end: Callable[[], object] = vars(sys.modules[HOME])["end"]
        return end

    def mark() -> None: ...

    return atexit.register(mark)


_mark = _known_call()
_count = atexit._ncallbacks
_NOT_COMPARED: tuple[type, ...] = (FunctionType, MethodType, BuiltinFunctionType)
"""Functions are equal only to themselves."""


class ExitCall(NamedTuple):
    """A call at exit: its function, its arguments, and those with names if there are any."""

    function: object
    arguments: object
    keywords: object


def _all() -> tuple[list[ExitCall], object]:
    found = exit_calls(_mark, _count())
    if found is None:
        return [], None
    return [ExitCall(*call) for call in found[0] if call[0] is not _mark], found[1]


def callbacks() -> list[object]:
    """Returns the functions that run at exit, each once; none where they cannot be read."""
    return list({id(call.function): call.function for call in _all()[0]}.values())


def is_list(value: object) -> bool:
    """Returns whether it is the interpreter's list of calls."""
    return type(value) is list and value is _all()[1]


def list_number() -> int:
    """Returns the `id` of the interpreter's list of calls, or 0 where it has none: up to Python 3.13."""
    found = _all()[1] if sys.version_info >= (3, 14) else None
    return 0 if found is None else id(found)


def without_list(objects: list[object]) -> list[object]:
    """Returns a path without the list of calls and the call, with which it begins from Python 3.14 on:
    it then begins with the function or the arguments, as in older versions."""
    if not objects or not is_list(objects[0]):
        return objects
    # A path that ends with the call ends with its function.
    return objects[2:] or [one[0] for one in objects[1:] if type(one) is tuple] or objects


def call_of(value: object) -> ExitCall | None:
    """Returns the call at exit with this function or these arguments, or None."""
    is_empty = type(value) is tuple and not value  # There is only one of these.
    for call in [] if is_empty else _all()[0]:
        if any(part is value for part in call):
            return call
    return None


def call_name(value: object) -> str | None:
    """Returns what a function that runs at exit is called, or its arguments; None if it does not."""
    call = call_of(value)
    if call is None:
        return None
    name = f"exit callback {function_name(call.function)}"
    return name if call.function is value else f"arguments of {name}"


def exit_reference(call: ExitCall) -> Reference:
    """Returns the reference to a call at exit. What cuts it cancels all calls of its function."""
    why = f"call atexit.unregister with {function_name(call.function)}"
    comparing = [one for one in callbacks() if _compares_itself(one)]
    if comparing:
        why += f" ({function_name(comparing[0])} compares itself, and may go too)"
        return Reference("", "exit callback", why_not=why)
    # By identity: the statement takes an equal function, or one of the same name.
    act = functools.partial(module_value("atexit", "unregister"), call.function)
    module, name = global_name(call.function) or ("", "")
    is_plain = module.replace(".", "").isidentifier()
    verb = f"atexit.unregister({module}.{name})" if is_plain else None
    return Reference("", "exit callback", verb, act, why_not=why, imports=("atexit", module))


def goes_with(function: object) -> str:
    """Returns the calls that go when a function is unregistered, in words."""
    times, name = sum(call.function is function for call in _all()[0]), function_name(function)
    return name if times == 1 else f"all {times} calls of {name}"


def _compares_itself(function: object) -> bool:
    """Returns whether a function is an object whose class says what is equal to it."""
    if type(function) in _NOT_COMPARED:
        return False
    return descriptor(function, "__eq__") is not vars(object)["__eq__"]
