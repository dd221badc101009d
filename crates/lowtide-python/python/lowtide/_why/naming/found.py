"""Turns what the native walk found into an answer: nodes and edges become names.

While they are named, a few objects of the program are held: those on the paths. Nothing of them
stays in the answer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..._devices.device import Device
from ..._native import Examination, HeapPath, HeldObject, Holder, ProcessUsage
from ..._runtime.data import counted, mib
from ..._runtime.torch import torch
from .. import rare
from ..answer import SMALL_SHARE, Action, Answer, Cut, Dead, Held, Native, shown_of
from ..interpreter import name_of, registered_at
from ..plan import Plan, smallest
from ..references.contexts import thread_name
from ..references.look import AnyDict, full_type_name, is_a, module_value, type_name
from ..references.shell import OUTPUT
from ..references.tensors import has_graph
from .cuts import Cuts, NamedStep
from .path import NamedPath
from .used import is_used
from .words import Root

_WORTH_BYTES = 1 << 20
"""Below this size, memory that no Python object holds is not mentioned."""

_OTHERS_MOST = 2
"""Other processes that are named."""


class Naming:
    """Names what one examination of the heap found. `apply` cuts the references of a cut later;
    `scope` is the namespace in which statements will run."""

    def __init__(
        self,
        found: Examination,
        apply: Callable[[Sequence[Cut]], int] | None = None,
        scope: AnyDict | None = None,
    ) -> None:
        self._found = found
        self._apply = apply
        self._scope = scope
        # A copy: threads begin and end meanwhile.
        threads = list(dict.items(threading._active))  # type: ignore[attr-defined]
        self._threads = {number: thread_name(thread) for number, thread in threads}

    def answer(
        self, device: Device | None, device_name: str | None, target: str | None, waited_s: float
    ) -> Answer:
        """Returns the whole answer. `target` is the type of the object that was asked about."""
        found = self._found
        held = in_turn([self._held(held) for held in found.held])
        actions = tuple(self._actions(device))
        return Answer(
            plan=self._plan_of(held[: shown_of(held)], actions),
            device=device_name,
            has_device=device is not None or device_name in (None, "cpu"),
            target=target,
            tensors=found.memory.objects,
            held_bytes=found.memory.bytes,
            held=held,
            rest_held=found.rest.objects,
            rest_bytes=found.rest.bytes,
            dead=tuple(
                Dead(
                    type_name(type(dead.head)),
                    dead.size.objects,
                    dead.size.bytes,
                    dead.frozen,
                    dead.kept_bytes,
                )
                for dead in found.dead
            ),
            native=tuple(
                Native(full_type_name(type(one.object)), one.references, one.bytes)
                for one in found.native
                if name_of(one.object) is None and not rare.is_list(one.object)
            ),
            actions=actions,
            notes=tuple(self._notes(device, device_name, target)),
            objects=found.objects,
            frozen_objects=found.frozen_objects,
            took_s=waited_s,
            waited_s=waited_s,
        )

    def holders(
        self, held: HeldObject, besides: object = None, numbered: list[Cut] | None = None
    ) -> tuple[Holder, ...]:
        """Returns the holders of an object, one for each path. Paths over `besides` are left out. What
        `lowtide.cut` can cut is added to `numbered`."""
        paths, counts = self._paths(held, besides)
        holds, naming = _holds(held), Cuts(self.path, self._apply)
        by_cut: dict[object, tuple[str, NamedPath, Cut | None]] = {}
        for text, path in paths.items():
            cut = naming.of_path(path, held)
            # Two ways on which the same is cut are one holder.
            first = by_cut.setdefault(
                text if cut is None else cut.code or cut._keys, (text, path, cut)
            )[0]
            counts[first] += counts[text] if first != text else 0
        for _, _, cut in by_cut.values():
            if cut is not None and numbered is not None:
                numbered.append(cut)
                cut.number = len(numbered)
        own = [cut.number for _, _, cut in by_cut.values() if cut is not None and cut.number]
        return tuple(
            Holder(
                text,
                holds,
                count=counts[text],
                bytes=held.bytes,
                cut=None if cut is None else cut.code,
                by_hand=path.by_hand() if cut is None or cut.code is None else None,
                number=None if cut is None else cut.number,
                together=[] if cut is None else [one for one in own if one != cut.number],
            )
            for text, path, cut in by_cut.values()
        )

    def _paths(
        self, held: HeldObject, besides: object
    ) -> tuple[dict[str, NamedPath], Counter[str]]:
        """Returns the paths to an object by their texts, and how many have each."""
        paths = [
            self.path(path)
            for path in held.paths
            if besides is None or not any(one is besides for one in path.objects)
        ]
        # A model is known by its own name, not by who has its parameters. What a module has in native code
        # often has a name elsewhere, too, and so has an output.
        paths.sort(
            key=lambda path: (
                path.held() is not held.object,
                path.is_inside_module(),
                path.entry(OUTPUT) is not None,
                path.steps(),
                path.text(),
            )
        )
        texts = [path.text() for path in paths]
        return dict(zip(texts, paths)), Counter(texts)

    def _plan_of(self, held: Sequence[Held], actions: Sequence[Action]) -> Plan:
        """Returns the first cut of each object as a plan, and the collection; without what is in use, unless nothing
        else is held."""
        dead = [self._collecting(one) for one in actions if one.number]
        is_other = bool(dead) or any(one.cuts and not one.in_use for one in held)
        leave = [id(one.cuts[0]) for one in held if one.cuts and one.in_use and is_other]
        each = [one.cuts[0] for one in held if one.cuts]
        used = [one for one in each if id(one) in leave]
        plan = self.plan([*(one for one in each if one not in used), *dead, *used], leave=leave)
        for action, one in zip((one for one in actions if one.number), dead):
            action.number = one.number
        return plan

    def _collecting(self, action: Action) -> Cut:
        cut = Cut((), action.action, 0, action.bytes or 0, _apply=self._apply, _collects=True)
        cut._unfreezes = "unfreeze" in action.action
        return cut

    def plan(
        self, cuts: Iterable[Cut], held_bytes: int | None = None, leave: Sequence[int] = ()
    ) -> Plan:
        """Numbers the cuts that can be applied, and returns them as a plan. With `held_bytes`, all of them are
        needed to free so many. Those of these ids can be applied, but are no part of it."""
        numbered = tuple(one for one in cuts if one.can_apply)
        for number, one in enumerate(numbered, start=1):
            one.number = number
        # What the walk does not know to be freed by a cut counts as a piece of its own.
        sizes = dict(enumerate(self._found.sizes))
        sizes |= {-one.number: one.freed_bytes for one in numbered if one.number}
        frees = {
            number: one._pieces or frozenset({-number})
            for number, one in enumerate(numbered, start=1)
            if id(one) not in leave
        }
        if held_bytes is not None or len(frees) == 1:
            size = sum(one.freed_bytes - one.kept_bytes for one in numbered if one.number in frees)
            return Plan(numbered, tuple(frees), held_bytes or size, _apply=self._apply)
        needed = smallest(frees, sizes)
        size = sum(sizes[piece] for piece in frozenset().union(*(frees[one] for one in needed)))
        size -= sum(one.kept_bytes for one in numbered if one.number in needed)
        return Plan(numbered, needed, size, _apply=self._apply)

    def steps(self, besides: object = None) -> Iterator[NamedStep]:
        """Yields the steps of all cuts, to find them again."""
        naming = Cuts(self.path)
        for held in self._found.held:
            yield from naming.steps(held)
            for path in self._paths(held, besides)[0].values():
                yield from naming.path_steps(path)

    def path(self, path: HeapPath, *more: object) -> NamedPath:
        """Returns a path of the walk, continued to some more objects, with its names."""
        objects = [*path.objects, *more]
        if path.root in ("native", "interpreter"):
            objects = rare.without_list(objects)
        if registered_at(objects) is not None:
            objects = objects[1:]
        return NamedPath(self._root(path, objects), objects, scope=self._scope)

    def _root(self, path: HeapPath, objects: list[object]) -> Root:
        if path.root in ("frame", "exception"):
            return Root(path.root, self._threads.get(path.thread) or f"thread {path.thread}")
        if path.root in ("native", "interpreter") and objects:
            name = name_of(objects[0])
            if name is not None:
                return Root("interpreter", name)
        if path.root == "native":
            return Root(path.root, f"{counted(path.hidden, 'reference')} not visible")
        return Root(path.root, "")

    def _held(self, held: HeldObject) -> Held:
        holders = self.holders(held)
        by_hand = _why_for_ever(held.object)
        is_cut = held.reached and by_hand is None
        cuts = Cuts(self.path, self._apply).of(held) if is_cut else ()
        if held.reached and not cuts and by_hand is None:
            first = [self.path(path).by_hand() for path in held.paths[:1]]
            by_hand = first[0] if first else held.why_no_cut
        return Held(
            path=holders[0].path if holders else _without_holder(held),
            type=full_type_name(type(held.object)),
            bytes=held.bytes,
            tensors=held.pieces,
            holders=holders,
            invisible=held.hidden,
            frozen=held.frozen or any(path.frozen for path in held.paths),
            cuts=cuts,
            why_no_cut=held.why_no_cut if held.reached else None,
            by_hand=by_hand,
            in_graph=held.pieces > 1 and _is_in_graph(held),
            alike=held.alike,
            in_use=is_used(held, [self.path(path) for path in held.paths]),
        )

    def _actions(self, device: Device | None) -> list[Action]:
        actions = []
        dead, frozen = self._found.collected_bytes, self._found.unfrozen_bytes
        if dead:
            actions.append(Action("import gc; gc.collect()", dead, number=1))
        if frozen:
            text = "import gc; gc.unfreeze(); gc.collect()"
            actions.append(Action(text, frozen, number=1))
        if device is not None:
            actions += self._beyond_python(device)
        return actions

    def _beyond_python(self, device: Device) -> list[Action]:
        """Returns actions for memory that the device reports and no Python object holds."""
        actions = []
        counts = device.counts()
        cached = counts.reserved_bytes - counts.allocated_bytes
        if cached > 0:
            about = f"the cache of {device.name}'s allocator"
            text = "import lowtide; lowtide.empty_device_cache()"
            actions.append(Action(text, cached, about=about))
        unseen = counts.allocated_bytes - self._found.memory.bytes
        if unseen >= _WORTH_BYTES:
            about = f"{mib(unseen)} that no Python object holds, such as cuBLAS workspaces and IPC leftovers"
            actions.append(Action("import lowtide; lowtide.release()", None, about=about))
        return [*actions, *of_others(device.others())]

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


def of_others(others: Sequence[ProcessUsage]) -> list[Action]:
    """Returns what a person may do about other processes on the device, the largest first."""
    others = sorted(others, key=lambda other: -other.bytes)
    actions = []
    for other in others[:_OTHERS_MOST]:
        text = f"end {other.name}, another process, which uses {mib(other.bytes)} of the device"
        actions.append(Action(text, other.bytes, by_hand=True))
    if rest := others[_OTHERS_MOST:]:
        used = mib(sum(other.bytes for other in rest))
        text = f"see `lowtide ps` for {len(rest)} more, which use {used} of the device"
        actions.append(Action(text, None, by_hand=True))
    return actions


def in_turn(held: Sequence[Held]) -> tuple[Held, ...]:
    """Returns what is held, the largest first; and after it what is in use."""
    least = sum(one.bytes for one in held) / SMALL_SHARE
    return tuple(sorted(held, key=lambda one: (one.in_use or one.bytes < least, -one.bytes)))


def _is_in_graph(held: HeldObject) -> bool:
    """Returns whether an autograd graph holds memory of an object: its own, or one over which a path leads."""
    within = list(held.object)[:1] if type(held.object) in (list, tuple) else [held.object]
    return any(has_graph(one) for path in held.paths for one in [*path.objects[-2:], *within])


def _holds(held: HeldObject) -> str:
    """Returns what an object is to those who hold it."""
    name = type_name(type(held.object))
    return name if held.pieces < 2 else f"{counted(held.pieces, 'piece')} of {name}"


def _why_for_ever(value: object) -> str | None:
    """Returns why nothing frees what an object holds, as a sentence, or None if something does."""
    function = module_value("torch._C", "ScriptFunction")
    if function is None or not is_a(value, function):
        return None
    return (
        "give the tensor to the function as an argument: torch keeps a traced or scripted function, with "
        "the tensors in its code, until the process ends"
    )


def _without_holder(held: HeldObject) -> str:
    if held.collected is None:
        return "only this call"
    if not held.collected and not held.frozen:
        return "only unreachable objects that native code holds: the collector cannot free them"
    if held.frozen:
        return (
            "only unreachable objects, which are frozen: lowtide.release(unfreeze=True) frees them"
        )
    return "only unreachable objects: gc.collect() frees them"
