"""Readers for containers, modules and weak references.

Each reader yields every place where `held` stands in `holder`, found by identity alone.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType, ModuleType
from typing import Any

from ..._native import referents, refers
from . import spelling
from .hooks import read_module_hooks
from .look import (
    AnyDict,
    class_dict,
    full_type_name,
    indexes,
    instance_dict,
    is_a,
    is_name,
    item,
    key_text,
    module_dict,
    module_value,
    mro,
    namespace_of,
    overrides,
    pairs,
    places,
    read,
)
from .reference import UNWRITTEN, Reference

_GC = ("gc",)


def read_dict(holder: AnyDict, held: object) -> Iterator[Reference]:
    """Yields values by their key, and keys themselves."""
    if not refers(holder, held):
        return
    for position, (key, value) in enumerate(pairs(holder)):
        if value is held:
            reach, verb = spelling.item(holder, key, position)
            remark = "" if reach.startswith("{holder}") else f"key {key_text(key)}"
            step = f"[{key_text(key)}]"
            found = Reference(step, "item", verb, reach=reach, remark=remark)
            is_namespace = type(holder) is dict and namespace_of(holder) is not None
            yield _with_original(found, holder, key, held) if is_namespace else found
        if key is held:
            reach, verb = spelling.key_at(holder, position)
            step, remark = f" (key {position}, {key_text(key)})", f"key {key_text(key)}"
            yield Reference(step, "key", verb, reach=reach, remark=remark)


def read_list(holder: list[Any], held: object) -> Iterator[Reference]:
    """Yields elements by their index."""
    for index in indexes(holder, held):
        reach, verb = spelling.element(holder, list, index)
        yield Reference(f"[{index}]", "element", verb, reach=reach)


def read_deque(holder: deque[Any], held: object) -> Iterator[Reference]:
    """Yields elements of a queue by their index."""
    for index in places(holder, deque.__iter__(holder), held):
        reach, verb = spelling.element(holder, deque, index)
        imports = ("collections",) if "collections." in reach + verb else ()
        yield Reference(f"[{index}]", "element", verb, reach=reach, imports=imports)


def read_tuple(holder: tuple[Any, ...], held: object) -> Iterator[Reference]:
    """Yields elements by index, or by field where the tuple has named ones."""
    names = _fields(type(holder))
    for index in indexes(holder, held):
        step = f".{names[index]}" if index < len(names) else f"[{index}]"
        reach = f"{{holder}}{step}"
        if overrides(type(holder), tuple, "__getitem__", "__getattribute__"):
            reach = f"tuple.__getitem__({{holder}}, {index})"
        why = "a tuple cannot be changed: drop the tuple, or put another in its place"
        yield Reference(step, "element", why_not=why, reach=reach)


def _fields(cls: type) -> list[str]:
    for base in mro(cls):
        fields = item(class_dict(base), "_fields")
        if type(fields) is tuple and all(is_name(field) for field in fields):
            return list(fields)
    return []


def read_set(holder: set[Any], held: object) -> Iterator[Reference]:
    """Yields an element of a set, which has no index or key."""
    for position in places(holder, set.__iter__(holder), held):
        step, reach = f" (element {key_text(held)})", f"list({{holder}})[{position}]"
        verb = f"{{holder}}.discard({reach})"
        if overrides(type(holder), set, "__iter__", "discard"):
            reach = f"list(set.__iter__({{holder}}))[{position}]"
            verb = f"set.discard({{holder}}, {reach})"
        yield Reference(step, "element", verb, reach=reach)


def read_frozenset(holder: frozenset[Any], held: object) -> Iterator[Reference]:
    """Yields an element that cannot be removed."""
    for position in places(holder, frozenset.__iter__(holder), held):
        why = "a frozenset cannot be changed: drop the set"
        step, reach = f" (element {key_text(held)})", f"list({{holder}})[{position}]"
        yield Reference(step, "element", why_not=why, reach=reach)


def read_proxy(holder: MappingProxyType[Any, Any], held: object) -> Iterator[Reference]:
    """Yields the mapping behind a read-only view, and what stands in that mapping."""
    mapping: Any
    for at, mapping in enumerate(referents(holder)):
        why = "this is a read-only view: cut in the mapping behind it"
        behind = f"gc.get_referents({{holder}})[{at}]"
        if mapping is held:
            yield Reference("", "mapping", why_not=why, reach=behind, imports=_GC)
        elif is_a(mapping, dict):
            for found in read_dict(mapping, held):
                verb, reach = (
                    text.replace("{holder}", behind) for text in (found.verb or "", found.reach)
                )
                via = (id(mapping),)
                yield Reference(found.step, found.kind, verb, via=via, reach=reach, imports=_GC)


def read_module(holder: ModuleType, held: object) -> Iterator[Reference]:
    """Yields the names of a module, which a person deletes."""
    namespace = module_dict(holder)
    if namespace is held:
        yield Reference(".__dict__", "namespace", why_not="a module cannot lose its namespace")
    for key, value in pairs(namespace):
        if value is held:
            step, via = spelling.attribute_step(key), (id(namespace),)
            found = Reference(step, "attribute", "del {path}", via=via)
            yield _with_original(found, namespace, key, held)
    yield from read_module_hooks(holder, held)


def _with_original(found: Reference, namespace: AnyDict, key: object, held: object) -> Reference:
    """Returns the reference from a module to an object as one that is cut by putting back what the name
    stood for before, if that is known."""
    original = spelling.original_value(namespace, key, held)
    if original is None:
        return found
    return replace(found, verb=f"{{path}} = {original[0]}", instead=(found, original[1]))


def read_weak_mapping(holder: object, held: object) -> Iterator[Reference]:
    """Yields the values of a dict with weak keys, and the keys of one with weak values."""
    attributes = instance_dict(holder) or {}
    data = item(attributes, "data")
    if data is held or not is_a(data, dict) or not refers(data, held):
        return
    via = (id(attributes), id(data))
    for position, (key, value) in enumerate(pairs(data)):
        if value is held:
            step, remark = f"[{key_text(key)}]", f"key {key_text(key)}"
            reach, verb = _in_data(spelling.item(data, key, position))
            yield Reference(step, "weak value", verb, via=via, reach=reach, remark=remark)
        if key is held:
            step = f" (key {key_text(key)})"
            reach, verb = _in_data(spelling.key_at(data, position))
            yield Reference(step, "key", verb, via=via, reach=reach)


def _in_data(spelled: tuple[str, str]) -> tuple[str, str]:
    reach, verb = (text.replace("{holder}", "{holder}.data") for text in spelled)
    return reach, verb


def read_weakref(holder: object, held: object) -> Iterator[Reference]:
    """Yields the callback of a weak reference, which never holds its target."""
    if read(holder, "__callback__") is held and refers(holder, held):
        why = "a weakref holds its callback: drop the weakref"
        yield Reference(".__callback__", "weakref callback", why_not=why)


def read_hidden(holder: object, held: object) -> Iterator[Reference]:
    """Yields a reference that the collector sees and that has no name."""
    if refers(holder, held):
        name = full_type_name(type(holder))
        step, why = f" (inside {name})", f"no name leads into {name}: drop the {name}"
        yield Reference(step, "hidden", why_not=why, reach=f"{{holder}}{UNWRITTEN}inside")


def read_simple_queue(holder: object, held: object) -> Iterator[Reference]:
    """Yields the items of a `queue.SimpleQueue`, which have no index."""
    visible = referents(holder)
    # Up to Python 3.12 they are in a list, behind the places of those that were taken.
    lists = [one for one in visible if type(one) is list]
    inside = lists[0] if len(lists) == 1 else None
    if inside is held:
        return
    found = visible if inside is None else list.__iter__(inside)
    waiting = module_value("_queue", "SimpleQueue").qsize(holder)
    items = list(found)
    first = len(items) - waiting
    for at, one in enumerate(items):
        if one is held and at >= first:
            via = () if inside is None else (id(inside),)
            step, reach = f" (item {at - first})", f"{{holder}}{UNWRITTEN}item {at - first}"
            act = functools.partial(_take_out, holder, at - first)
            verb = f"{reach} taken out"
            yield Reference(step, "queued", verb, act, via=via, reach=reach)


def _take_out(jobs: Any, index: int) -> None:
    """Takes a job out of a queue. Who waits for its future is told that it is cancelled."""
    for at, job in enumerate([jobs.get_nowait() for _ in range(jobs.qsize())]):
        future = item(instance_dict(job) or {}, "future")
        if at != index:
            jobs.put(job)
        elif (kind := module_value("concurrent.futures", "Future")) and is_a(future, kind):
            future.cancel()
