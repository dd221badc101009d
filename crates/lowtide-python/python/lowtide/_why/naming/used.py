"""Whether the program plainly uses what has a name, rather than forgot it.

The walk knows that names and attributes alone lead to an object. A name that functions assign again and again has
what was last there (`self.last_batch = batch`), an output of a notebook is nobody's, and a result with its graph
is no weight.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

from ..._native import HeldObject
from ..references.look import class_items, is_a, module_dict, mro, namespace_of, pairs
from ..references.shell import OUTPUT, running_shell, user_names
from ..references.tensors import has_graph, is_tensor
from .path import NamedPath


def is_used(held: HeldObject, paths: list[NamedPath]) -> bool:
    """Returns whether the program uses an object, to which these paths lead."""
    if not held.in_use or not is_tensor(held.object):
        return held.in_use
    if has_graph(held.object) or any(path.entry(OUTPUT) for path in paths):
        return False
    names = [(path.holder(), name) for path in paths if (name := path.last_name())]
    is_current = len({id(path.holder()) for path in paths}) > 1
    return is_current or not any(_assigned_again(holder, name) for holder, name in names)


def _assigned_again(holder: object, name: str) -> bool:
    """Returns whether functions of a module assign a name of it, or methods other than `__init__` an attribute; and
    whether it is a variable of a notebook."""
    names = module_dict(holder) if is_a(holder, ModuleType) else holder  # type: ignore[arg-type]
    if type(names) is dict and namespace_of(names) is not None:
        shell = running_shell()
        own = [one for _, one in pairs(names) if type(one) is FunctionType or is_a(one, type)]
        functions = [one for value in own for one in _functions(value) if one.__globals__ is names]
        is_note = shell is not None and user_names(shell) is names
        return is_note or any(_stores(one.__code__, name, "STORE_GLOBAL") for one in functions)
    cls = holder if is_a(holder, type) else type(holder)
    methods = [one for base in mro(cls) for one in _functions(base)]  # type: ignore[arg-type]
    made = "" if is_a(holder, type) else "__init__"
    return any(_stores(one.__code__, name, "STORE_ATTR") for one in methods if one.__name__ != made)


def _functions(value: object) -> Iterator[FunctionType]:
    if type(value) is FunctionType:
        yield value
    elif is_a(value, type):
        for _, one in class_items(value):  # type: ignore[arg-type]
            function = getattr(one, "__func__", one) if type(one) is classmethod else one
            if type(function) is FunctionType:
                yield function


def _stores(code: CodeType, name: str, how: str) -> bool:
    inside = [one for one in code.co_consts if type(one) is CodeType]
    here = name in code.co_names and any(
        one.opname == how and one.argval == name for one in dis.get_instructions(code)
    )
    return here or any(_stores(one, name, how) for one in inside)
