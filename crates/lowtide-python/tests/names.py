"""What the tests about names share."""

from __future__ import annotations

from typing import Any

from lowtide._why.naming.code import joined
from lowtide._why.naming.path import NamedPath
from lowtide._why.references.readers import references


def path_text(root: Any, objects: Any, last: Any = None) -> str:
    """Returns the text of a path."""
    return NamedPath(root, objects).text(last)


def path_words(root: Any, objects: Any, last: Any = None) -> str:
    """Returns a path in words."""
    return NamedPath(root, objects).words(last)


def path_verb(root: Any, objects: Any, last: Any = None) -> str | None:
    """Returns the statement that cuts the last reference of a path, with `shop` for that module."""
    statement = NamedPath(root, objects).statement(last)
    if statement is None:
        return None
    imports = statement.imports - {"sys"}
    return joined([statement._replace(imports=imports)]).replace("sys.modules['shop']", "shop")


def path_by_hand(root: Any, objects: Any, last: Any = None) -> str:
    """Returns what a person does about the last reference of a path."""
    return NamedPath(root, objects).by_hand(last)


class Held:
    """What everything holds on to."""


class Owner:
    """An ordinary object."""


def steps(holder: object, held: object) -> list[str]:
    """How the references from one to the other are written."""
    return [found.step for found in references(holder, held)]


def only(holder: object, held: object) -> Any:
    """The one reference there is."""
    found = references(holder, held)
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
