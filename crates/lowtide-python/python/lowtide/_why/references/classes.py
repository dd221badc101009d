"""Readers for classes and their instances: attributes, slots, bases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MemberDescriptorType

from .look import (
    class_dict,
    class_items,
    instance_dict,
    members,
    module_value,
    mro,
    pairs,
    plain,
    type_name,
)
from .reference import Reference
from .spelling import (
    attribute,
    attribute_step,
    class_attribute,
    ended_thread,
    is_cached,
    is_override,
    member as member_reach,
    set_attribute,
    set_member,
    without_initializer,
    wrapped,
)

_DEL = "del {path}"
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
            reach, cut = class_attribute(holder, key, value)
            if changeable and type(key) is str:
                found = Reference(step, "class attribute", cut, via=via, reach=reach)
                original = wrapped(key, value) if reach == f"{{holder}}.{key}" else None
                if original is not None:
                    # A method that was wrapped from outside. The class fails without it.
                    verb = f"{{path}} = {original[0]}"
                    found = replace(found, verb=verb, instead=(found, original[1]))
                yield found
            else:
                why = f"{type_name(holder)} is built in: its attributes cannot be changed"
                yield Reference(step, "class attribute", why_not=why, via=via, reach=reach)
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
            via = (id(attributes),)
            reach = attribute(holder, key)
            step = reach.removeprefix("{holder}")
            if not reach.startswith("{holder}"):
                step = attribute_step(key)
            kind, verb = "attribute", _DEL
            if is_cached(holder, key):
                # The next look computes it again.
                kind = "cached property"
            elif not is_override(holder, key, value):
                # An override is deleted: the instance has its class's own again.
                special = without_initializer(holder, key) or ended_thread(holder, key)
                verb = special or set_attribute(holder, key)
            yield Reference(step, kind, verb, via=via, reach=reach)


def read_members(holder: object, held: object) -> Iterator[Reference]:
    """Yields slots, and the members of types written in C."""
    for name, member, value in members(holder):
        if value is held and name != "__dict__":
            if _is_writable(member):
                verb, reach = set_member(holder, name), member_reach(holder, name)
                yield Reference(f".{name}", "attribute", verb, reach=reach)
            else:
                why = f"{type_name(type(holder))}.{name} is read-only: drop the holder"
                yield Reference(
                    f".{name}", "attribute", why_not=why, reach=member_reach(holder, name)
                )


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
        yield Reference(".__class__", "class", why_not=why, reach="type({holder})")
