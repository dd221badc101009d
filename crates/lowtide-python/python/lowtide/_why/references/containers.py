"""Readers for containers, modules and weak references.

Each reader yields every place where `held` stands in `holder`, found by identity alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import MappingProxyType, ModuleType
from typing import Any

from ..._native import referents, refers
from .cuts import (
    attribute_step,
    del_deque_element,
    del_item,
    del_list_element,
    discard,
)
from .look import (
    AnyDict,
    class_dict,
    full_type_name,
    instance_dict,
    is_a,
    is_name,
    item,
    key_text,
    module_dict,
    mro,
    pairs,
    read,
)
from .reference import Reference

_DEL = "del {path}"


def read_dict(holder: AnyDict, held: object) -> Iterator[Reference]:
    """Yields values by their key, and keys themselves."""
    for position, (key, value) in enumerate(pairs(holder)):
        if value is held:
            yield Reference(f"[{key_text(key)}]", "item", _DEL, del_item(holder, key, held))
        if key is held:
            verb = f"del {{holder}}[list({{holder}})[{position}]]"
            step = f" (key {position}, {key_text(key)})"
            yield Reference(step, "key", verb, del_item(holder, key, held))


def read_list(holder: list[Any], held: object) -> Iterator[Reference]:
    """Yields elements by their index."""
    for index, value in enumerate(list.__iter__(holder)):
        if value is held:
            act = del_list_element(holder, index, held)
            yield Reference(f"[{index}]", "element", _DEL, act)


def read_deque(holder: deque[Any], held: object) -> Iterator[Reference]:
    """Yields elements of a queue by their index."""
    for index, value in enumerate(deque.__iter__(holder)):
        if value is held:
            act = del_deque_element(holder, index, held)
            yield Reference(f"[{index}]", "element", _DEL, act)


def read_tuple(holder: tuple[Any, ...], held: object) -> Iterator[Reference]:
    """Yields elements by index, or by field where the tuple has named ones."""
    names = _fields(type(holder))
    for index, value in enumerate(tuple.__iter__(holder)):
        if value is held:
            step = f".{names[index]}" if index < len(names) else f"[{index}]"
            why = "a tuple cannot be changed: drop the tuple, or put another in its place"
            yield Reference(step, "element", why_not=why)


def _fields(cls: type) -> list[str]:
    for base in mro(cls):
        fields = item(class_dict(base), "_fields")
        if type(fields) is tuple and all(is_name(field) for field in fields):
            return list(fields)
    return []


def read_set(holder: set[Any], held: object) -> Iterator[Reference]:
    """Yields an element of a set, which has no index or key."""
    for value in set.__iter__(holder):
        if value is held:
            step = f" (element {key_text(held)})"
            yield Reference(step, "element", "remove it from {holder}", discard(holder, held))


def read_frozenset(holder: frozenset[Any], held: object) -> Iterator[Reference]:
    """Yields an element that cannot be removed."""
    for value in frozenset.__iter__(holder):
        if value is held:
            why = "a frozenset cannot be changed: drop the set"
            yield Reference(f" (element {key_text(held)})", "element", why_not=why)


def read_proxy(holder: MappingProxyType[Any, Any], held: object) -> Iterator[Reference]:
    """Yields the mapping behind a read-only view, and what stands in that mapping."""
    mapping: Any
    for mapping in referents(holder):
        why = "this is a read-only view: cut in the mapping behind it"
        if mapping is held:
            yield Reference("", "mapping", why_not=why)
        elif is_a(mapping, dict):
            for found in read_dict(mapping, held):
                verb = None if found.verb == _DEL else found.verb
                yield Reference(found.step, found.kind, verb, found.act, via=(id(mapping),))


def read_module(holder: ModuleType, held: object) -> Iterator[Reference]:
    """Yields the names of a module, which a person deletes."""
    namespace = module_dict(holder)
    if namespace is held:
        yield Reference(".__dict__", "namespace", why_not="a module cannot lose its namespace")
    for key, value in pairs(namespace):
        if value is held:
            act = del_item(namespace, key, held)
            yield Reference(attribute_step(key), "attribute", _DEL, act, via=(id(namespace),))


def read_weak_mapping(holder: object, held: object) -> Iterator[Reference]:
    """Yields the values of a dict with weak keys, and the keys of one with weak values."""
    attributes = instance_dict(holder) or {}
    data = item(attributes, "data")
    if data is held or not is_a(data, dict):
        return
    via = (id(attributes), id(data))
    for key, value in pairs(data):
        if value is held:
            act = del_item(data, key, held)
            yield Reference(f"[{key_text(key)}]", "weak value", _DEL, act, via=via)
        if key is held:
            act = del_item(data, key, held)
            yield Reference(f" (key {key_text(key)})", "key", "drop the key", act, via=via)


def read_weakref(holder: object, held: object) -> Iterator[Reference]:
    """Yields the callback of a weak reference, which never holds its target."""
    if read(holder, "__callback__") is held and refers(holder, held):
        why = "a weakref holds its callback: drop the weakref"
        yield Reference(".__callback__", "weakref callback", why_not=why)


def read_hidden(holder: object, held: object) -> Iterator[Reference]:
    """Yields a reference that the collector sees and that has no name."""
    if refers(holder, held):
        name = full_type_name(type(holder))
        why = f"no name leads into {name}: drop the {name}"
        yield Reference(f" (inside {name})", "hidden", why_not=why)
