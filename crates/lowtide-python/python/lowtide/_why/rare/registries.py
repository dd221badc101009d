"""Registries of the interpreter and of torch that no function gives, and what is done about an entry.

Profile and trace functions of other threads, callbacks of `sys.monitoring` and audit hooks are pointers
in the interpreter's state (`kept_by`). Codecs have functions that replace or remove an entry. Hooks of
autograd's nodes are removed by their handles.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import OrderedDict
from types import FunctionType
from typing import Any

from ..._native import kept_by
from ..references.contexts import thread_name
from ..references.functions import function_name
from ..references.look import is_a, literal, module_value, pairs, plain
from ..references.reference import UNWRITTEN, Reference

CODECS = "functions of codecs.register"
ERROR_HANDLERS = "error handlers of codecs.register_error"
CODEC_CACHE = "cache of codecs.lookup"
_HOOKS = "hooks of a node of autograd"
_FUNCTION = "profile or trace function of"
_AUDIT = "audit hook"
_MONITORING = "callback of sys.monitoring"
_MOST_TOOLS = 6


def registry_name(value: object) -> str | None:
    """Returns what a registry or something registered is called, or None if it is neither."""
    if type(value) is dict:
        strict = module_value("codecs", "strict_errors")
        if strict is not None and any(one is strict for _, one in pairs(value)):
            return ERROR_HANDLERS
        codec = module_value("codecs", "CodecInfo")
        if codec is not None and value and all(is_a(one, codec) for _, one in pairs(value)):
            return CODEC_CACHE
    if type(value) is list:
        search = module_value("encodings", "search_function")
        if search is not None and any(one is search for one in value):
            return CODECS
    entries = list(pairs(value)) if type(value) is OrderedDict else []
    # Functions by their numbers, as torch keeps hooks.
    if entries and all(type(key) is int and callable(one) for key, one in entries):
        return _HOOKS
    return _state_name(value) if callable(value) else None


def _state_name(value: object) -> str | None:
    """Returns what an object is called that the interpreter has in its own state, or None."""
    threads = dict(threading._active)  # type: ignore[attr-defined]
    code = id(value.__code__) if type(value) is FunctionType else 0
    where = kept_by(value, list(threads), code)
    if type(where) is int:
        return f"{_FUNCTION} thread {thread_name(threads.get(where))!r}, {function_name(value)}"
    if where == "hooks":
        return f"{_AUDIT} {function_name(value)}"
    if where == "interpreter" and hasattr(sys, "monitoring") and _used_tools():
        return f"{_MONITORING} {function_name(value)}"
    return None


def advice(name: str) -> str | None:
    """Returns what a person does about an object of this name, as a sentence, or None."""
    if name == _HOOKS:
        return (
            "call remove() of the handle that register_hook() or register_prehook() returned, or drop "
            "the tensors whose graph has the node"
        )
    if name.startswith(_FUNCTION):
        return "call sys.setprofile(None) and sys.settrace(None) in that thread, or end it"
    if name.startswith(_AUDIT):
        return "let the hook drop what it holds: the hook itself stays until the process ends"
    if name.startswith(_MONITORING):
        tools = ", ".join(_used_tools()) or "the tool that registered it"
        return f"call sys.monitoring.register_callback(tool, event, None) for {tools}"
    return None


def undo(name: str, function: Any) -> Reference | None:
    """Returns what unregisters a function of this name, if a statement can: a reference from the
    interpreter to the function."""
    if name.startswith(_FUNCTION) and hasattr(threading, "settrace_all_threads"):
        verb = "threading.setprofile_all_threads(None), threading.settrace_all_threads(None)"
        return Reference("", "registered hook", verb, imports=("threading",))
    if name.startswith(_MONITORING):
        act = functools.partial(_unregister, function)
        return Reference("", "registered hook", act=act, why_not=advice(name) or "")
    return None


def _unregister(function: object) -> None:
    """Takes a callback from `sys.monitoring`. It is only given back by putting another in its place."""
    put = vars(sys)["monitoring"].register_callback
    for tool in [number for number in range(_MOST_TOOLS) if _tool(number)]:
        for event in _events():
            before = put(tool, event, None)
            if before is not function:
                put(tool, event, before)


def _events() -> tuple[int, ...]:
    """Returns the events of `sys.monitoring` that have a callback of their own."""
    events = vars(vars(sys)["monitoring"].events)
    # Since Python 3.14 it stands for two others.
    joint = {"BRANCH"} if "BRANCH_LEFT" in events else set()
    return tuple(sorted({one for name, one in events.items() if one and name not in joint}))


def _used_tools() -> list[str]:
    return [tool for tool in map(_tool, range(_MOST_TOOLS)) if tool]


def _tool(number: int) -> str:
    name = vars(sys)["monitoring"].get_tool(number)
    return "" if name is None else f"tool {number} ({plain(name)!r})"


def entry(name: str, registry: Any, held: object) -> Reference | None:
    """Returns the reference from the registry of this name to an entry, if a statement cuts it."""
    if name == ERROR_HANDLERS:
        keys = [literal(key) for key, one in pairs(registry) if one is held and type(key) is str]
        if keys and keys[0] is not None:
            # One that is registered under the same name takes its place.
            verb = f"codecs.register_error({keys[0]}, codecs.strict_errors)"
            return Reference("", "item", verb, imports=("codecs",))
    if name in (CODECS, CODEC_CACHE):
        return Reference("", "element", f"{name}{UNWRITTEN}without it")
    return None
