"""Reads objects without running their code.

`why` names objects of another program, often while that program is in trouble. A property, a
`__getattr__`, an `__eq__` or a `__repr__` could load a model, take a lock or raise. So everything
here goes through the interpreter's own descriptors, compares by identity and asks `type(x)`, never
`x.__class__` (which `isinstance` does).
"""

from __future__ import annotations

import keyword
import sys
import unicodedata
from collections.abc import Iterator
from itertools import compress, count, repeat
from operator import is_
from types import (
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, TypeAlias

from ..._native import position, printable, referents, refers

AnyDict: TypeAlias = dict[Any, Any]
"""A dict of the program. Nothing is known of its keys and values."""
Item: TypeAlias = tuple[Any, Any]
"""A key and its value."""

_MRO = type.__dict__["__mro__"].__get__
_CLASS_DICT = type.__dict__["__dict__"].__get__
_CLASS_NAME = type.__dict__["__name__"].__get__
_CLASS_MODULE = type.__dict__["__module__"].__get__
_MODULE_DICT = vars(ModuleType)["__dict__"].__get__

_MODULES = sys.modules

_KEY_CHARACTERS = 40
_KEY_PARTS = 4
_LITERAL_CHARACTERS = 80
_LITERAL_PARTS = 8
_WRITTEN_IN_C = (WrapperDescriptorType, MethodDescriptorType)


def mro(cls: type) -> tuple[type, ...]:
    """Returns the base classes of `cls` in order, whatever its metaclass says."""
    found: tuple[type, ...] | None = _MRO(cls)
    return found if found is not None else (cls,)


def is_a(value: object, base: type) -> bool:
    """Returns whether `value` is an instance of `base` by its real type."""
    return any(cls is base for cls in mro(type(value)))


def plain(text: object) -> str:
    """Returns a string as an exact `str`; other objects become the name of their type."""
    if type(text) is str:
        return text
    if any(cls is str for cls in mro(type(text))):
        return str.__str__(text)
    return f"<{type_name(type(text))}>"


def type_name(cls: type) -> str:
    """Returns the name of a class without its module, safe to print."""
    return printable(plain(_CLASS_NAME(cls)))


def full_type_name(cls: type) -> str:
    """Returns the name of a class, with its module unless that is builtins or `__main__`."""
    try:
        module = _CLASS_MODULE(cls)
    except AttributeError:
        module = None
    if type(module) is not str or module in ("builtins", "__main__"):
        return type_name(cls)
    return f"{printable(module)}.{type_name(cls)}"


def pairs(mapping: AnyDict) -> Iterator[Item]:
    """Yields the items of a dict or of a subclass of it, past methods that the subclass overrides."""
    try:
        yield from dict.items(mapping)
    except RuntimeError:
        # The collector may have run a finaliser that changed the dict meanwhile: copy it first.
        yield from list(dict.items(mapping))


def places(holder: object, values: Iterator[object], held: object) -> Iterator[int]:
    """Yields where `held` is among the values of a container.

    Most containers that are asked do not have it, and some have millions of values: no Python runs
    for each of them.
    """
    if refers(holder, held):
        yield from compress(count(), map(is_, values, repeat(held)))


def indexes(holder: list[Any] | tuple[Any, ...], held: object) -> Iterator[int]:
    """Yields the indexes of `held` in a list or tuple, which may have millions of elements."""
    index = position(holder, held, 0)
    while index is not None:
        yield index
        index = position(holder, held, index + 1)


def item(mapping: AnyDict, name: str) -> Any:
    """Returns `mapping[name]` or None. Only plain strings among the keys are compared with `name`."""
    for key, value in pairs(mapping):
        if type(key) is str and key == name:
            return value
    return None


def class_items(cls: type) -> Iterator[Item]:
    """Yields the names and values in the body of a class."""
    yield from pairs(class_dict(cls))


def class_dict(cls: type) -> AnyDict:
    """Returns the real dict of a class, which is behind the proxy that `__dict__` gives."""
    for referent in referents(_CLASS_DICT(cls)):
        if type(referent) is dict:
            return referent
    return dict(_CLASS_DICT(cls))


def descriptor(value: object, name: str) -> Any:
    """Returns the first entry called `name` in the classes of `value`."""
    for cls in mro(type(value)):
        for key, entry in class_items(cls):
            if type(key) is str and key == name:
                return entry
    return None


def read(value: object, name: str) -> Any:
    """Returns an attribute that is written in C (a member or getter of a built-in type), or None."""
    entry = descriptor(value, name)
    if type(entry) is not MemberDescriptorType and type(entry) is not GetSetDescriptorType:
        return None
    try:
        return entry.__get__(value, type(value))
    except (AttributeError, TypeError, ValueError):
        return None


def instance_dict(value: object) -> AnyDict | None:
    """Returns the attributes of an instance, or None if it has no dict that can be read safely."""
    bases = mro(type(value))
    local = module_value("_thread", "_local")
    if any(base is type or base is local for base in bases):
        # A class has a dict of its own kind; reading that of a thread-local may run its __init__.
        return None
    for base in bases:
        entry = item(class_dict(base), "__dict__")
        if type(entry) is not MemberDescriptorType and type(entry) is not GetSetDescriptorType:
            continue
        try:
            found = entry.__get__(value, type(value))
        except (AttributeError, TypeError):
            continue
        if is_a(found, dict):
            return found  # type: ignore[no-any-return]
    return None


def members(value: object) -> Iterator[tuple[str, MemberDescriptorType, object]]:
    """Yields every filled slot: `__slots__` of Python classes and members of classes written in C."""
    for cls in mro(type(value)):
        for key, entry in class_items(cls):
            if type(entry) is not MemberDescriptorType or type(key) is not str:
                continue
            try:
                found = entry.__get__(value, type(value))
            except (AttributeError, TypeError, SystemError):
                continue  # An empty slot, or a descriptor that was put into a foreign class.
            yield key, entry, found


def module_dict(module: ModuleType) -> dict[str, Any]:
    """Returns the namespace of a module."""
    found: dict[str, Any] = _MODULE_DICT(module, type(module))
    return found


def _modules() -> dict[str, Any]:
    """Returns `sys.modules`, or the table from the import of this module if that is no dict now."""
    return sys.modules if is_a(sys.modules, dict) else _MODULES


def module_value(module_name: str, name: str) -> Any:
    """Returns `module.name` of an imported module, or None. Imports nothing, runs no `__getattr__`."""
    module = dict.get(_modules(), module_name)
    if module is None or not is_a(module, ModuleType):
        return None
    return dict.get(module_dict(module), name)


def namespace_of(mapping: AnyDict) -> str | None:
    """Returns the name of the imported module whose namespace this dict is, or None."""
    name = item(mapping, "__name__")
    if type(name) is not str:
        return None
    module = dict.get(_modules(), name)
    if module is not None and is_a(module, ModuleType) and module_dict(module) is mapping:
        return name
    return None


def global_name(value: object) -> tuple[str, str] | None:
    """Returns the module and the name under which a module has an object, or None."""
    for name, module in pairs(_modules()):
        if type(name) is str and module is not None and is_a(module, ModuleType):
            for key, found in pairs(module_dict(module)):
                if found is value and is_name(key):
                    return name, key
    return None


def literal(key: object, depth: int = 3) -> str | None:
    """Returns a key as Python, or None if no short literal stands for it."""
    kind = type(key)
    if key is None or key is Ellipsis or kind is bool:
        return repr(key)
    if kind is float:
        text = repr(key)
        return text if text[-1].isdecimal() else None  # Neither nan nor inf has a literal.
    if kind is int:
        number: int = key  # type: ignore[assignment]
        return repr(number) if number.bit_length() <= 128 else None
    if kind is str or kind is bytes:
        text = repr(key)
        # The words stand for something else where statements are filled in.
        is_short = len(text) <= _LITERAL_CHARACTERS
        return text if is_short and "{holder}" not in text and "{path}" not in text else None
    if kind is tuple and depth > 0:
        parts: tuple[object, ...] = key  # type: ignore[assignment]
        texts = [literal(part, depth - 1) for part in parts[: _LITERAL_PARTS + 1]]
        known = [text for text in texts if text is not None]
        if len(known) != len(parts):
            return None
        return "(" + ", ".join(known) + ("," if len(known) == 1 else "") + ")"
    return None


def overrides(cls: type, base: type, *names: str) -> bool:
    """Returns whether a class defines one of these methods of its base anew, in Python."""
    for one in mro(cls):
        if one is base:
            return False
        for key, value in class_items(one):
            if type(key) is str and key in names and type(value) not in _WRITTEN_IN_C:
                return True
    return False


def key_text(key: object, depth: int = 2) -> str:
    """Returns a key as a person would type it, or the name of its type if it cannot be read safely."""
    kind = type(key)
    if kind is float:
        return repr(key)
    if kind is str or kind is bytes:
        text: str | bytes = key  # type: ignore[assignment]
        if len(text) > _KEY_CHARACTERS:
            return repr(text[: _KEY_CHARACTERS - 1]) + "…"
        return repr(text)
    if kind is not tuple and (known := literal(key)) is not None:
        return known
    if kind is tuple and depth > 0:
        values: tuple[object, ...] = key  # type: ignore[assignment]
        parts = [key_text(part, depth - 1) for part in values[:_KEY_PARTS]]
        parts += ["…"] if len(values) > _KEY_PARTS else []
        return "(" + ", ".join(parts) + ("," if len(values) == 1 else "") + ")"
    if is_a(key, type):
        return f"<class {type_name(key)}>"  # type: ignore[arg-type]
    reference = module_value("_weakref", "ReferenceType")
    if type(reference) is type and is_a(key, reference):
        target = reference.__call__(key)
        return "<dead weakref>" if target is None else f"<{type_name(type(target))}>"
    return _member_text(key) or f"<{type_name(kind)}>"


def _member_text(key: object) -> str | None:
    """Returns `Colour.RED` for a member of an enumeration, else None."""
    enum = module_value("enum", "Enum")
    if enum is None or not is_a(key, enum):
        return None
    name = item(instance_dict(key) or {}, "_name_")
    return f"{type_name(type(key))}.{printable(name)}" if type(name) is str else None


def is_name(text: object) -> bool:
    """Returns whether a person can write this after a dot."""
    if type(text) is not str or not text.isidentifier() or keyword.iskeyword(text):
        return False
    # Python compares names in their normal form.
    return text.isascii() or unicodedata.normalize("NFKC", text) == text
