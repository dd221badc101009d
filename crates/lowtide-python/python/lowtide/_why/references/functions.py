"""Readers for functions, partials and caches.

Closures, defaults and caches keep objects in places that have no attribute a person would think of.
The steps here describe the place in words where no expression is short enough.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

from ..._native import referents, refers
from .look import AnyDict, instance_dict, is_a, item, key_text, pairs, plain, read, type_name
from .reference import UNWRITTEN, Reader, Reference, keeps

LRU_STEP = " (functools.lru_cache) entry"
EMPTY = object()


def read_function(holder: FunctionType, held: object) -> Iterator[Reference]:
    """Yields the closure, defaults, globals and annotations of a function."""
    yield from _closure(holder, held)
    yield from _defaults(holder, held)
    yield from _keyword_defaults(holder, held)
    if holder.__globals__ is held:
        why = "a function keeps the namespace that it was defined in: drop the function"
        yield Reference(".__globals__", "globals", why_not=why)
    if holder.__code__ is held:
        yield Reference(".__code__", "code", why_not="a function cannot lose its code")
    if (type(held) is dict or type(held) is tuple) and _is_annotations(holder, held):
        yield Reference(".__annotations__", "annotations", "{path} = {}")
    if type(held) is not tuple:
        yield from _in_annotations(holder, held)


def _closure(holder: FunctionType, held: object) -> Iterator[Reference]:
    cells = holder.__closure__
    if cells is None:
        return
    if cells is held:
        yield Reference(".__closure__", "closure", why_not="cut in the cells of the closure")
    for index, (cell, name) in enumerate(zip(cells, holder.__code__.co_freevars)):
        step, remark = f".<closure>.{plain(name)}", f"closure: {plain(name)}"
        reach = f"{{holder}}.__closure__[{index}]"
        if cell is held:
            why = "cut what is in the cell"
            yield Reference(step, "cell", why_not=why, via=(id(cells),), reach=reach, remark=remark)
        elif cell_contents(cell) is held:
            via, reach = (id(cells), id(cell)), f"{reach}.cell_contents"
            verb = f"{reach} = None"
            yield Reference(step, "closure", verb, via=via, reach=reach, remark=remark)


def cell_contents(cell: CellType) -> object:
    """Returns what is in a cell, or EMPTY."""
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def read_cell(holder: CellType, held: object) -> Iterator[Reference]:
    """Yields a variable that functions share."""
    if cell_contents(holder) is held:
        yield Reference(".cell_contents", "cell", "{path} = None")


def _defaults(holder: FunctionType, held: object) -> Iterator[Reference]:
    defaults = holder.__defaults__
    if defaults is None:
        return
    if defaults is held:
        why = "cut the one default that holds it"
        yield Reference(".__defaults__", "defaults", why_not=why)
    code = holder.__code__
    names = [plain(name) for name in code.co_varnames[: code.co_argcount]]
    first = len(names) - len(defaults)
    for index, value in enumerate(tuple.__iter__(defaults)):
        if value is held:
            name = names[first + index] if first + index >= 0 else f"[{index}]"
            now = "{holder}.__defaults__"
            before = f"*{now}[:{index}], " if index else ""
            after = f" *{now}[{index + 1}:]" if index + 1 < len(defaults) else ""
            verb = f"{now} = ({before}None,{after})"
            step, reach, remark = f"({name}=…) default", f"{now}[{index}]", f"default of {name}"
            via = (id(defaults),)
            yield Reference(step, "default", verb, via=via, reach=reach, remark=remark)


def _keyword_defaults(holder: FunctionType, held: object) -> Iterator[Reference]:
    defaults: AnyDict | None = FunctionType.__dict__["__kwdefaults__"].__get__(holder)
    if defaults is None:
        return
    if defaults is held:
        why = "cut the one default that holds it"
        yield Reference(".__kwdefaults__", "defaults", why_not=why)
    for key, value in pairs(defaults):
        if value is held:
            reach = f"{{holder}}.__kwdefaults__[{key_text(key)}]"
            verb, via = f"{reach} = None", (id(defaults),)
            step, remark = f"({plain(key)}=…) default", f"default of {plain(key)}"
            yield Reference(step, "default", verb, via=via, reach=reach, remark=remark)


def _in_annotations(holder: FunctionType, held: object) -> Iterator[Reference]:
    """Yields the annotations in a tuple of names and values: asking for them makes a dict of it."""
    for one in referents(holder):
        if type(one) is tuple and refers(one, held) and _is_annotations(holder, one):
            for name, value in zip(one[::2], one[1::2]):
                if value is held and type(name) is str:
                    step = f".__annotations__[{name!r}]"
                    yield Reference(step, "item", "del {path}", via=(id(one),))


def _is_annotations(holder: FunctionType, held: object) -> bool:
    # Asking for __annotations__ creates the dict, and on newer versions runs code. So: by
    # elimination.
    kwdefaults = FunctionType.__dict__["__kwdefaults__"].__get__(holder)
    builtins = read(holder, "__builtins__")
    others = (holder.__globals__, holder.__defaults__, holder.__closure__, kwdefaults, builtins)
    if any(held is other for other in others) or held is instance_dict(holder):
        return False
    return refers(holder, held)


# The object of a method written in C, such as the list of `list.append`.
read_builtin_method: Reader = keeps(
    "bound object", "a method holds its object: drop the method", "__self__"
)


def read_partial(holder: object, held: object) -> Iterator[Reference]:
    """Yields the arguments of a partial."""
    why = "the arguments of a partial cannot be changed: drop the partial"
    args, keywords = read(holder, "args"), read(holder, "keywords")
    if type(args) is tuple and args is not held:
        for index, value in enumerate(args):
            if value is held:
                yield Reference(f".args[{index}]", "argument", why_not=why, via=(id(args),))
    if is_a(keywords, dict) and keywords is not held:
        for key, value in pairs(keywords):
            if value is held:
                step = f".keywords[{key_text(key)}]"
                yield Reference(step, "argument", why_not=why, via=(id(keywords),))


LruCache: Any = type(functools.lru_cache(lambda: None))
"""The type of the functions that `lru_cache` makes. Untyped: its class is private to functools."""


def read_lru_cache(holder: Any, held: object) -> Iterator[Reference]:
    """Yields the results and arguments that a cache keeps, and the function inside it."""
    attributes = instance_dict(holder) or {}
    verb = "{holder}.cache_clear()"
    if item(attributes, "__wrapped__") is held:
        why = "a cache keeps the function inside it"
        step = ".__wrapped__ (functools.lru_cache)"
        yield Reference(step, "wrapped function", why_not=why, via=(id(attributes),))
        return
    for cache in referents(holder):
        if type(cache) is not dict or cache is attributes:
            continue

        def entry(step: str, *via: int, kind: str = "cache entry") -> Reference:
            return Reference(step, kind, verb, via=via, reach=f"{{holder}}{UNWRITTEN}{step}")

        if cache is held:
            yield entry(LRU_STEP, kind="cache")
        for key, value in pairs(cache):
            if key is held:
                yield entry(f"{LRU_STEP} args", id(cache))
            elif value is held:
                yield entry(LRU_STEP, id(cache))
            elif type(key) is tuple and any(part is held for part in key):
                index = next(at for at, part in enumerate(key) if part is held)
                yield entry(f"{LRU_STEP} args[{index}]", id(cache), id(key))
        if refers(holder, held) and held is not cache and _is_result(cache, held):
            yield entry(LRU_STEP, id(cache))


def _is_result(cache: AnyDict, held: object) -> bool:
    # A bounded cache keeps its results in links that cannot be read; keys were compared before.
    bounded = any(type_name(type(value)) == "_lru_list_elem" for _, value in pairs(cache))
    return bounded and not is_a(held, type) and all(key is not held for key, _ in pairs(cache))


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
