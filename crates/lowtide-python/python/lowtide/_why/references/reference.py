"""One reference from an object to another, and how to cut it.

The verb is the statement that a person types, and `cut` executes it. A cut looks again before it acts, so
that it never removes something that was put into the same place meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeAlias

from .look import read, type_name

UNWRITTEN = " … "
"""Is in expressions and statements that nobody would write. Then `act` does what the statement says."""
_PYTHON = (".", "[")

_MOVING = ("element", "key", "queued")
"""Kinds of references whose step changes when others are cut."""

Find: TypeAlias = "Callable[[object, object], list[Reference]]"
"""Finds the references from one object to another."""


@dataclass(slots=True, repr=False, eq=False)
class Reference:
    """One way in which `holder` refers to `held`.

    `kind` says what sort of reference it is: paths are written by it, and answers show it. `step`
    continues a path in words. `reach` is the Python expression for `held`, with `{holder}` to
    be filled in, or empty if there is none; a step that is Python itself needs no other. `verb` is
    the Python statement that cuts the reference, with `{path}` (the expression for `held`) and
    `{holder}`, or None if there is none; then `why_not` says what a person does. `act` cuts it where no
    statement can, or better than the statement. `imports` are the modules that reach or verb needs.
    `remark` says in words what the expression hides. `via` are the ids of
    the objects in between that nobody types: the dict of an instance, the cell of a closure. `instead`
    is the reference with another verb and what this one puts into the place of `held`: the other is cut
    where that leads to what is to be freed. A reference keeps both ends alive until it is cut or dropped.
    """

    step: str
    kind: str
    verb: str | None = None
    act: Callable[[], object] | None = None
    _: KW_ONLY
    why_not: str = ""
    via: tuple[int, ...] = ()
    reach: str = "{holder}{step}"
    imports: tuple[str, ...] = ()
    remark: str = ""
    instead: tuple[Reference, object] | None = None
    _ends: tuple[object, object, Find | None] | None = None
    _done: bool = False

    def __post_init__(self) -> None:
        if self.reach == "{holder}{step}":
            is_python = self.step[:1] in _PYTHON and self.step[:2] != ".<"
            self.reach = f"{{holder}}{self.step}" if is_python else ""

    def between(self, holder: object, held: object = None, find: Find | None = None) -> Reference:
        """Returns the reference with its ends, and with what finds it again when it is cut; by default it is not
        looked for."""
        self._ends = holder, held, find
        if self.instead is not None:
            self.instead[0]._ends = self._ends
        return self

    @property
    def can_cut(self) -> bool:
        """Whether `cut` can do it; some verbs are only for people to follow."""
        return self.act is not None or self.verb is not None

    def cut(self) -> None:
        """Does what the verb says, if the reference is still there. A second call does nothing.

        Raises TypeError, with what to do instead, if the reference cannot be cut from here.
        """
        if self._done:
            return
        if not self.can_cut:
            raise TypeError(self.why_not or f"this {self.kind} cannot be cut: drop its holder")
        refusal: str | None = None
        try:
            holder, held, find = self._ends or (None, None, None)
            for now in [self] if find is None else self._now(holder, held, find):
                now._execute(holder)
                del now
            del holder, held, find
        except Exception as error:  # noqa: BLE001
            # The program's own __hash__, close() or setter may raise anything.
            refusal = _words(error)
        if refusal is not None:
            # Raised outside the handler, so that the new error does not keep the old one's frames.
            raise TypeError(f"this {self.kind} was not cut: {refusal}")
        self._done, self.act, self._ends, self.instead = True, None, None, None

    def _now(self, holder: object, held: object, find: Find) -> list[Reference]:
        """Returns the same reference as it is now, or nothing if it is gone."""
        found = [one for one in find(holder, held) if one.kind == self.kind and one.can_cut]
        same = [one for one in found if one.step == self.step]
        if not same and self.kind in _MOVING:
            same = found[-1:]
        if self.instead is None:
            same = [one if one.instead is None else one.instead[0] for one in same]
        return same[:1]

    def _execute(self, holder: object) -> None:
        if self.act is not None:
            self.act()
        elif self.verb is not None:
            scope = {"holder": holder}
            statement = self.verb.replace("{path}", self.reach).replace("{holder}", "holder")
            needs = f"import {', '.join(self.imports)}; " if self.imports else ""
            exec(needs + statement, scope)  # noqa: S102  Of our own, with nothing filled in but names.
            scope.clear()

    def __repr__(self) -> str:
        return f"Reference({self.step!r}, {self.kind!r}, {self.verb!r})"


Reader: TypeAlias = Callable[[Any, object], Iterator[Reference]]
"""Yields the references from an object to another."""


def keeps(kind: str, why: str, *names: str) -> Reader:
    """Returns a reader of attributes that are written in C and that nobody can change."""

    def reader(holder: Any, held: object) -> Iterator[Reference]:
        for name in names:
            if read(holder, name) is held:
                yield Reference(f".{name}", kind, why_not=why)

    return reader


def _words(error: Exception) -> str:
    text = error.args[0] if error.args and type(error.args[0]) is str else ""
    return text if type(error) is TypeError and text else f"{type_name(type(error))}: {text}"
