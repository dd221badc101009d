"""The actions that cut references. Each checks first that the reference is still there."""

from __future__ import annotations

from collections import OrderedDict, deque
from types import MemberDescriptorType
from typing import Any

from .look import AnyDict, class_dict, is_a, is_name, item, key_text, pairs, plain
from .reference import Act


def del_item(mapping: AnyDict, key: object, held: object) -> Act:
    """Deletes `mapping[key]` if it is still `held`."""

    def act() -> None:
        for other, value in pairs(mapping):
            if other is key:
                if value is held or key is held:
                    _delete(mapping, key)
                return

    return act


def _delete(mapping: AnyDict, key: object) -> None:
    # An OrderedDict keeps its order separately, and dict's own method would leave the key in it.
    if is_a(mapping, OrderedDict):
        OrderedDict.__delitem__(mapping, key)
    else:
        dict.__delitem__(mapping, key)


def none_item(mapping: AnyDict, key: object, held: object) -> Act:
    """Sets `mapping[key]` to None if it is still `held`."""

    def act() -> None:
        for other, value in pairs(mapping):
            if other is key and value is held:
                if is_a(mapping, OrderedDict):
                    OrderedDict.__setitem__(mapping, key, None)
                else:
                    dict.__setitem__(mapping, key, None)
                return

    return act


def del_list_element(sequence: list[Any], index: int, held: object) -> Act:
    """Deletes one element of a list. Earlier cuts may have moved it."""

    def act() -> None:
        found = [at for at, value in enumerate(list.__iter__(sequence)) if value is held]
        if found:
            list.__delitem__(sequence, _nearest(found, index))

    return act


def del_deque_element(sequence: deque[Any], index: int, held: object) -> Act:
    """Deletes one element of a deque. Earlier cuts may have moved it."""

    def act() -> None:
        found = [at for at, value in enumerate(deque.__iter__(sequence)) if value is held]
        if found:
            deque.__delitem__(sequence, _nearest(found, index))

    return act


def _nearest(found: list[int], index: int) -> int:
    return min(found, key=lambda at: abs(at - index))


def discard(group: set[Any], held: object) -> Act:
    """Removes one element of a set."""
    return lambda: set.discard(group, held)


def clear_member(holder: object, member: MemberDescriptorType, held: object) -> Act:
    """Sets a slot to None if it still holds `held`."""

    def act() -> None:
        try:
            now = member.__get__(holder, type(holder))
        except AttributeError:
            return
        if now is held:
            member.__set__(holder, None)

    return act


def none_class_attribute(cls: type, name: str, held: object, original: object = None) -> Act:
    """Sets a class attribute to None or to what it was, past the metaclass."""

    def act() -> None:
        if item(class_dict(cls), name) is held:
            type.__setattr__(cls, name, original)

    return act


def attribute_step(name: object) -> str:
    """Returns `.name`, or the long form for a name that cannot follow a dot."""
    return f".{plain(name)}" if is_name(name) else f".__dict__[{key_text(name)}]"
