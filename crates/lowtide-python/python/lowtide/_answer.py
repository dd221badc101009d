"""What `why` answers: plain data first, and a text that fits a screen.

An answer holds texts and numbers, and nothing of the program's: whoever keeps it keeps nothing else
alive. What a cut needs it looks for again when it is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MIB = 1 << 20
_SHOWN_HOLDERS = 6
_SHOWN_PATHS = 3
_SHOWN_STEPS = 3


class _Data:
    """Something with named parts, which prints and compares by them."""

    __slots__: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Its parts, and theirs, as plain data."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__ if name[0] != "_"}

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={value!r}" for name, value in self.to_dict().items())
        return f"{type(self).__name__}({parts})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


class Step(_Data):
    """One reference that a cut cuts: where it is, and what a person does about it."""

    __slots__ = ("action", "can_apply", "kind", "path")

    def __init__(self, path: str, action: str, kind: str, can_apply: bool) -> None:
        self.path = path
        self.action = action
        self.kind = kind
        self.can_apply = can_apply


class Cut(_Data):
    """References whose cut frees what is asked about.

    `beside_*` is what goes with it though nobody asked; `kept_bytes` what stays all the same, because
    of references that are not visible, which `invisible` counts.
    """

    __slots__ = (
        "_apply",
        "beside_bytes",
        "beside_objects",
        "freed_bytes",
        "freed_objects",
        "invisible",
        "kept_bytes",
        "steps",
    )

    def __init__(
        self,
        steps: tuple[Step, ...],
        freed: tuple[int, int],
        beside: tuple[int, int],
        kept_bytes: int,
        invisible: int,
        apply: Callable[[Cut], None],
    ) -> None:
        self.steps = steps
        self.freed_objects, self.freed_bytes = freed
        self.beside_objects, self.beside_bytes = beside
        self.kept_bytes = kept_bytes
        self.invisible = invisible
        self._apply = apply

    @property
    def can_apply(self) -> bool:
        """Whether `apply` can do all of it. A variable of a running function, say, only its own
        function can let go of."""
        return bool(self.steps) and all(step.can_apply for step in self.steps)

    def apply(self) -> None:
        """Does it: looks where the references are now, and cuts them.

        Raises LookupError where they are not there any more, and TypeError where one cannot be cut
        from here; what to do is in the message.
        """
        self._apply(self)

    def __str__(self) -> str:
        return "; ".join(step.action for step in self.steps)


class Holder(_Data):
    """Who holds device memory, or what was asked about.

    `path` is the shortest way to it, `paths` one for each that holds it. `invisible` counts
    references to it that cannot be seen from Python: native code has them, or a function that is
    running right now. `cuts` begins with the gentlest; `why_no_cut` says why there is none.
    """

    __slots__ = (
        "bytes",
        "cuts",
        "frozen",
        "invisible",
        "path",
        "paths",
        "tensors",
        "type",
        "why_no_cut",
    )

    def __init__(
        self,
        path: str,
        paths: tuple[str, ...],
        type: str,
        bytes: int,
        tensors: int,
        invisible: int,
        frozen: bool,
        cuts: tuple[Cut, ...],
        why_no_cut: str | None,
    ) -> None:
        self.path = path
        self.paths = paths
        self.type = type
        self.bytes = bytes
        self.tensors = tensors
        self.invisible = invisible
        self.frozen = frozen
        self.cuts = cuts
        self.why_no_cut = why_no_cut


class Dead(_Data):
    """Objects that nobody reaches. The collector frees them, unless they are frozen."""

    __slots__ = ("bytes", "frozen", "objects", "type")

    def __init__(self, type: str, objects: int, bytes: int, frozen: bool) -> None:
        self.type = type
        self.objects = objects
        self.bytes = bytes
        self.frozen = frozen


class Native(_Data):
    """What native code holds: `references` more than Python explains, to something of this type."""

    __slots__ = ("bytes", "path", "references", "type")

    def __init__(self, type: str, path: str, references: int, bytes: int) -> None:
        self.type = type
        self.path = path
        self.references = references
        self.bytes = bytes


class Action(_Data):
    """Something to do, and what it is expected to free."""

    __slots__ = ("action", "bytes")

    def __init__(self, action: str, bytes: int | None) -> None:
        self.action = action
        self.bytes = bytes


class Answer(_Data):
    """Who holds device memory, or what was asked about; what each action would free."""

    __slots__ = (
        "actions",
        "dead",
        "device",
        "frozen_objects",
        "held_bytes",
        "holders",
        "native",
        "notes",
        "objects",
        "rest_bytes",
        "rest_holders",
        "target",
        "tensors",
        "took_s",
    )

    def __init__(
        self,
        *,
        device: str | None,
        target: str | None,
        tensors: int,
        held_bytes: int,
        holders: tuple[Holder, ...],
        rest: tuple[int, int],
        dead: tuple[Dead, ...],
        native: tuple[Native, ...],
        actions: tuple[Action, ...],
        notes: tuple[str, ...],
        objects: int,
        frozen_objects: int,
        took_s: float,
    ) -> None:
        self.device = device
        self.target = target
        self.tensors = tensors
        self.held_bytes = held_bytes
        self.holders = holders
        self.rest_holders, self.rest_bytes = rest
        self.dead = dead
        self.native = native
        self.actions = actions
        self.notes = notes
        self.objects = objects
        self.frozen_objects = frozen_objects
        self.took_s = took_s

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Of the first holder: the gentlest cut first, the smallest last."""
        return self.holders[0].cuts if self.holders else ()

    def __str__(self) -> str:
        lines = [self._head(), *self._body()]
        return "\n".join(lines)

    def _head(self) -> str:
        walk = f"{self.objects:,} objects walked in {self.took_s * 1e3:,.0f} ms, the interpreter waited"
        if self.target is not None:
            return f"why {self.target}: {walk}"
        where = self.device or "any device"
        tensors = counted(self.tensors, "piece")
        return f"why on {where}: {mib(self.held_bytes)} in {tensors} of memory; {walk}"

    def _body(self) -> list[str]:
        lines = []
        for holder in self.holders[:_SHOWN_HOLDERS]:
            lines += _holder_lines(holder)
        rest = len(self.holders) - _SHOWN_HOLDERS
        more, more_bytes = self.rest_holders, self.rest_bytes
        if rest > 0:
            more += rest
            more_bytes += sum(holder.bytes for holder in self.holders[_SHOWN_HOLDERS:])
        if more:
            lines.append(f"  {mib(more_bytes):>14}  {counted(more, 'more holder')}")
        for one in self.dead:
            state = "frozen, so the collector does not see them" if one.frozen else "dead"
            objects = counted(one.objects, "object")
            lines.append(f"  {mib(one.bytes):>14}  {objects} of a cycle with {one.type}: {state}")
        for held in self.native:
            references = counted(held.references, "reference")
            lines.append(
                f"  {mib(held.bytes):>14}  {held.path or held.type}: {references} not visible, "
                "in native code"
            )
        if not (self.holders or self.dead or self.native):
            lines.append("  nobody holds anything")
        lines += [_action_line(action) for action in self.actions]
        return lines + [f"  note: {note}" for note in self.notes]


