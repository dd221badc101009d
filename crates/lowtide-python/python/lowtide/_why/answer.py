"""The answer of `why`: data first, and a text that fits a screen.

An answer holds texts and numbers only: keeping it keeps nothing of the program alive. A cut finds
its references again when it is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._native import Holder
from .._runtime.data import Data, counted, mib
from .._runtime.view import View, frame, height_of, page
from .naming.words import GRAPH_OF, NATIVE_ROOT, shorten
from .plan import Plan, plans
from .references.contexts import CANCELLED

if TYPE_CHECKING:
    from .naming.cuts import Keys

_SHOWN_HELD = 12
SMALL_SHARE = 200
"""Objects with less than this part of all bytes are counted together."""
_SHOWN_PATHS = 3
_SHOWN_STEPS = 3
_SHORT_CODE = 80


def _line(head: str, text: str) -> str:
    return f"  {head:>14}  {text}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds < 1 else f"{seconds:,.2f} s"


@dataclass(slots=True, repr=False, eq=False)
class Step(Data):
    """One reference of a cut: where it is, and what cuts it.

    `action` is a Python statement that runs as it stands; or, if `by_hand`, a sentence for a person.
    """

    path: str
    action: str
    by_hand: bool
    kind: str
    can_apply: bool


@dataclass(slots=True, repr=False, eq=False)
class Cut(Data):
    """References that free an object when they are cut.

    `code` is the Python statement that cuts them all, with its imports and, if it is needed, the
    collection; None if a person has to do a part of it by hand. `beside_*` is freed as well although
    nobody asked for it; `goes` names what the program loses with it. `kept_bytes` stay in use
    because of references that are not visible; `invisible` counts those. `lowtide.cut(number)` applies it.
    """

    steps: tuple[Step, ...]
    code: str | None
    freed_objects: int
    freed_bytes: int
    beside_objects: int = 0
    beside_bytes: int = 0
    kept_bytes: int = 0
    invisible: int = 0
    goes: tuple[str, ...] = ()
    number: int | None = None
    _apply: Callable[[Sequence[Cut]], int] | None = None
    _keys: Keys = frozenset()
    _unfreezes: bool = False
    _collects: bool = False
    _pieces: frozenset[int] = frozenset()

    @property
    def can_apply(self) -> bool:
        """Whether `apply` can cut every reference.

        It cannot cut a variable of a running function, for example: only the function itself can.
        """
        return (bool(self.steps) or self._collects) and all(one.can_apply for one in self.steps)

    def apply(self) -> None:
        """Finds the references again and cuts them.

        Raises LookupError if they are gone, and TypeError if one cannot be cut from here; the
        message says what to do.
        """
        if self._apply is not None:
            self._apply([self])

    def __str__(self) -> str:
        return self.code if self.code is not None else self._sentence(len(self.steps))

    def _text(self) -> str:
        """Returns what to type, or what a person does."""
        if self.code is not None:
            return self.code
        if self.number is None:
            return self._sentence(_SHOWN_STEPS)
        if self.steps[0].by_hand and len(self.steps) == 1:
            return f"lowtide.cut({self.number}), or by hand: {shorten(self.steps[0].action)}"
        return f"lowtide.cut({self.number})  # {self._does()}"

    def _does(self) -> str:
        """Returns what it does, as people say it."""
        by_place: dict[str, list[str]] = {}
        are_tasks = all(CANCELLED in step.action for step in self.steps)
        for step in self.steps:
            # Code that waits is known by its name, the value of a context variable by the variable.
            path, _, words = step.path.partition("  # ")
            if step.kind in ("context", "local") and words:
                by_place.setdefault(words, []).append(words)
            else:
                place = path.rpartition("[")[0].removeprefix("list(").removesuffix(".values())")
                by_place.setdefault(place or step.path, []).append(step.path)
        entry = "tasks in" if are_tasks else "entries of"
        dropped = [
            shorten(paths[0]) if len(paths) == 1 else f"{len(paths)} {entry} {shorten(place)}"
            for place, paths in by_place.items()
        ]
        more = len(dropped) - _SHOWN_STEPS
        dropped[_SHOWN_STEPS:] = [f"{more:,} more"] if more > 0 else []
        one = "the task in " if len(self.steps) == 1 else ""
        return (f"cancels {one}" if are_tasks else "drops ") + ", ".join(dropped)

    def _sentence(self, most: int) -> str:
        """Returns what a person does, as one sentence: code stands in quotation marks."""
        said = [one.action if one.by_hand else f"run `{one.action}`" for one in self.steps]
        more = [counted(len(said) - most, "more step")] if len(said) > most else []
        return "; then ".join(said[:most] + more)

    def line(self, is_first: bool = True) -> str:
        """Returns one line: what to do, and what that frees."""
        head = f"cut {self.number}" if self.number else "cut"
        if self.code is None and self.number is None:
            head = "by hand"
        text = f"{self._text()} → frees {mib(self.freed_bytes - self.kept_bytes)}"
        if self.kept_bytes:
            text += f", and {mib(self.kept_bytes)} more once native code lets go of it"
        if self.beside_bytes:
            text += f", {mib(self.beside_bytes)} of it beside"
        if self.goes:
            is_one = len(self.goes) == 1 and not self.goes[0].startswith("all ")
            verb = "goes" if is_one else "go"
            text += f"; {', '.join(self.goes[:_SHOWN_STEPS])} {verb} too"
        return _line(head if is_first else f"or {head}", text)


@dataclass(slots=True, repr=False, eq=False)
class Held(Data):
    """An object that is kept alive: one that holds device memory, or the one that was asked about.

    `holders` are the references that keep it alive, one for each path, and `path` is the shortest
    of those paths. `invisible` counts references that cannot be seen from Python: native code has
    them, or a function that is running right now. `in_graph` is true if an autograd graph holds memory
    of it. `alike` objects are held in the same way, this one included. `in_use` is true if the program has
    it by names and attributes alone, as it has a model: `cut("all")` leaves it. `cuts` begins with
    the one that frees the least beside it. If there is none, `why_no_cut` says why, and `by_hand` what to do.
    """

    path: str
    type: str
    bytes: int
    tensors: int
    holders: tuple[Holder, ...]
    invisible: int
    frozen: bool
    cuts: tuple[Cut, ...]
    why_no_cut: str | None
    by_hand: str | None
    in_graph: bool = False
    alike: int = 1
    in_use: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all holders, the shortest first."""
        return tuple(holder.path for holder in self.holders)

    def row(self) -> tuple[str, str, str]:
        """Returns the size, the object, and what to do about it."""
        pieces = f", {counted(self.tensors, 'piece')}" if self.tensors > 1 else ""
        alike = f" and {self.alike - 1:,} alike" if self.alike > 1 else ""
        what = f"{shorten(self.path)}{alike} ({self.type}{pieces})"
        what += ", in use" if self.in_use else ""
        if self.in_graph and not self.path.startswith(GRAPH_OF):
            what += f", held by the {GRAPH_OF}{shorten(self._graph())}"
        to_do, number = self.remedy(), self.cuts[0].number if self.cuts else None
        return (
            mib(self.bytes),
            what,
            f"lowtide.cut({number})" if number and len(to_do) > _SHORT_CODE else to_do,
        )

    def remedy(self) -> str:
        """Returns what to type, or what a person does."""
        if not self.cuts:
            return shorten(self.by_hand or "")
        cut = self.cuts[0]
        return f"{cut.code}  # cut {cut.number}" if cut.code and cut.number else cut._text()

    def lines(self) -> list[str]:
        """Returns the object, its other paths, and its cuts, as lines of text."""
        size, what, _ = self.row()
        first = _line(size, what)
        others = [cut for cut in self.cuts[1:] if cut.code is not None]
        todo = [cut.line(cut is self.cuts[0]) for cut in [*self.cuts[:1], *others[:1]]]
        if not self.cuts and self.by_hand is not None:
            todo.append(_line("by hand", shorten(self.by_hand)))
        # Where nobody is named, what to do comes at once.
        if self.path.startswith(NATIVE_ROOT):
            return [first, *todo, *self._others()]
        return [first, *self._others(), *todo]

    def _graph(self) -> str:
        """Returns whose autograd graph it is in: that of a result, or its own."""
        found = [path for path in self.paths if path.startswith(GRAPH_OF)]
        return found[0].removeprefix(GRAPH_OF) if found else self.path

    def _others(self) -> list[str]:
        """Returns what else is known of it: other paths, references that nobody sees."""
        said = (self.path, f"{GRAPH_OF}{self._graph()}")
        others = [shorten(path) for path in self.paths if path not in said]
        lines = [_line("also", path) for path in others[: _SHOWN_PATHS - 1]]
        if len(others) >= _SHOWN_PATHS:
            lines.append(_line("also", counted(len(others) - _SHOWN_PATHS + 1, "more path")))
        if self.invisible:
            references = counted(self.invisible, "reference")
            lines.append(
                _line("and", f"{references} not visible: native code, or a call in progress")
            )
        if self.in_graph:
            lines.append(_line("and", "without training, run it under torch.inference_mode()"))
        if self.frozen:
            lines.append(
                _line("frozen", "gc.freeze() hid an object on this path from the collector")
            )
        return lines


