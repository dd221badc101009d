"""Objects that the interpreter keeps outside of modules, and what each is called.

Some of them can be asked for: profile and trace functions, signal handlers, hooks. They are roots of
the walk, under the expression that gives them. Others are lists and dicts that no function gives:
what runs at a fork, codecs and their error handlers. The walk finds them as objects that only native
code has, and they are recognised by what everybody finds in them.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from .alone import EXAMINING
from .references.look import module_value, pairs

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
    return [one for one in found if one.value is not None]


def name_of(value: object) -> str | None:
    """Returns what an object that the interpreter keeps is called, or None if it is not known."""
    for one in kept():
        if one.value is value:
            return one.name
    if type(value) is list:
        return _list_name(value)
    if type(value) is dict:
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
