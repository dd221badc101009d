"""One reference from an object to another, and how to cut it.

The name and the cut live together because they say the same thing twice: the verb is the statement
that a person types, and `cut` does exactly that. A cut looks again before it acts, so that it never removes
something that was put into the same place meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from .look import type_name

ReferenceKind: TypeAlias = Literal[
    "annotations",
    "argument",
    "arguments",
    "attribute",
    "autograd",
    "autograd graph",
    "awaits",
    "base class",
    "bound object",
    "cache",
    "cache entry",
    "cached property",
    "callback",
    "caller",
    "cause",
    "cell",
    "class",
    "class attribute",
    "closure",
    "code",
    "context",
    "coroutine",
    "default",
    "defaults",
    "element",
    "exception",
    "exit callback",
    "frame",
    "globals",
    "gradient",
    "greenlet",
    "hidden",
    "hook",
    "hooks",
    "item",
    "key",
    "local",
    "queued",
    "loop",
    "mapping",
    "memory of",
    "namespace",
    "reference",
    "registered hook",
    "result",
    "scheduled call",
    "snapshot",
    "stack",
    "storage",
    "thread-local",
    "token",
    "trace function",
    "traceback",
    "view",
    "weak value",
    "weakref callback",
    "wrapped function",
]
"""What sort of reference it is. Paths are written by it, and answers show it."""

_PYTHON = (".", "[")

Act: TypeAlias = Callable[[], None]
"""Cuts a reference."""


class Reference:
    """One way in which `holder` refers to `held`.

    `step` continues a path in words. `reach` is the Python expression for `held`, with `{holder}` to
    be filled in, or empty if there is none; a step that is Python itself needs no other. `verb` is
    the Python statement that cuts the reference, with `{path}` (the expression for `held`) and
    `{holder}`, or None if there is none; then `why_not` says what a person does. `imports` are the
    modules that either needs. `remark` says in words what the expression hides. `via` are the ids of
    the objects in between that nobody types: the dict of an instance, the cell of a closure. `instead`
    is the reference with another verb and what this one puts into the place of `held`: the other is cut
    where that leads to what is to be freed. A reference keeps both ends alive until it is cut or dropped.
    """

    __slots__ = (
        "_act",
        "_done",
        "imports",
        "instead",
        "kind",
        "reach",
        "remark",
        "step",
        "verb",
        "via",
        "why_not",
    )

    def __init__(
        self,
        step: str,
        kind: ReferenceKind,
        verb: str | None = None,
        act: Act | None = None,
        *,
        why_not: str = "",
        via: tuple[int, ...] = (),
        reach: str | None = None,
        imports: tuple[str, ...] = (),
        remark: str = "",
        instead: tuple[Reference, object] | None = None,
    ) -> None:
        self.step = step
        self.kind: ReferenceKind = kind
        self.verb = verb
        self.via = via
        is_python = step[:1] in _PYTHON and step[:2] != ".<"
        self.reach = reach if reach is not None else f"{{holder}}{step}" if is_python else ""
        self.imports = imports
        self.remark = remark
        self.instead = instead
        self.why_not = why_not
        self._act = act
        self._done = False

    @property
    def can_cut(self) -> bool:
        """Whether `cut` can do it; some verbs are only for people to follow."""
        return self._act is not None

    @property
    def act(self) -> Act | None:
        """The function that cuts it, if there is one."""
        return self._act

    def cut(self) -> None:
        """Does what the verb says. A second call does nothing.

        Raises TypeError, with what to do instead, if the reference cannot be cut from here.
        """
        act, self._act = self._act, None
        if act is None:
            if self._done:
                return
            raise TypeError(self.why_not or f"this {self.kind} cannot be cut: drop its holder")
        refusal: str | None = None
        try:
            act()
        except Exception as error:  # noqa: BLE001
            # The program's own __hash__, close() or setter may raise anything.
            refusal = _words(error)
        if refusal is not None:
            # Raised outside the handler, so that the new error does not keep the old one's frames.
            self._act = act
            raise TypeError(f"this {self.kind} was not cut: {refusal}")
        self._done = True

    def __repr__(self) -> str:
        return f"Reference({self.step!r}, {self.kind!r}, {self.verb!r})"


def _words(error: Exception) -> str:
    text = error.args[0] if error.args and type(error.args[0]) is str else ""
    return text if type(error) is TypeError and text else f"{type_name(type(error))}: {text}"