@dataclass(slots=True, repr=False, eq=False)
class Dead(Data):
    """A reference cycle that nothing reaches. The collector frees it, unless it is frozen.

    It cannot free `kept_bytes`: native code holds objects of the cycle. That is so for a leaf whose
    gradient has a graph of its own (`create_graph=True`).
    """

    type: str
    objects: int
    bytes: int
    frozen: bool
    kept_bytes: int = 0

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


@dataclass(slots=True, repr=False, eq=False)
class Native(Data):
    """An object that native code holds, with the number of references that Python cannot see."""

    type: str
    references: int
    bytes: int

    def line(self) -> str:
        """Returns one line: the object, and how many references are not visible."""
        references = counted(self.references, "reference")
        return _line(
            mib(self.bytes),
            f"native code holds a {self.type} ({references} that Python cannot see): end or close "
            "the library object that uses it",
        )


@dataclass(slots=True, repr=False, eq=False)
class Action(Data):
    """What frees memory that no Python object holds, and how many bytes that is expected to be.

    `action` is a Python statement that runs as it stands; or, if `by_hand`, a sentence for a person.
    `about` says what the memory is. `lowtide.cut(number)` does it, where it has a number.
    """

    action: str
    bytes: int | None
    about: str = ""
    by_hand: bool = False
    number: int | None = None

    def line(self) -> str:
        """Returns one line: what to do, and what that frees."""
        expected = "" if self.bytes is None else f" → frees {mib(self.bytes)}"
        about = f" ({self.about})" if self.about else ""
        head = f"cut {self.number}" if self.number else "by hand" if self.by_hand else "do"
        return _line(head, f"{self.action}{expected}{about}")


