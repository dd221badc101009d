"""Statements that cut references: Python that runs as it stands, or a sentence for a person."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..references.reference import Reference
from .expression import Code, is_readable, plain_names


class Statement(NamedTuple):
    """A Python statement, and the modules that it needs."""

    text: str
    imports: frozenset[str] = frozenset()

    @property
    def is_readable(self) -> bool:
        """Whether a person would write it."""
        return is_readable(self.text)

    def code(self) -> str:
        """Returns the statement with its imports: it runs as it stands."""
        return joined([self])


def joined(
    statements: Iterable[Statement], *, collect: bool = False, unfreeze: bool = False
) -> str:
    """Returns statements as one, with the imports of all; a collection comes last if it is needed, of frozen
    objects too if they are what has to go."""
    all_statements = list(statements)
    if collect and unfreeze:
        all_statements.append(Statement("gc.unfreeze()", frozenset({"gc"})))
    if collect:
        all_statements.append(Statement("gc.collect()", frozenset({"gc"})))
    imports = sorted(frozenset().union(*(one.imports for one in all_statements)))
    first = [f"import {', '.join(imports)}"] if imports else []
    return "; ".join(first + [one.text for one in all_statements])


def fill(reference: Reference, holder: Code | None, path: Code | None) -> Statement | None:
    """Returns the statement of a reference, or None if it cannot be written."""
    verb = reference.verb
    if verb is None:
        return None
    imports = frozenset(name for name in reference.imports if f"{name}." in verb)
    if "{holder}" in verb:
        if holder is None:
            return None
        verb, imports = verb.replace("{holder}", holder.run), imports | holder.imports
    if "{path}" in verb:
        if path is None:
            return None
        verb, imports = verb.replace("{path}", path.run), imports | path.imports
    return Statement(plain_names(verb), imports)
