"""`why`: who holds device memory, or this object; and what would free it.

The native walk finds nodes and edges; here they get names. While they are named we hold a few of the
program's objects, those on the paths, and nothing of them stays in the answer.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from . import _native
from ._answer import Action, Answer, Cut, Dead, Holder, Native, Step, counted, mib
from ._contexts import thread_name
from ._look import full_type_name, type_name
from ._path import Root, holder_of, last_references, path_text, path_verb, way_to_cut
from ._question import Question
from ._torch import Device, device_of, torch

Key = tuple[int, str, int]
"""Which reference: where its holder is, the step, and where what it holds is. How one comes there may
change from one question to the next, and with it the words: to look at an instance's attributes makes
its dict, up to Python 3.12, which lengthens some paths."""
Keys = frozenset[Key]

_HOLDERS_MOST = 12
_WORTH = 1 << 20
_MOVING = ("element", "key")


def why(target: object = None, device: object = None) -> Answer:
    """Who holds device memory; or, with a target, who holds that.

    Without a device it speaks of the accelerator, and where there is none, of tensors in host memory.
    A target is any object: a tensor, a model, a runner.

    >>> print(lowtide.why())                 # doctest: +SKIP
    >>> print(lowtide.why(runner.model))     # doctest: +SKIP

    The interpreter's lock is held meanwhile; the answer says for how long.
    """
    name = None if target is not None and device is None else _device_name(device)
    return _Asking(target, name).answer()


def _device_name(device: object) -> str:
    found = device_of(device)
    if found is not None:
        return found.name
    if device is None:
        return "cpu"
    # A program for machines of both kinds is not wrong where there is none (R2): the answer says so.
    return f"cuda:{device}" if isinstance(device, int) else str(device)


class _Asking:
    """One question, and how it is asked again by a cut that is applied later."""

    def __init__(self, target: object, device: str | None) -> None:
        self._device = device
        self._is_about_target = target is not None
        self._target = target
        self._weak: Any = None
        if target is not None:
            try:
                self._weak = weakref.ref(target)
            except TypeError:
                pass  # A dict or a list: only who has it can ask about it again.

    def answer(self) -> Answer:
        target, self._target = self._target, None
        began = time.perf_counter()
        found = self._examine(target)
        took_s = time.perf_counter() - began
        text = full_type_name(type(target)) if self._is_about_target else None
        del target
        return Naming(found, self._apply).answer(self._device, text, took_s)

    def _examine(self, target: object) -> dict[str, Any]:
        targets = [target] if self._is_about_target else None
        question = Question(targets, device=self._device, most=_HOLDERS_MOST)
        del target, targets
        return _native.examine(question)

    def _apply(self, cut: Cut, keys: Keys) -> None:
        target = None
        if self._is_about_target:
            if self._weak is None:
                raise TypeError(
                    "what was asked about cannot be found again by itself: ask with "
                    "lowtide.why(target) and apply that answer's cut at once, or do as it says"
                )
            target = self._weak()
            if target is None:
                return
        found = self._examine(target)
        del target
        references = Naming(found, self._apply).references(keys)
        del found
        if references is None:
            raise LookupError(f"these references are not there any more: {cut}. Ask again")
        while references:
            references.pop().cut()


class Naming:
    """Gives names to what the native walk found."""

    def __init__(self, found: dict[str, Any], apply: Any) -> None:
        self._found = found
        self._apply = apply
        # In one go: threads begin and end meanwhile.
        threads = list(dict.items(threading._active))  # type: ignore[attr-defined]
        self._threads = {number: thread_name(thread) for number, thread in threads}

    def answer(self, device: str | None, target: str | None, took_s: float) -> Answer:
        found = self._found
        holders = tuple(self._holder(holder) for holder in found["holders"])
        tensors, held_bytes = found["memory"]
        dead = tuple(
            Dead(type_name(type(head)), objects, size, frozen)
            for head, objects, size, frozen in found["dead"]
        )
        frozen_objects, frozen_seen = found["frozen"]
        return Answer(
            device=device,
            target=target,
            tensors=tensors,
            held_bytes=held_bytes,
            holders=holders,
            rest=found["rest"],
            dead=dead,
            native=self._native(),
            actions=self._actions(device),
            notes=self._notes(frozen_objects, frozen_seen, device, target),
            objects=found["objects"],
            frozen_objects=frozen_objects,
            took_s=took_s,
        )

    def _root(self, kind: str, thread: int, hidden: int) -> Root:
        if kind in ("frame", "exception"):
            return Root(kind, self._threads.get(thread) or f"thread {thread}")
        if kind == "native":
            return Root(kind, f"{counted(hidden, 'reference')} not visible")
        return Root(kind, "")

    def path(self, path: Any) -> tuple[Root, list[object]]:
        (kind, thread), objects, hidden, _ = path
        return self._root(kind, thread, hidden), objects

    def _holder(self, found: dict[str, Any]) -> Holder:
        paths = [path_text(*self.path(path)) for path in found["paths"]]
        unique = tuple(dict.fromkeys(paths))
        of = found["object"]
        why_no_cut = found.get("no_cut")
        if not found["reached"]:
            why_no_cut = None
        return Holder(
            path=unique[0] if unique else _unheld(found),
            paths=unique,
            type=full_type_name(type(of)),
            bytes=found["bytes"],
            tensors=found["pieces"],
            invisible=found["hidden"],
            frozen=found["frozen"] or any(path[3] for path in found["paths"]),
            cuts=tuple(self._cut(cut) for cut in found["cuts"] if found["reached"]),
            why_no_cut=why_no_cut,
        )

    def _steps(self, cut: dict[str, Any]) -> list[tuple[Step, Key, Any]]:
        """Each reference of a cut: in words, what tells it from others, and itself."""
        steps = []
        for holder, held, way in cut["edges"]:
            if way is None:
                continue
            root, objects = self.path(way)
            objects = [*objects, held]
            ways: list[Any] = last_references(objects)
            for last in ways or [None]:
                text = path_text(root, objects, last=last)
                action = path_verb(root, objects, last) or f"let go of {text}"
                kind = last.kind if last is not None else "reference"
                can_apply = last is not None and last.can_cut
                key = (id(holder_of(objects)), "" if last is None else last.step, id(held))
                steps.append((Step(text, action, kind, can_apply), key, last))
            del holder, held
        return _as_typed(steps)

    def _cut(self, found: dict[str, Any]) -> Cut:
        steps = self._steps(found)
        unique = {step.action: step for step, _, _ in steps}
        apply = self._apply and partial(self._apply, keys=_keys(steps))
        return Cut(
            steps=tuple(unique.values()),
            freed=found["freed"],
            beside=found["beside"],
            kept_bytes=found["kept"],
            invisible=sum(count for _, count in found["keepers"]),
            apply=apply,
        )

    def references(self, wanted: Keys) -> list[Any] | None:
        """The references of the cut with these; None if there is none."""
        for holder in self._found["holders"]:
            for cut in holder["cuts"]:
                steps = self._steps(cut)
                if _keys(steps) == wanted:
                    return [reference for _, _, reference in steps if reference is not None]
        return None

    def _native(self) -> tuple[Native, ...]:
        held = [
            Native(full_type_name(type(of)), "", references, size)
            for of, references, size in self._found["native"]
        ]
        return tuple(held)

    def _actions(self, device: str | None) -> tuple[Action, ...]:
        actions = []
        _, dead, frozen = self._found["dead_total"]
        if dead > frozen:
            actions.append(Action("gc.collect()", dead - frozen))
        if frozen:
            text = "lowtide.release(unfreeze=True), or gc.unfreeze() and gc.collect()"
            actions.append(Action(text, frozen))
        found = _found(device)
        if found is not None:
            actions += self._beyond_python(found)
        return tuple(actions)

    def _beyond_python(self, device: Device) -> list[Action]:
        """What the device and the framework's allocator know of, and no Python object holds."""
        actions = []
        allocated, reserved = device.counts()
        if reserved > allocated:
            text = f"lowtide.empty_device_cache(), for what {device.name}'s allocator has cached"
            actions.append(Action(text, reserved - allocated))
        unseen = allocated - self._found["memory"][1]
        if unseen >= _WORTH:
            text = (
                "lowtide.release(), for some of what native code has and no Python object holds: "
                f"{mib(unseen)}, such as cuBLAS workspaces, what IPC left"
            )
            actions.append(Action(text, None))
        for name, size in device.others():
            text = f"end another process, {name}, which has {mib(size)} of the same device"
            actions.append(Action(text, size))
        return actions

    def _notes(
        self, frozen: int, frozen_seen: bool, device: str | None, target: str | None
    ) -> tuple[str, ...]:
        notes = []
        if device not in (None, "cpu") and torch() is not None and _found(device) is None:
            notes.append(
                f"torch has no {device} here: lowtide.why(device='cpu') asks for the host's"
            )
        pieces, size, largest = self._found["native_memory"]
        if pieces and largest is not None and target is None:
            notes.append(
                f"{counted(pieces, 'piece')} of memory ({mib(size)}) "
                "have holders in native code beyond what Python explains"
            )
        if frozen and not frozen_seen:
            notes.append(
                f"{counted(frozen, 'object')} are frozen and could not be listed in this interpreter: "
                "a frozen cycle that nobody refers to is not seen"
            )
        if torch() is None and target is None:
            notes.append("torch is not imported: no tensors were looked for")
        return tuple(notes)