@dataclass(slots=True, repr=False, eq=False)
class Answer(Data):
    """What keeps device memory in use, or the object that was asked about; and what would free it.

    Printing it shows the largest entries of `held`, with what to do about each. `took_s` is the time
    of the whole answer, `waited_s` the part of it in which the heap was examined.
    """

    device: str | None
    has_device: bool
    target: str | None
    tensors: int
    held_bytes: int
    held: tuple[Held, ...]
    rest_held: int
    rest_bytes: int
    dead: tuple[Dead, ...]
    native: tuple[Native, ...]
    actions: tuple[Action, ...]
    notes: tuple[str, ...]
    objects: int
    frozen_objects: int
    took_s: float
    waited_s: float
    plan: Plan = field(default_factory=Plan)

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
        shown = shown_of(self.held)
        held = [one for one in self.held[:shown] if not one.in_use]
        used = [one for one in self.held[:shown] if one.in_use]
        collected = [one for one in self.actions if one.number]
        lines = [line for one in held for line in one.lines()]
        lines += [one.line() for one in self.dead] + [one.line() for one in collected]
        lines += [line for one in used for line in one.lines()]
        return "\n".join([self._displayed(), *lines, *self._rest(shown)])

    def __repr__(self) -> str:
        return f"<Answer {self.plan.name or 'without cuts'}: {self._head().partition('; ')[0]}>"

    def html(self) -> str:
        """Returns the answer as one HTML file, which loads nothing: a tree map of who holds what, and a table with
        the cuts."""
        return page(self._head().partition("; ")[0], self.to_dict())

    def _repr_html_(self) -> str:
        shown = shown_of(self.held)
        height = height_of(maps=shown > 0, lines=shown + len(self.actions))
        return frame(self._displayed().partition("; ")[0], self.to_dict(), height=height)

    def _repr_pretty_(self, printer: Any, _is_cycle: bool) -> None:
        printer.text(self._view().text())

    def _view(self) -> View:
        title, shown = self._displayed().partition("; ")[0], shown_of(self.held)
        rows = [held.row() for held in self.held[:shown]]
        # `plan  cuts 1 and 2 …` is `plan: cuts 1 and 2 …` where it has no column.
        return View(
            title, rows, [line.strip().replace("  ", ": ", 1) for line in self._rest(shown)]
        )

    def _displayed(self) -> str:
        """Returns the first line. What is displayed is what a person means next."""
        plans().remember(self.plan)
        name = f"{self.plan.name}: " if self.plan.name and len(plans().known) > 1 else ""
        return name + self._head()

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

    def _rest(self, shown: int) -> list[str]:
        lines = []
        not_shown = self.held[shown:]
        more = self.rest_held + len(not_shown)
        if more:
            more_bytes = self.rest_bytes + sum(held.bytes for held in not_shown)
            lines.append(_line(mib(more_bytes), counted(more, "more object")))
        if not any(held.path.startswith(NATIVE_ROOT) for held in self.held):
            # What native code holds is among the held objects, with its path.
            lines += [native.line() for native in self.native]
        if not lines and not shown and not self.dead and self.has_device:
            lines.append("  nothing holds any memory")
        if len(self.plan.cuts) > 1:
            lines.append(_line("plan", self.plan.line()))
        lines += [action.line() for action in self.actions if not action.number]
        return lines + [f"  note: {note}" for note in self.notes]


def shown_of(held: Sequence[Held]) -> int:
    """Returns how many of the largest objects an answer shows, with a number for the cut of each."""
    least = sum(one.bytes for one in held) / SMALL_SHARE
    return sum(one.bytes >= least for one in held[:_SHOWN_HELD])
