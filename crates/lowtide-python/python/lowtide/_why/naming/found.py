"""Turns what the native walk found into an answer: nodes and edges become names.

While they are named, a few objects of the program are held: those on the paths. Nothing of them
stays in the answer.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from ..._devices.device import Device
from ..._native import (
    Examination,
    HeapCut,
    HeapPath,
    HeldObject,
    Holder,
    RetainedSize,
    printable,
)
from ..._runtime.data import counted, mib
from ..._runtime.torch import torch
from ..answer import Action, Answer, Cut, Dead, Held, Native, Step
from ..interpreter import name_of, registered_at
from ..rare.exit_calls import ExitCall, cancel, is_list, without_list
from ..references.contexts import thread_name
from ..references.look import AnyDict, full_type_name, is_a, module_value, type_name
from ..references.reference import Reference
from ..references.tensors import leaves_with_gradient_graph
from .path import NamedPath
from .statement import joined
from .steps import (
    Keys,
    NamedStep,
    ReferenceKey,
    exit_step,
    hook_step,
    in_order,
    keys,
    known_as,
    undo_step,
)
from .words import Root

_WORTH_BYTES = 1 << 20
"""Below this size, memory that no Python object holds is not mentioned."""
_MOST_CUTS = 4
_MOST_GRADIENTS = 16


class Naming:
    """Names what one examination of the heap found. `apply` cuts the references of a cut later;
    `scope` is the namespace in which statements will run."""

    def __init__(
        self,
        found: Examination,
        apply: Callable[[Cut, Keys], None] | None = None,
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
        return Answer(
            device=device_name,
            has_device=device is not None or device_name in (None, "cpu"),
            target=target,
            tensors=found.memory.objects,
            held_bytes=found.memory.bytes,
            held=tuple(self._held(held) for held in found.held),
            rest=found.rest,
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
                if name_of(one.object) is None and not is_list(one.object)
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
        # What a module has in native code often has a name elsewhere, too.
        paths.sort(key=NamedPath.is_inside_module)
        texts = [path.text() for path in paths]
        counts = Counter(texts)
        holds = type_name(type(held.object))
        named = dict(zip(texts, paths))
        found = []
        for text, path in named.items():
            cut = path.cut()
            by_hand = path.by_hand() if cut is None else None
            found.append(
                Holder(text, holds, count=counts[text], bytes=held.bytes, cut=cut, by_hand=by_hand)
            )
        return tuple(found)

    def references(self, wanted: Keys) -> list[Reference] | None:
        """Returns the references of the cut with these keys, or None if there is no such cut."""
        for held in self._found.held:
            for cut in held.cuts:
                steps = self._gradient_steps(held) + self._steps(cut, held.object)
                if keys(steps) == wanted:
                    return [one.reference for one in steps if one.reference is not None]
        return None

    def path(self, path: HeapPath, *more: object) -> NamedPath:
        """Returns a path of the walk, continued to some more objects, with its names."""
        objects = [*path.objects, *more]
        if path.root in ("native", "interpreter"):
            objects = without_list(objects)
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
        cuts = self._cuts(held) if held.reached and by_hand is None else ()
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
        )

    def _cuts(self, held: HeldObject) -> tuple[Cut, ...]:
        """Returns the cuts of an object, the gentlest first; those that are statements before those
        that are done by hand."""
        found: dict[str, Cut] = {}
        for heap_cut in held.cuts:
            cut = self._cut(heap_cut, held)
            found.setdefault(str(cut), cut)
        if not found:
            found = {str(cut): cut for cut in self._without_callback(held)}
        cuts = sorted(found.values(), key=lambda cut: cut.code is None)
        return tuple(cuts[:_MOST_CUTS])

    def _without_callback(self, held: HeldObject) -> list[Cut]:
        """Returns the cut that cancels the call at exit through which all paths lead."""
        paths = [self.path(path) for path in held.paths]
        call = _exit_call(paths) if paths else None
        if call is None:
            return []
        step = exit_step(paths[0], call)
        code = None
        if step.statement is not None:
            code = printable(joined([step.statement], collect=True))
        freed, nothing = RetainedSize(1, held.bytes), RetainedSize(0, 0)
        goes = (step.goes,) if step.goes else ()
        number = id(call.function)
        apply = None if self._apply is None else lambda _: cancel(number)
        return [Cut((step.step,), code, freed, nothing, 0, 0, goes, apply)]

    def _cut(self, found: HeapCut, held: HeldObject) -> Cut:
        gradients = self._gradient_steps(held)
        steps = gradients + self._steps(found, held.object)
        unique = {one.step.action: one for one in steps}
        statements = [one.statement for one in unique.values()]
        known = [one for one in statements if one is not None]
        code = None
        if known and len(known) == len(statements):
            collect = found.collects or any(one.is_entry for one in steps)
            code = printable(joined(known, collect=collect, unfreeze=found.unfreezes))
        return Cut(
            steps=tuple(one.step for one in unique.values()),
            code=code,
            freed=found.freed,
            beside=found.beside,
            # The gradients are what native code holds.
            kept_bytes=0 if gradients and found.hidden <= len(gradients) else found.kept_bytes,
            invisible=found.hidden,
            goes=tuple(dict.fromkeys(one.goes for one in unique.values() if one.goes)),
            apply=self._applying(keys(steps)),
        )

    def _applying(self, keys: Keys) -> Callable[[Cut], None] | None:
        apply = self._apply
        return None if apply is None else lambda cut: apply(cut, keys)

    def _steps(self, cut: HeapCut, target: object) -> list[NamedStep]:
        edges = [edge for edge in cut.edges if edge.paths]
        ends = {(id(edge.paths[0].objects[-1]), id(edge.held)) for edge in edges}
        steps: list[NamedStep] = []
        for edge in edges:
            registered = registered_at(edge.paths[0].objects[-1:])
            if registered is not None:
                undo = undo_step(self.path(edge.paths[0], edge.held), registered)
                # One call may have registered several objects.
                steps += [undo] if all(one.key != undo.key for one in steps) else []
                del registered
                continue
            ways = [
                self.path(path, edge.held) for path in edge.paths if not _passes(path.objects, ends)
            ] or [self.path(edge.paths[0], edge.held)]
            call = _exit_call(ways)
            if call is not None:
                steps.append(exit_step(ways[0], call))
                del ways, call
                continue
            hook = _hook(ways)
            if hook is not None:
                steps.append(hook_step(ways[0], hook))
                del ways, call, hook
                continue
            entry = _registered(ways)
            steps += self._steps_of(
                entry or _written(ways, target), target, is_entry=entry is not None
            )
            del ways, entry
        return in_order(steps)

    def _gradient_steps(self, held: HeldObject) -> list[NamedStep]:
        """Returns the steps that drop gradients whose graph holds the leaf itself.

        After `backward(create_graph=True)` leaf and gradient hold each other in native code, where
        the collector does not look.
        """
        steps: list[NamedStep] = []
        path = held.paths[0] if held.paths else None
        leaves = leaves_with_gradient_graph(held.object)
        if path is None or len(leaves) > _MOST_GRADIENTS:
            return steps
        for leaf, gradient in leaves:
            more = [gradient] if leaf is held.object else [leaf, gradient]
            steps += self._steps_of(self.path(path, *more), held.object)
        return steps

    def _steps_of(
        self, path: NamedPath, target: object, *, is_entry: bool = False
    ) -> list[NamedStep]:
        """Returns a step for each reference at the end of a path."""
        steps = []
        held = path.held()
        goes = "" if held is target else known_as(held)
        last_references: list[Reference | None] = [*path.last_references(target)]
        for last in last_references or [None]:
            statement = path.statement(last)
            action = path.by_hand(last) if statement is None else printable(statement.code())
            step = Step(
                path=path.text(last),
                action=action,
                by_hand=statement is None,
                kind="reference" if last is None else last.kind,
                can_apply=last is not None and last.can_cut,
            )
            name = "" if last is None else last.step
            # torch makes a new Python object of a gradient when it is asked for one.
            is_gradient = last is not None and last.kind == "gradient"
            key = ReferenceKey(id(path.holder()), name, 0 if is_gradient else id(held))
            over = path.passed() - {key.holder_id}
            steps.append(NamedStep(step, key, statement, last, goes, is_entry, over))
        return steps

    def _actions(self, device: Device | None) -> list[Action]:
        actions = []
        dead, frozen = self._found.collected_bytes, self._found.unfrozen_bytes
        if dead:
            actions.append(Action("import gc; gc.collect()", dead))
        if frozen:
            actions.append(Action("import gc; gc.unfreeze(); gc.collect()", frozen))
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
        for other in device.others():
            text = f"end {other.name}, another process, which uses {mib(other.bytes)} of the device"
            actions.append(Action(text, other.bytes, by_hand=True))
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


def _passes(objects: Sequence[object], ends: set[tuple[int, int]]) -> bool:
    """Returns whether a path leads over one of these references, given by the ids of their ends."""
    return any((id(one), id(other)) in ends for one, other in itertools.pairwise(objects))


def _exit_call(ways: list[NamedPath]) -> ExitCall | None:
    """Returns the call at exit that begins all ways to an object, or None."""
    calls = [way.exit_call() for way in ways]
    first = calls[0]
    if first is None or any(one is None or one.function is not first.function for one in calls):
        return None
    return first


def _hook(ways: list[NamedPath]) -> Reference | None:
    """Returns what unregisters the function that begins all ways to an object, or None."""
    first = ways[0].first()
    return ways[0].hook() if all(way.first() is first for way in ways) else None


def _registered(ways: list[NamedPath]) -> NamedPath | None:
    """Returns the path to the entry of a cache or queue that all ways to an object lead over."""
    entries = [way.entry() for way in ways]
    known = [entry for entry in entries if entry is not None and entry.statement() is not None]
    if len(known) == len(ways) and len({id(entry.holder()) for entry in known}) == 1:
        return known[0]
    return None


def _written(ways: list[NamedPath], target: object) -> NamedPath:
    """Returns the first way whose references are cut by statements, one that a person would write if there
    is one; else the first."""
    written = []
    for way in ways:
        statements = [way.statement(last) for last in way.last_references(target)]
        known = [one for one in statements if one is not None]
        if len(known) == len(statements):
            if all(one.is_readable for one in known):
                return way
            written.append(way)
    return [*written, *ways][0]


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