def _as_typed(steps: list[tuple[Step, Key, Any]]) -> list[tuple[Step, Key, Any]]:
    """In an order in which each is right when it comes: an element that goes moves those behind it, so
    that the last goes first."""
    moving = iter([step for step in steps if step[0].kind in _MOVING][::-1])
    return [next(moving) if step[0].kind in _MOVING else step for step in steps]


def _found(device: str | None) -> Device | None:
    return None if device in (None, "cpu") else device_of(device)


def _keys(steps: list[tuple[Step, Key, Any]]) -> Keys:
    return frozenset(key for _, key, _ in steps)


def _unheld(found: dict[str, Any]) -> str:
    if not found["dead"]:
        return "nobody but this call"
    if found["frozen"]:
        return "only dead objects, which are frozen: lowtide.release(unfreeze=True) frees them"
    return "only dead objects: gc.collect() frees them"


def holders(
    survivors: Sequence[object] | None = None,
    besides: object = None,
    device: str | None = None,
    least: int = 0,
) -> list[tuple[str, str, int, int, str | None]]:
    """Who holds the memory of these tensors, or of a device: path, what it holds, how many paths,
    bytes, and what cuts it.

    Paths over `besides` are left out: it is known to hold them. So is who holds less than `least`.
    """
    question = Question(survivors, grouped=True, device=device, most=_HOLDERS_MOST)
    del survivors
    found = _native.examine(question)
    del question
    naming = Naming(found, None)
    lines = []
    for holder in found["holders"]:
        if holder["bytes"] < least:
            continue
        paths = [
            path
            for path in holder["paths"]
            if besides is None or not any(one is besides for one in path[1])
        ]
        cuts = {path_text(*way): way_to_cut(*way) for way in map(naming.path, paths)}
        holds = type_name(type(holder["object"]))
        lines += [(text, holds, 1, holder["bytes"], cut) for text, cut in cuts.items()]
    for head, objects, size, frozen in found["dead"]:
        if frozen and size >= least:
            what = f"{counted(objects, 'object')} of a cycle with {type_name(type(head))}"
            lines.append(("gc.freeze()", what, 1, size, "lowtide.release(unfreeze=True)"))
    return lines
