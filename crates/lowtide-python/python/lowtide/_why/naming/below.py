"""What to cut below an object that the program needs, rather than the object.

`del gateway` frees what two waiting tasks hold, and the gateway goes with it. The memory has one
holder, but no single reference below it. So it is asked about each piece by itself, and where entries of
containers, or tasks, have nearly all of it, they are what a person drops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import NamedTuple

from ..._native import CutEdge, HeapCut, HeldObject, RetainedSize, referents
from ..question import Question
from ..references.look import instance_dict, is_a, module_value, namespace_of, pairs
from ..references.tensors import is_tensor

_MOST_TENSORS = 64
_MOST_EDGES = 16
_MOST_OBJECTS = 20_000
_NEARLY_ALL = 0.95


class CutBelow(NamedTuple):
    """Several cuts of the walk as one."""

    edges: list[CutEdge]
    freed: RetainedSize
    beside: RetainedSize
    kept_bytes: int
    hidden: int
    collects: bool
    unfreezes: bool
    pieces: list[int]


def cuts_below(
    all_held: Sequence[HeldObject], device: str | None, is_entry: Callable[[HeapCut, object], bool]
) -> dict[int, CutBelow]:
    """Returns the cuts below objects, by their ids, of cuts that drop entries."""
    below = {id(one.object): _tensors(one.object) for one in all_held if _is_needed(one)}
    tensors = list({id(one): one for each in below.values() for one in each}.values())
    if not tensors:
        return {}
    question = Question(tensors, device=device, most=len(tensors))
    # The first answer is there meanwhile.
    question.nest()
    del tensors
    found = question.ask()
    own = {id(held.object): held.cuts for held in found.held}
    cuts = {}
    for one in all_held:
        tensors, states = below.get(id(one.object), []), _states(one.object)
        choice = []
        for tensor in tensors if states is None else [each[0] for each in states]:
            with_it = [one for key, *values in states or () if key is tensor for one in values]
            more = {
                piece
                for value in with_it
                for cut in own.get(id(value), ())[:1]
                for piece in cut.pieces
            }
            choice += [
                (cut, more.union(cut.pieces))
                for cut in own.get(id(tensor), ())
                if _is_below(cut, one.object) and is_entry(cut, one.object)
            ]
        joined = _joined(choice, one, found.sizes)
        if joined is not None:
            cuts[id(one.object)] = joined
    return cuts


def _is_needed(held: HeldObject) -> bool:
    """Returns whether an object is more than a container: an instance, a function, a class."""
    one, model = held.object, module_value("torch.nn", "Module")
    if held.pieces < 2 or is_tensor(one) or (model is not None and is_a(one, model)):
        return False
    # Some entries of a container are more than others.
    is_mixed = type(one) in (list, deque) and len(one) > held.pieces
    return is_mixed or instance_dict(one) is not None or is_a(one, type)


def _tensors(value: object) -> list[object]:
    """Returns tensors to which an object leads, past modules, classes and the code of modules."""
    seen, waiting, found = {id(value)}, [value], list[object]()
    while waiting and len(seen) < _MOST_OBJECTS:
        for one in referents(waiting.pop()):
            if id(one) not in seen and not _is_beyond(one):
                seen.add(id(one))
                (found if is_tensor(one) else waiting).append(one)
    return found if len(found) <= _MOST_TENSORS else []


def _states(value: object) -> list[list[object]] | None:
    """Returns each parameter of an optimizer with the tensors of its state, which goes with it; None of other objects."""
    kind = module_value("torch.optim", "Optimizer")
    if kind is None or not is_a(value, kind):
        return None
    state = (instance_dict(value) or {}).get("state", {})
    return [[key, *each.values()] for key, each in pairs(state) if type(each) is dict]


def _is_beyond(value: object) -> bool:
    is_code = type(value) is FrameType and value.f_code.co_name == "<module>"
    is_module = type(value) is dict and namespace_of(value) is not None
    return is_code or is_module or is_a(value, ModuleType) or is_a(value, type)


def _is_below(cut: HeapCut, holder: object) -> bool:
    """Returns whether a cut is below an object, whose other parts stay."""
    paths = [path.objects for edge in cut.edges for path in edge.paths]
    return all(edge.paths and edge.held is not holder for edge in cut.edges) and all(
        any(one is holder for one in path) for path in paths
    )


def _is_own(cut: HeapCut, holder: object) -> bool:
    return all(edge.paths[0].objects[-1] is holder for edge in cut.edges)


def _joined(
    choice: list[tuple[HeapCut, set[int]]], held: HeldObject, sizes: list[int]
) -> CutBelow | None:
    """Returns the fewest of some cuts, each with its pieces, that free nearly all that an object holds."""
    chosen: list[HeapCut] = []
    pieces: set[int] = set()
    size = 0
    # Of equal ones an entry of the object itself comes first, and then the gentlest.
    for cut, freed in sorted(
        choice,
        key=lambda one: (-sum(sizes[piece] for piece in one[1]), not _is_own(one[0], held.object)),
    ):
        if size < _NEARLY_ALL * held.bytes and not pieces.issuperset(freed):
            chosen.append(cut)
            pieces |= freed
            size = sum(sizes[piece] for piece in pieces)
    edges = [edge for cut in chosen for edge in cut.edges]
    if size < _NEARLY_ALL * held.bytes or len(edges) > _MOST_EDGES:
        return None
    return CutBelow(
        edges=edges,
        freed=RetainedSize(sum(cut.freed.objects for cut in chosen), size),
        beside=RetainedSize(0, 0),
        kept_bytes=sum(cut.kept_bytes for cut in chosen),
        hidden=sum(cut.hidden for cut in chosen),
        collects=any(cut.collects for cut in chosen),
        unfreezes=any(cut.unfreezes for cut in chosen),
        pieces=[],
    )
