"""The answer of `why`: data first, and a text that fits a screen.

An answer holds texts and numbers only: keeping it keeps nothing of the program alive. A cut finds
its references again when it is applied.
"""

from __future__ import annotations

from collections.abc import Callable

from .._native import Holder, RetainedSize
from .._runtime.data import Data, counted, mib
from .naming.words import NATIVE_ROOT, shorten

_SHOWN_HELD = 6
_SHOWN_PATHS = 3
_SHOWN_STEPS = 3


def _line(head: str, text: str) -> str:
    return f"  {head:>14}  {text}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds < 1 else f"{seconds:,.2f} s"


class Step(Data):
    """One reference of a cut: where it is, and what cuts it.

    `action` is a Python statement that runs as it stands; or, if `by_hand`, a sentence for a person.
    """

    __slots__ = ("action", "by_hand", "can_apply", "kind", "path")

    def __init__(self, path: str, action: str, by_hand: bool, kind: str, can_apply: bool) -> None:
        self.path = path
        self.action = action
        self.by_hand = by_hand
        self.kind = kind
        self.can_apply = can_apply


class Cut(Data):
    """References that free an object when they are cut.

    `code` is the Python statement that cuts them all, with its imports and, if it is needed, the
    collection; None if a person has to do a part of it by hand. `beside_*` is freed as well although
    nobody asked for it; `goes` names what the program loses with it. `kept_bytes` stay in use
    because of references that are not visible; `invisible` counts those.
    """

    __slots__ = (
        "_apply",
        "beside_bytes",
        "beside_objects",
        "code",
        "freed_bytes",
        "freed_objects",
        "goes",
        "invisible",
        "kept_bytes",
        "steps",
    )

    def __init__(
        self,
        steps: tuple[Step, ...],
        code: str | None,
        freed: RetainedSize,
        beside: RetainedSize,
        kept_bytes: int,
        invisible: int,
        goes: tuple[str, ...],
        apply: Callable[[Cut], None] | None,
    ) -> None:
        self.steps = steps
        self.code = code
        self.goes = goes
        self.freed_objects, self.freed_bytes = freed.objects, freed.bytes
        self.beside_objects, self.beside_bytes = beside.objects, beside.bytes
        self.kept_bytes = kept_bytes
        self.invisible = invisible
        self._apply = apply

    @property
    def can_apply(self) -> bool:
        """Whether `apply` can cut every reference.

        It cannot cut a variable of a running function, for example: only the function itself can.
        """
        return bool(self.steps) and all(step.can_apply for step in self.steps)

    def apply(self) -> None:
        """Finds the references again and cuts them.

        Raises LookupError if they are gone, and TypeError if one cannot be cut from here; the
        message says what to do.
        """
        if self._apply is not None:
            self._apply(self)

    def __str__(self) -> str:
        return self.code if self.code is not None else self._sentence(len(self.steps))

    def _sentence(self, most: int) -> str:
        """Returns what a person does, as one sentence: code stands in quotation marks."""
        said = [one.action if one.by_hand else f"run `{one.action}`" for one in self.steps]
        more = [counted(len(said) - most, "more step")] if len(said) > most else []
        return "; then ".join(said[:most] + more)

    def line(self, is_first: bool = True) -> str:
        """Returns one line: what to do, and what that frees."""
        head = "cut" if self.code is not None else "by hand"
        text = self.code if self.code is not None else self._sentence(_SHOWN_STEPS)
        text += f" → frees {mib(self.freed_bytes - self.kept_bytes)}"
        if self.kept_bytes:
            text += f", and {mib(self.kept_bytes)} more once native code lets go of it"
        if self.beside_bytes:
            text += f", {mib(self.beside_bytes)} of it beside"
        if self.goes:
            is_one = len(self.goes) == 1 and not self.goes[0].startswith("all ")
            verb = "goes" if is_one else "go"
            text += f"; {', '.join(self.goes[:_SHOWN_STEPS])} {verb} too"
        return _line(head if is_first else f"or {head}", text)


