"""Readers for classes and their instances: attributes, slots, bases."""

from __future__ import annotations

from collections.abc import Iterator
from types import MemberDescriptorType

from .cuts import attribute_step, clear_member, none_class_attribute, none_item
from .look import (
    class_dict,
    class_items,
    descriptor,
    instance_dict,
    is_name,
    key_text,
    members,
    module_value,
    mro,
    pairs,
    plain,
    type_name,
)
from .reference import Reference

_NONE = "{path} = None"
_HEAP_TYPE = 1 << 9


def read_class(holder: type, held: object) -> Iterator[Reference]:
    """Yields class attributes, base classes and the method resolution order."""
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
    why = "a class keeps its base classes"
    for name in ("__bases__", "__mro__"):
        bases = type.__dict__[name].__get__(holder)
        if bases is held:
            yield Reference(f".{name}", "base class", why_not=why)
        for index, base in enumerate(bases or ()):
            if base is held and base is not holder:
                step = f".{name}[{index}]"
                yield Reference(step, "base class", why_not=why, via=(id(bases),))


def read_instance(holder: object, held: object) -> Iterator[Reference]:
    """Yields attributes of an instance, whether its dict has been created or not."""
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
    """Returns whether `holder.key` reaches the dict: a property of the same name would hide it."""
    if not is_name(key):
        return False
    return type(descriptor(holder, plain(key))) is not property


def read_members(holder: object, held: object) -> Iterator[Reference]:
    """Yields slots, and the members of types written in C."""
    for name, member, value in members(holder):
        if value is held and name != "__dict__":
            if _is_writable(member):
                act = clear_member(holder, member, held)
                yield Reference(f".{name}", "attribute", _NONE, act)
            else:
                why = f"{type_name(type(holder))}.{name} is read-only: drop the holder"
                yield Reference(f".{name}", "attribute", why_not=why)


def _is_writable(member: MemberDescriptorType) -> bool:
    owner = member.__objclass__
    if any(base is BaseException for base in mro(owner)):
        return True
    if plain(member.__name__) == "default_factory":
        return owner is module_value("collections", "defaultdict")
    return any(key == "__slots__" for key, _ in class_items(owner) if type(key) is str)


def read_type_of(holder: object, held: object) -> Iterator[Reference]:
    """Yields the class of an instance."""
    if type(holder) is held:
        why = "an object keeps its class: drop the object"
        yield Reference(".__class__", "class", why_not=why)
