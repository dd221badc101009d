"""How containers, instances and classes refer to what they hold.

These are the references that programs are made of: an attribute, an item, an element, a slot. Each
reader yields every place where `held` stands in `holder`, found by identity alone.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from types import MappingProxyType, MemberDescriptorType, ModuleType
from typing import Any

from ._cut import (
    Reference,
    attribute_step,
    clear_member,
    del_element,
    del_item,
    discard,
    none_class_attribute,
    none_item,
)
from ._look import (
    class_dict,
    class_items,
    descriptor,
    full_type_name,
    instance_dict,
    is_a,
    is_name,
    item,
    key_text,
    members,
    module_dict,
    module_value,
    mro,
    pairs,
    plain,
    read,
    refers,
    type_name,
)

_DEL = "del {path}"
_NONE = "{path} = None"


def read_dict(holder: dict[Any, Any], held: object) -> Iterator[Reference]:
    """Values by their key, and keys themselves."""
    for position, (key, value) in enumerate(pairs(holder)):
        if value is held:
            yield Reference(f"[{key_text(key)}]", "item", _DEL, del_item(holder, key, held))
        if key is held:
            verb = f"del {{holder}}[list({{holder}})[{position}]]"
            step = f" (key {position}, {key_text(key)})"
            yield Reference(step, "key", verb, del_item(holder, key, held))


def read_list(holder: list[Any], held: object) -> Iterator[Reference]:
    """Elements by their index."""
    for index, value in enumerate(list.__iter__(holder)):
        if value is held:
            act = del_element(holder, list, index, held)
            yield Reference(f"[{index}]", "element", _DEL, act)


def read_deque(holder: deque[Any], held: object) -> Iterator[Reference]:
    """Elements of a queue by their index."""
    for index, value in enumerate(deque.__iter__(holder)):
        if value is held:
            act = del_element(holder, deque, index, held)
            yield Reference(f"[{index}]", "element", _DEL, act)


def read_tuple(holder: tuple[Any, ...], held: object) -> Iterator[Reference]:
    """Elements by index, or by field where the tuple has named ones."""
    names = _fields(type(holder))
    for index, value in enumerate(tuple.__iter__(holder)):
        if value is held:
            step = f".{names[index]}" if index < len(names) else f"[{index}]"
            why = "a tuple cannot be changed: let the tuple go, or put another in its place"
            yield Reference(step, "element", why_not=why)


def _fields(cls: type) -> list[str]:
    for base in mro(cls):
        fields = item(class_dict(base), "_fields")
        if type(fields) is tuple and all(is_name(field) for field in fields):
            return list(fields)
    return []


def read_set(holder: set[Any], held: object) -> Iterator[Reference]:
    """An element of a set, which has no place of its own."""
    for value in set.__iter__(holder):
        if value is held:
            step = f" (element {key_text(held)})"
            yield Reference(step, "element", "take it out of {holder}", discard(holder, held))


def read_frozenset(holder: frozenset[Any], held: object) -> Iterator[Reference]:
    """An element that cannot be taken out again."""
    for value in frozenset.__iter__(holder):
        if value is held:
            why = "a frozenset cannot be changed: let the set go"
            yield Reference(f" (element {key_text(held)})", "element", why_not=why)


def read_proxy(holder: MappingProxyType[Any, Any], held: object) -> Iterator[Reference]:
    """A read-only view: what is behind it, and what stands in that."""
    for mapping in gc.get_referents(holder):
        why = "this is a read-only view: cut in the mapping behind it"
        if mapping is held:
            yield Reference("", "mapping", why_not=why)
        elif is_a(mapping, dict):
            for reference in read_dict(mapping, held):
                act = reference._act
                verb = None if reference.verb == _DEL else reference.verb
                yield Reference(reference.step, reference.kind, verb, act, via=(id(mapping),))


def read_module(holder: ModuleType, held: object) -> Iterator[Reference]:
    """A name of a module, which a person deletes."""
    namespace = module_dict(holder)
    if namespace is held:
        yield Reference(".__dict__", "namespace", why_not="a module cannot lose its namespace")
    for key, value in pairs(namespace):
        if value is held:
            act = del_item(namespace, key, held)
            yield Reference(attribute_step(key), "attribute", _DEL, act, via=(id(namespace),))


def read_weak_mapping(holder: object, held: object) -> Iterator[Reference]:
    """A dictionary with weak keys holds its values; one with weak values holds its keys."""
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
    """A weak reference holds its callback, never its target."""
    if read(holder, "__callback__") is held and refers(holder, held):
        why = "a callback goes with its weakref: let the weakref go"
        yield Reference(".__callback__", "weakref callback", why_not=why)


def read_class(holder: type, held: object) -> Iterator[Reference]:
    """Class attributes, bases and the order of the classes."""
    namespace = class_dict(holder)
    if namespace is held:
        yield Reference(".__dict__", "namespace", why_not="a class cannot lose its namespace")
    changeable = bool(type.__dict__["__flags__"].__get__(holder) & _HEAP_TYPE)
    for key, value in class_items(holder):
        if value is held:
            step, via = attribute_step(key), (id(namespace),)
            if changeable and type(key) is str:
                act = none_class_attribute(holder, key, held)
                yield Reference(step, "class attribute", _NONE, act, via=via)
            else:
                why = f"{type_name(holder)} is built in: its attributes cannot be changed"
                yield Reference(step, "class attribute", why_not=why, via=via)
    why = "the bases of a class stay as long as the class"
    for name in ("__bases__", "__mro__"):
        bases = type.__dict__[name].__get__(holder)
        if bases is held:
            yield Reference(f".{name}", "base class", why_not=why)
        for index, base in enumerate(bases or ()):
            if base is held and base is not holder:
                step = f".{name}[{index}]"
                yield Reference(step, "base class", why_not=why, via=(id(bases),))


_HEAP_TYPE = 1 << 9


def read_instance(holder: object, held: object) -> Iterator[Reference]:
    """Attributes in the dict of an instance, whether that dict has been made or not."""
    attributes = instance_dict(holder)
    if attributes is None:
        return
    if attributes is held:
        yield Reference(".__dict__", "namespace", why_not="cut in this dict, not the dict itself")
    for key, value in pairs(attributes):
        if value is held:
            step = f".{key}" if _is_seen(holder, key) else f".__dict__[{key_text(key)}]"
            act = none_item(attributes, key, held)
            yield Reference(step, "attribute", _NONE, act, via=(id(attributes),))


def _is_seen(holder: object, key: object) -> bool:
    """Whether `holder.key` reaches the dict: a property of the same name would stand before it."""
    if not is_name(key):
        return False
    return type(descriptor(holder, plain(key))) is not property


def read_members(holder: object, held: object) -> Iterator[Reference]:
    """Slots, and the members of types written in C."""
    for name, member, value in members(holder):
        if value is held and name != "__dict__":
            if _is_writable(member):
                act = clear_member(holder, member, held)
                yield Reference(f".{name}", "attribute", _NONE, act)
            else:
                why = f"{type_name(type(holder))}.{name} is read-only: let the holder go"
                yield Reference(f".{name}", "attribute", why_not=why)


def _is_writable(member: MemberDescriptorType) -> bool:
    owner = member.__objclass__
    if any(base is BaseException for base in mro(owner)):
        return True
    if plain(member.__name__) == "default_factory":
        return owner is module_value("collections", "defaultdict")
    return any(key == "__slots__" for key, _ in class_items(owner) if type(key) is str)


def read_type_of(holder: object, held: object) -> Iterator[Reference]:
    """An instance holds its class."""
    if type(holder) is held:
        why = "an object holds its class as long as it lives: let the object go"
        yield Reference(".__class__", "class", why_not=why)


def read_hidden(holder: object, held: object) -> Iterator[Reference]:
    """What the collector sees and nobody can name."""
    if refers(holder, held):
        name = full_type_name(type(holder))
        why = f"no name leads into {name}: let the {name} go"
        yield Reference(f" (inside {name})", "hidden", why_not=why)