def _holder_lines(holder: Holder) -> list[str]:
    what = holder.type
    if holder.tensors > 1:
        what += f", {counted(holder.tensors, 'piece')}"
    lines = [f"  {mib(holder.bytes):>14}  {holder.path} ({what})"]
    others = [path for path in holder.paths if path != holder.path]
    lines += [f"  {'also':>14}  {path}" for path in others[: _SHOWN_PATHS - 1]]
    if len(others) >= _SHOWN_PATHS:
        lines.append(f"  {'also':>14}  {counted(len(others) - _SHOWN_PATHS + 1, 'more path')}")
    if holder.invisible:
        references = counted(holder.invisible, "reference")
        lines.append(f"  {'and':>14}  {references} not visible: native code, or a call under way")
    if holder.frozen:
        lines.append(f"  {'frozen':>14}  gc.freeze() took something on the way from the collector")
    for number, cut in enumerate(holder.cuts[:2]):
        lines.append(_cut_line(cut, "cut" if number == 0 else "or cut"))
    if holder.why_no_cut is not None:
        lines.append(f"  {'no cut':>14}  {holder.why_no_cut}")
    return lines


def _cut_line(cut: Cut, word: str) -> str:
    actions = [step.action for step in cut.steps[:_SHOWN_STEPS]]
    if len(cut.steps) > _SHOWN_STEPS:
        actions.append(counted(len(cut.steps) - _SHOWN_STEPS, "more"))
    text = f"  {word:>14}  {'; '.join(actions)} → frees {mib(cut.freed_bytes - cut.kept_bytes)}"
    if cut.invisible:
        text += f" once {counted(cut.invisible, 'reference')} not visible go"
    if cut.beside_bytes:
        text += f", {mib(cut.beside_bytes)} of it beside"
    return text


def _action_line(action: Action) -> str:
    expected = "" if action.bytes is None else f" → frees {mib(action.bytes)}"
    return f"  {'do':>14}  {action.action}{expected}"


def mib(size: int) -> str:
    """Bytes for people, as receipts print them."""
    return f"{size / _MIB:,.1f} MiB"


def counted(number: int, noun: str) -> str:
    """A number and what is counted, in the plural where there are several."""
    plural = "" if number == 1 or noun == "more" else "s"
    return f"{number:,} {noun}{plural}"


def _plain(value: Any) -> Any:
    if isinstance(value, _Data):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value
