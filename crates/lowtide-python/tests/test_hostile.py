"""Naming runs no code of the program, whatever the program overrides."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any

import names
import pytest
from lowtide._why.naming import words as path
from lowtide._why.references.readers import references

_METHODS = [
    "__getattribute__",
    "__getattr__",
    "__eq__",
    "__hash__",
    "__repr__",
    "__str__",
    "__len__",
    "__iter__",
    "__bool__",
    "__contains__",
    "__getitem__",
    "__setattr__",
    "__delattr__",
    "__format__",
    "__dir__",
    "__reduce__",
    "__sizeof__",
    "__index__",
    "__call__",
    "__get__",
    "__set_name__",
    "items",
    "keys",
    "values",
    "get",
]
_OF_CLASSES = [
    "__getattribute__",
    "__eq__",
    "__hash__",
    "__instancecheck__",
    "__subclasscheck__",
    "__repr__",
    "__iter__",
]

Ran = list[str]


def trap(ran: Ran, name: str) -> Callable[..., Any]:
    """A method that records that it ran, and where from, and fails."""

    def method(*args: Any, **kwargs: Any) -> Any:
        import sys

        caller = sys._getframe(1)
        ran.append(f"{name} from {caller.f_code.co_filename}:{caller.f_lineno}")
        raise AssertionError(name)

    return method


def world(ran: Ran) -> tuple[Any, list[tuple[str, Any]]]:
    """An object, and holders of it, whose every method is a trap."""
    body: dict[str, Any] = {name: trap(ran, name) for name in _METHODS}
    del body["__get__"], body["__set_name__"]
    body["__class__"] = property(trap(ran, "__class__"))
    body["prop"] = property(trap(ran, "prop"))
    meta: Any = type("Meta", (type,), {name: trap(ran, f"meta {name}") for name in _OF_CLASSES})
    build, create = type.__new__, object.__new__

    def subclass(name: str, *bases: type, **more: Any) -> Any:
        return build(meta, name, bases, {**body, **more})

    plain = subclass("Plain", object)
    held = create(plain)
    holders: list[tuple[str, Any]] = []

    instance = create(plain)
    object.__setattr__(instance, "model", held)
    holders.append(("instance", instance))

    slotted = create(subclass("Slotted", object, __slots__=("model",)))
    object.__setattr__(slotted, "model", held)
    holders.append(("slots", slotted))

    for base in (dict, collections.OrderedDict, collections.defaultdict):
        mapping = base.__new__(subclass("Mapping", base))
        dict.__setitem__(mapping, "k", held)
        holders.append((base.__name__, mapping))
    for sequence_type in (list, collections.deque):
        sequence = sequence_type.__new__(subclass("Sequence", sequence_type))
        sequence_type.append(sequence, held)
        holders.append((sequence_type.__name__, sequence))
    holders.append(("tuple", tuple.__new__(subclass("Tuple", tuple), (held,))))

    hashed = build(meta, "Hashed", (set,), {})
    group = set.__new__(hashed)
    able = build(
        type, "Able", (object,), {"__eq__": trap(ran, "element eq"), "__hash__": lambda s: 1}
    )
    member = create(able)
    set.add(group, member)

    holders.append(("class", subclass("ClassHolder", object, model=held)))
    module = types.ModuleType.__new__(subclass("Module", types.ModuleType))
    types.ModuleType.__init__(module, "m")
    vars(types.ModuleType)["__dict__"].__get__(module)["model"] = held
    holders.append(("module", module))
    holders.append(("error", ValueError.__new__(subclass("Error", ValueError), held)))
    holders.append(("neighbours", [create(plain), held, create(plain)]))
    holders.append(("values of neighbours", {1: create(plain), 2: held}))
    holders.append(("partial", functools.partial(print, create(plain), held)))
    holders.append(("function", types.FunctionType((lambda a: a).__code__, {}, "f", (held,))))
    holders.append(("method", types.MethodType(print, held)))

    def rows(batch: object) -> Any:
        other = create(plain)
        yield
        del other

    generator = rows(held)
    next(generator)
    holders.append(("generator", generator))

    # A key that would be compared with every name of the same hash.
    same = build(type, "Same", (str,), {"__eq__": trap(ran, "key eq"), "__hash__": str.__hash__})
    keyed = create(type("Keyed", (), {}))
    for name in ("__dict__", "data", "_name", "__name__", "_modules", "_fields"):
        vars(keyed)[str.__new__(same, name)] = held
    holders.append(("keys", keyed))
    holders.append(("dict keys", {str.__new__(same, "__name__"): held}))
    ran.clear()
    return held, holders


def problems() -> list[str]:
    """What went wrong, in words: a failing test must not show these objects to the test runner."""
    ran: Ran = []
    found: list[str] = []
    held, holders = world(ran)
    for name, holder in holders:
        try:
            named = references(holder, held)
            if not named or any(one.kind == "hidden" for one in named):
                found.append(f"{name}: not named")
            root = path.Root("interpreter", "here")
            text = names.path_text(root, [holder, held])
            if not text.startswith("here") or names.path_text(root, [held]) != "here":
                found.append(f"{name}: {text}")
            names.path_verb(root, [holder, held])
            references(held, holder)
        except BaseException as error:  # noqa: BLE001
            found.append(f"{name}: raised {type(error).__name__} {ran}")
    return found + ran


def test_no_code_of_the_program_runs() -> None:
    found = problems()
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_a_cut_that_the_program_refuses_says_so() -> None:
    class Key:
        broken = False

        def __hash__(self) -> int:
            if self.broken:
                raise RuntimeError("no hash today")
            return 1

    key, value = Key(), object()
    holder = {key: value}
    found = references(holder, value)[0]
    Key.broken = True
    with pytest.raises(TypeError, match="was not cut: RuntimeError: no hash today") as caught:
        found.cut()
    assert caught.value.__context__ is None
    Key.broken = False
    found.cut()
    assert holder == {}