class Held(Data):
    """An object that is kept alive: one that holds device memory, or the one that was asked about.

    `holders` are the references that keep it alive, one for each path, and `path` is the shortest
    of those paths. `invisible` counts references that cannot be seen from Python: native code has
    them, or a function that is running right now. `cuts` begins with the one that frees the least
    beside it. If there is none, `why_no_cut` says why, and `by_hand` what to do.
    """

    __slots__ = (
        "by_hand",
        "bytes",
        "cuts",
        "frozen",
        "holders",
        "invisible",
        "path",
        "tensors",
        "type",
        "why_no_cut",
    )

    def __init__(
        self,
        *,
        path: str,
        type: str,
        bytes: int,
        tensors: int,
        holders: tuple[Holder, ...],
        invisible: int,
        frozen: bool,
        cuts: tuple[Cut, ...],
        why_no_cut: str | None,
        by_hand: str | None,
    ) -> None:
        self.path = path
        self.type = type
        self.bytes = bytes
        self.tensors = tensors
        self.holders = holders
        self.invisible = invisible
        self.frozen = frozen
        self.cuts = cuts
        self.why_no_cut = why_no_cut
        self.by_hand = by_hand

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all holders, the shortest first."""
        return tuple(holder.path for holder in self.holders)

    def lines(self) -> list[str]:
        """Returns the object, its other paths, and its cuts, as lines of text."""
        what = self.type
        if self.tensors > 1:
            what += f", {counted(self.tensors, 'piece')}"
        first = _line(mib(self.bytes), f"{shorten(self.path)} ({what})")
        todo = [cut.line(number == 0) for number, cut in enumerate(self.cuts[:2])]
        if not self.cuts and self.by_hand is not None:
            todo.append(_line("by hand", shorten(self.by_hand)))
        # Where nobody is named, what to do comes at once.
        if self.path.startswith(NATIVE_ROOT):
            return [first, *todo, *self._others()]
        return [first, *self._others(), *todo]

    def _others(self) -> list[str]:
        """Returns what else is known of it: other paths, references that nobody sees."""
        others = [shorten(path) for path in self.paths if path != self.path]
        lines = [_line("also", path) for path in others[: _SHOWN_PATHS - 1]]
        if len(others) >= _SHOWN_PATHS:
            lines.append(_line("also", counted(len(others) - _SHOWN_PATHS + 1, "more path")))
        if self.invisible:
            references = counted(self.invisible, "reference")
            lines.append(
                _line("and", f"{references} not visible: native code, or a call in progress")
            )
        if self.frozen:
            lines.append(
                _line("frozen", "gc.freeze() hid an object on this path from the collector")
            )
        return lines


class Dead(Data):
    """A reference cycle that nothing reaches. The collector frees it, unless it is frozen.

    It cannot free `kept_bytes`: native code holds objects of the cycle. That is so for a leaf whose
    gradient has a graph of its own (`create_graph=True`).
    """

    __slots__ = ("bytes", "frozen", "kept_bytes", "objects", "type")

    def __init__(
        self, type: str, objects: int, bytes: int, frozen: bool, kept_bytes: int = 0
    ) -> None:
        self.type = type
        self.objects = objects
        self.bytes = bytes
        self.frozen = frozen
        self.kept_bytes = kept_bytes

    def line(self) -> str:
        """Returns one line: how large it is, and whether the collector frees it."""
        state = "frozen, so the collector does not free it" if self.frozen else "unreachable"
        if self.kept_bytes:
            state = (
                f"native references keep {mib(self.kept_bytes)} of it, and the collector cannot free "
                "that. After backward(create_graph=True), set .grad to None before the tensors go"
            )
        objects = counted(self.objects, "object")
        return _line(mib(self.bytes), f"reference cycle of {objects} with {self.type}: {state}")


class Native(Data):
    """An object that native code holds, with the number of references that Python cannot see."""

    __slots__ = ("bytes", "references", "type")

    def __init__(self, type: str, references: int, bytes: int) -> None:
        self.type = type
        self.references = references
        self.bytes = bytes

    def line(self) -> str:
        """Returns one line: the object, and how many references are not visible."""
        references = counted(self.references, "reference")
        return _line(
            mib(self.bytes),
            f"native code holds a {self.type} ({references} that Python cannot see): end or close "
            "the library object that uses it",
        )


class Action(Data):
    """What frees memory that no Python object holds, and how many bytes that is expected to be.

    `action` is a Python statement that runs as it stands; or, if `by_hand`, a sentence for a person.
    `about` says what the memory is.
    """

    __slots__ = ("about", "action", "by_hand", "bytes")

    def __init__(
        self, action: str, bytes: int | None, *, about: str = "", by_hand: bool = False
    ) -> None:
        self.action = action
        self.bytes = bytes
        self.about = about
        self.by_hand = by_hand

    def line(self) -> str:
        """Returns one line: what to do, and what that frees."""
        expected = "" if self.bytes is None else f" → frees {mib(self.bytes)}"
        about = f" ({self.about})" if self.about else ""
        return _line("by hand" if self.by_hand else "do", f"{self.action}{expected}{about}")


class Answer(Data):
    """What keeps device memory in use, or the object that was asked about; and what would free it.

    Printing it shows the largest entries of `held`, with what to do about each. `took_s` is the time
    of the whole answer, `waited_s` the part of it in which the heap was examined.
    """

    __slots__ = (
        "actions",
        "dead",
        "device",
        "frozen_objects",
        "has_device",
        "held",
        "held_bytes",
        "native",
        "notes",
        "objects",
        "rest_bytes",
        "rest_held",
        "target",
        "tensors",
        "took_s",
        "waited_s",
    )

    def __init__(
        self,
        *,
        device: str | None,
        has_device: bool,
        target: str | None,
        tensors: int,
        held_bytes: int,
        held: tuple[Held, ...],
        rest: RetainedSize,
        dead: tuple[Dead, ...],
        native: tuple[Native, ...],
        actions: tuple[Action, ...],
        notes: tuple[str, ...],
        objects: int,
        frozen_objects: int,
        took_s: float,
        waited_s: float,
    ) -> None:
        self.device = device
        self.has_device = has_device
        self.target = target
        self.tensors = tensors
        self.held_bytes = held_bytes
        self.held = held
        self.rest_held, self.rest_bytes = rest.objects, rest.bytes
        self.dead = dead
        self.native = native
        self.actions = actions
        self.notes = notes
        self.objects = objects
        self.frozen_objects = frozen_objects
        self.took_s = took_s
        self.waited_s = waited_s

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Every reference that keeps one of the held objects alive."""
        return tuple(holder for held in self.held for holder in held.holders)

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The cuts of the first held object: the one that frees the least beside it comes first,
        the one with the fewest references last."""
        return self.held[0].cuts if self.held else ()

    def __str__(self) -> str:
        return "\n".join([self._head(), *self._body()])

    def _head(self) -> str:
        walk = f"{self.objects:,} objects walked in {_time(self.waited_s)}, the interpreter waited"
        walk += f"; answered in {_time(self.took_s)}"
        if self.target is not None:
            return f"why {self.target}: {walk}"
        if not self.has_device:
            return f"why on {self.device}: there is no such device here"
        where = self.device or "any device"
        pieces = counted(self.tensors, "piece")
        return f"why on {where}: {mib(self.held_bytes)} in {pieces} of memory; {walk}"

    def _body(self) -> list[str]:
        lines = [line for held in self.held[:_SHOWN_HELD] for line in held.lines()]
        not_shown = self.held[_SHOWN_HELD:]
        more = self.rest_held + len(not_shown)
        if more:
            more_bytes = self.rest_bytes + sum(held.bytes for held in not_shown)
            lines.append(_line(mib(more_bytes), counted(more, "more object")))
        lines += [dead.line() for dead in self.dead]
        if not any(held.path.startswith(NATIVE_ROOT) for held in self.held):
            # What native code holds is among the held objects, with its path.
            lines += [native.line() for native in self.native]
        if not lines and self.has_device:
            lines.append("  nothing holds any memory")
        lines += [action.line() for action in self.actions]
        return lines + [f"  note: {note}" for note in self.notes]
