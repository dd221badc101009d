"""Turns what the native walk found into an answer: nodes and edges become names.

While they are named, a few objects of the program are held: those on the paths. Nothing of them
stays in the answer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from .._data import counted, mib
from .._devices.device import Device
from .._native import Examination, HeapCut, HeapPath, HeldObject, Holder
from .._torch import torch
from .answer import Action, Answer, Cut, Dead, Held, Native, Step
from .interpreter import name_of
from .named_path import NamedPath
from .path_text import Root
from .references.contexts import thread_name
from .references.look import full_type_name, type_name
from .references.reference import Reference

_WORTH_BYTES = 1 << 20
"""Below this size, memory that no Python object holds is not mentioned."""
_MOVING = ("element", "key")


class ReferenceKey(NamedTuple):
    """Identifies a reference: the id of its holder, the step, and the id of what it holds.

    The path to it may change from one question to the next, and with it the words: up to Python
    3.12, reading an instance's attributes creates its dict, which lengthens some paths.
    """

    holder_id: int
    step: str
    held_id: int


Keys = frozenset[ReferenceKey]


class _NamedStep(NamedTuple):
    """A reference of a cut: in words, by its key, and itself where it could be found."""

    step: Step
    key: ReferenceKey
    reference: Reference | None


class Naming:
    """Names what one examination of the heap found. `apply` cuts the references of a cut later."""

    def __init__(
        self, found: Examination, apply: Callable[[Cut, Keys], None] | None = None
    ) -> None:
        self._found = found
        self._apply = apply
        # A copy: threads begin and end meanwhile.
        threads = list(dict.items(threading._active))  # type: ignore[attr-defined]
        self._threads = {number: thread_name(thread) for number, thread in threads}

    def answer(
        self, device: Device | None, device_name: str | None, target: str | None, waited_s: float
    ) -> Answer:
        """Returns the whole answer. `target` is the type of the object that was asked about."""
        found = self._found
        return Answer(
            device=device_name,
            target=target,
            tensors=found.memory.objects,
            held_bytes=found.memory.bytes,
            held=tuple(self._held(held) for held in found.held),
            rest=found.rest,
            dead=tuple(
                Dead(type_name(type(dead.head)), dead.size.objects, dead.size.bytes, dead.frozen)
                for dead in found.dead
            ),
            native=tuple(
                Native(full_type_name(type(one.object)), one.references, one.bytes)
                for one in found.native
            ),
            actions=tuple(self._actions(device)),
            notes=tuple(self._notes(device, device_name, target)),
            objects=found.objects,
            frozen_objects=found.frozen_objects,
            took_s=waited_s,
            waited_s=waited_s,
        )

    def holders(self, held: HeldObject, besides: object = None) -> tuple[Holder, ...]:
        """Returns the holders of an object, one for each path. Paths over `besides` are left out."""
        paths = [
            self.path(path)
            for path in held.paths
            if besides is None or not any(one is besides for one in path.objects)
        ]
        texts = [path.text() for path in paths]
        counts = Counter(texts)
        holds = type_name(type(held.object))
        cuts = {text: path.cut() for text, path in zip(texts, paths)}
        return tuple(
            Holder(text, holds, count=counts[text], bytes=held.bytes, cut=cut)
            for text, cut in cuts.items()
        )

    def references(self, wanted: Keys) -> list[Reference] | None:
        """Returns the references of the cut with these keys, or None if there is no such cut."""
        for held in self._found.held:
            for cut in held.cuts:
                steps = self._steps(cut)
                if _keys(steps) == wanted:
                    return [one.reference for one in steps if one.reference is not None]
        return None

    def path(self, path: HeapPath, *more: object) -> NamedPath:
        """Returns a path of the walk, continued to some more objects, with its names."""
        return NamedPath(self._root(path), [*path.objects, *more])

    def _root(self, path: HeapPath) -> Root:
        if path.root in ("frame", "exception"):
            return Root(path.root, self._threads.get(path.thread) or f"thread {path.thread}")
        if path.root in ("native", "interpreter") and path.objects:
            name = name_of(path.objects[0])
            if name is not None:
                return Root("interpreter", name)
        if path.root == "native":
            return Root(path.root, f"{counted(path.hidden, 'reference')} not visible")
        return Root(path.root, "")

    def _held(self, held: HeldObject) -> Held:
        holders = self.holders(held)
        return Held(
            path=holders[0].path if holders else _without_holder(held),
            type=full_type_name(type(held.object)),
            bytes=held.bytes,
            tensors=held.pieces,
            holders=holders,
            invisible=held.hidden,
            frozen=held.frozen or any(path.frozen for path in held.paths),
            cuts=tuple(self._cut(cut) for cut in held.cuts if held.reached),
            why_no_cut=held.why_no_cut if held.reached else None,
        )

    def _cut(self, found: HeapCut) -> Cut:
        steps = self._steps(found)
        unique = {one.step.action: one.step for one in steps}
        return Cut(
            steps=tuple(unique.values()),
            freed=found.freed,
            beside=found.beside,
            kept_bytes=found.kept_bytes,
            invisible=found.hidden,
            apply=self._applying(_keys(steps)),
        )

    def _applying(self, keys: Keys) -> Callable[[Cut], None] | None:
        apply = self._apply
        return None if apply is None else lambda cut: apply(cut, keys)

    def _steps(self, cut: HeapCut) -> list[_NamedStep]:
        steps = []
        for edge in cut.edges:
            if edge.path is None:
                continue
            path, held = self.path(edge.path, edge.held), edge.held
            last_references: list[Reference | None] = [*path.last_references()]
            for last in last_references or [None]:
                text = path.text(last)
                action = path.verb(last) or f"drop {text}"
                kind = last.kind if last is not None else "reference"
                can_apply = last is not None and last.can_cut
                name = "" if last is None else last.step
                key = ReferenceKey(id(path.holder()), name, id(held))
                steps.append(_NamedStep(Step(text, action, kind, can_apply), key, last))
            del edge, path, held
        return _in_order(steps)

    def _actions(self, device: Device | None) -> list[Action]:
        actions = []
        dead, frozen = self._found.dead_bytes, self._found.dead_frozen_bytes
        if dead > frozen:
            actions.append(Action("gc.collect()", dead - frozen))
        if frozen:
            text = "lowtide.release(unfreeze=True), or gc.unfreeze() and gc.collect()"
            actions.append(Action(text, frozen))
        if device is not None:
            actions += self._beyond_python(device)
        return actions

    def _beyond_python(self, device: Device) -> list[Action]:
        """Returns actions for memory that the device reports and no Python object holds."""
        actions = []
        counts = device.counts()
        cached = counts.reserved_bytes - counts.allocated_bytes
        if cached > 0:
            text = f"lowtide.empty_device_cache(), for the cache of {device.name}'s allocator"
            actions.append(Action(text, cached))
        unseen = counts.allocated_bytes - self._found.memory.bytes
        if unseen >= _WORTH_BYTES:
            text = (
                "lowtide.release(), for memory that no Python object holds, such as cuBLAS workspaces "
                f"and IPC leftovers: {mib(unseen)}"
            )
            actions.append(Action(text, None))
        for other in device.others():
            text = f"end {other.name}, another process, which uses {mib(other.bytes)} of the device"
            actions.append(Action(text, other.bytes))
        return actions

    def _notes(
        self, device: Device | None, device_name: str | None, target: str | None
    ) -> list[str]:
        notes = []
        has_no_device = device is None and device_name not in (None, "cpu")
        if has_no_device and torch() is not None:
            notes.append(
                f"torch has no {device_name} here: lowtide.why(device='cpu') asks for host memory"
            )
        native = self._found.native_memory
        if native.objects and target is None:
            notes.append(
                f"{counted(native.objects, 'piece')} of memory ({mib(native.bytes)}) have holders in "
                "native code that Python does not see"
            )
        frozen = self._found.frozen_objects
        if frozen and not self._found.frozen_listed:
            notes.append(
                f"{counted(frozen, 'object')} are frozen and could not be listed in this interpreter: "
                "unreachable frozen cycles are not found"
            )
        if torch() is None and target is None:
            notes.append("torch is not imported, so there are no tensors to find")
        return notes


def _in_order(steps: list[_NamedStep]) -> list[_NamedStep]:
    """Reverses the steps that delete elements: deleting one moves those behind it."""
    moving = iter([one for one in steps if one.step.kind in _MOVING][::-1])
    return [next(moving) if one.step.kind in _MOVING else one for one in steps]


def _keys(steps: list[_NamedStep]) -> Keys:
    return frozenset(one.key for one in steps)


def _without_holder(held: HeldObject) -> str:
    if not held.dead:
        return "only this call"
    if held.frozen:
        return (
            "only unreachable objects, which are frozen: lowtide.release(unfreeze=True) frees them"
        )
    return "only unreachable objects: gc.collect() frees them"
