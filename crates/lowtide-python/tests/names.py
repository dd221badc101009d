"""What the tests about names share.

The modules come from the installed package or, without it, from the checkout: of the native part
they need a few functions, which are simple enough to stand in for here.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_SOURCE = Path(__file__).resolve().parent.parent / "python" / "lowtide"


def load(name: str) -> ModuleType:
    """Returns `lowtide._why.naming.edges` and the like."""
    try:
        return importlib.import_module(f"lowtide.{name}")
    except ImportError:
        package = sys.modules.setdefault("lowtide_names", ModuleType("lowtide_names"))
        package.__path__ = [str(_SOURCE)]  # type: ignore[attr-defined]
        native = sys.modules.setdefault("lowtide_names._native", ModuleType("_native"))
        native.printable = str  # type: ignore[attr-defined]
        native.referents = gc.get_referents  # type: ignore[attr-defined]
        native.refers = _refers  # type: ignore[attr-defined]
        return importlib.import_module(f"lowtide_names.{name}")


def _refers(holder: object, held: object) -> bool:
    return any(one is held for one in gc.get_referents(holder))


def path_text(root: Any, objects: Any, last: Any = None) -> str:
    """Returns the text of a path."""
    text: str = load("_why.naming.path").NamedPath(root, objects).text(last)
    return text


def path_words(root: Any, objects: Any, last: Any = None) -> str:
    """Returns a path in words."""
    words: str = load("_why.naming.path").NamedPath(root, objects).words(last)
    return words


def path_verb(root: Any, objects: Any, last: Any = None) -> str | None:
    """Returns the statement that cuts the last reference of a path, with `shop` for that module."""
    statement = load("_why.naming.path").NamedPath(root, objects).statement(last)
    if statement is None:
        return None
    imports = statement.imports - {"sys"}
    text: str = statement._replace(imports=imports).code()
    return text.replace("sys.modules['shop']", "shop")


def path_by_hand(root: Any, objects: Any, last: Any = None) -> str:
    """Returns what a person does about the last reference of a path."""
    sentence: str = load("_why.naming.path").NamedPath(root, objects).by_hand(last)
    return sentence


class Held:
    """What everything holds on to."""


class Owner:
    """An ordinary object."""


def steps(holder: object, held: object) -> list[str]:
    """How the references from one to the other are written."""
    return [found.step for found in load("_why.references.readers").references(holder, held)]


def only(holder: object, held: object) -> Any:
    """The one reference there is."""
    found: list[Any] = load("_why.references.readers").references(holder, held)
    assert len(found) == 1, found
    return found[0]


def generator(batch: object) -> Any:
    """A generator that stops with a variable in its hand."""
    yield 1


def failing(batch: object) -> None:
    raise ValueError(batch)


def failure(held: object) -> ValueError:
    try:
        failing(held)
    except ValueError as error:
        return error
    raise AssertionError
