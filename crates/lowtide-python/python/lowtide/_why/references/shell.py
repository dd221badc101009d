"""What IPython keeps for its user, in the user's words: `Out[3]`, the traceback of cell 5.

`Out`, `_`, `_3`, hidden copies of these names, the display hook and the last result all refer to an output.
Nobody cuts them one by one: they are one reference here, and so are those to the traceback of a failed cell.
"""

from __future__ import annotations

import functools
import re
import sys
from types import FrameType, ModuleType, TracebackType
from typing import Any

from .look import AnyDict, class_dict, instance_dict, is_a, module_dict, module_value, pairs
from .reference import UNWRITTEN, Reference

OUTPUT, FAILED_CELL = "output", "failed cell"
_OWN_NAME = re.compile("_{1,3}|_[0-9]+")
_LAST = ("last_exc", "last_value", "last_traceback", "last_type")
_traceback = class_dict(BaseException)["__traceback__"].__get__


def running_shell() -> Any:
    """Returns the shell of IPython, or None."""
    kind = module_value("IPython.core.interactiveshell", "InteractiveShell")
    if kind is None:
        return None
    # One that somebody has made by hand is not the instance of its class.
    made = getattr(module_value("__main__", "get_ipython"), "__self__", None)
    return kind.__dict__.get("_instance") or (made if is_a(made, kind) else None)


def user_names(shell: Any) -> AnyDict:
    """Returns the variables of the user."""
    return shell.__dict__.get("user_ns") or shell.__dict__.get("_user_ns") or {}


def is_part(value: object) -> bool:
    """Returns whether the shell of IPython works only with this object."""
    shell = running_shell()
    return shell is not None and any(value is one for one in _Shell(shell).parts)


def as_known(found: list[Reference], holder: object, held: object) -> list[Reference]:
    """Returns references from an object to another. Those that are IPython's own are as its user knows them."""
    shell = running_shell()
    if shell is None:
        return found
    own = _Shell(shell)
    known: dict[str, Reference] = {}
    for one in found:
        now = own.known(one, holder, held) or one
        known.setdefault(now.step, now)
    # A variable of the user says more than the output that it was.
    return sorted(known.values(), key=lambda one: one.kind == OUTPUT)


class _Shell:
    """The places in which a shell of IPython keeps objects."""

    def __init__(self, shell: Any) -> None:
        parts = shell.__dict__.get
        self._names = user_names(shell)
        self._hidden: AnyDict = parts("user_ns_hidden", {})
        self._out: AnyDict = self._names.get("_oh", {})
        self._hook, self._tracebacks = parts("displayhook"), parts("InteractiveTB")
        self._result = parts("_trait_values", {}).get("last_execution_result")
        own = (self._names, self._hidden, self._out, self._hook, self._result)
        self.parts: tuple[object, ...] = (*own, self._tracebacks)
        self._cells: AnyDict = getattr(parts("compile"), "_filename_map", {})

    def known(self, one: Reference, holder: object, held: object) -> Reference | None:
        """Returns the reference of an output or of a failed cell, or None if this is another."""
        name = one.step.strip(".[]': ")
        if (
            (holder is self._tracebacks and name == "tb")
            or (holder is self._result and name.startswith("error_"))
            or (holder is sys and name in _LAST)
        ):
            step = f"the traceback of {self._cell(held)}"
            names = ", ".join(f"sys.{name}" for name in _LAST[:3] if name in vars(sys))
            typed = f"del {names}; get_ipython().InteractiveTB.tb = None"
            act = self._drop_failure
            return Reference(step, FAILED_CELL, act=act, via=one.via, reach="", why_not=typed)
        is_own = any(_namespace(holder) is one for one in self.parts)
        if not is_own or not (_OWN_NAME.fullmatch(name) or name.isdecimal() or name == "result"):
            return None
        numbers = [number for number, one in pairs(self._out) if one is held]
        kept = [key for key, one in pairs(instance_dict(self._hook) or {}) if one is held]
        if not numbers and not kept:
            return None
        step = f"Out[{numbers[0]}]" if numbers else kept[0]
        act = functools.partial(self._drop, held)
        return Reference(step, OUTPUT, f"{step}{UNWRITTEN}", act, via=one.via, reach=step)

    def _cell(self, held: object) -> str:
        """Returns the cell in which an exception was raised."""
        at = _traceback(held) if is_a(held, BaseException) else held
        while type(at) is TracebackType:
            number = self._cells.get(at.tb_frame.f_code.co_filename)
            if number is not None:
                return f"cell {number}"
            at = at.tb_next
        return "the last failed cell"

    def _of(self, names: AnyDict, held: object) -> list[str]:
        found = [key for key, one in pairs(names) if one is held and type(key) is str]
        return [key for key in found if _OWN_NAME.fullmatch(key)]

    def _drop(self, held: object) -> None:
        """Drops an output, but for variables of the user."""
        for names in (self._names, self._hidden):
            for name in self._of(names, held):
                del names[name]
        for number in [number for number, one in pairs(self._out) if one is held]:
            del self._out[number]
        for holder in (self._hook, self._result):
            for name in [name for name, one in pairs(instance_dict(holder) or {}) if one is held]:
                setattr(holder, name, None)

    def _drop_failure(self) -> None:
        for name in [name for name in vars(sys) if name in _LAST]:
            delattr(sys, name)
        self._tracebacks.tb = None
        if self._result is not None:
            self._result.error_in_exec = self._result.error_before_exec = None


def _namespace(holder: Any) -> object:
    """Returns the names of a module, or of the frame of its code; any other object as it is."""
    if is_a(holder, ModuleType):
        return module_dict(holder)
    is_cell = type(holder) is FrameType and holder.f_code.co_name == "<module>"
    return holder.f_globals if is_cell else holder
