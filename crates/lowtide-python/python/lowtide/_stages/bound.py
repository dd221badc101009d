"""Finds what only variables hold that a block has bound.

References are counted, so that no heap is walked: an object is the block's if its variables, and
objects that only they hold, explain its whole reference count. What a cache, an older object, another
thread, a call in progress or native code holds has one more.
"""

from __future__ import annotations

import builtins
import dis
import gc
import sys
from collections import Counter
from collections.abc import Iterable
from types import CellType, FrameType, FunctionType, ModuleType, TracebackType

from .._native import frame_locals
from .._why.references.locals import frame_of, locals_of
from .made import classes

Places = dict[int, int]
"""The instructions at which frames are, by the frame's id."""
_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")
_BEFORE_EXIT = ("LOAD_CONST", "SWAP", "COPY", "PUSH_NULL", "NOP", "CALL", "CACHE")
_MOST_OBJECTS = 1_000_000


def places() -> Places:
    """Returns where the frame is that has the `with`, and those for which it only enters: the users of a
    `contextmanager`, of an `ExitStack`, or of a class that begins a stage in its `__enter__`."""
    frame: FrameType | None = sys._getframe(3)  # Of the caller of `Stage.__enter__`.
    found = {}
    while frame is not None:
        found[id(frame)] = frame.f_lasti
        back = frame.f_back
        enters = any(one is not None and _enters(one) for one in (frame, back))
        frame = back if enters else None
    return found


def _enters(frame: FrameType) -> bool:
    is_named = frame.f_code.co_name in ("__enter__", "__aenter__")
    return is_named or frame.f_globals.get("__name__") == "contextlib"


def _stored(frame: FrameType, begin: int, traceback: TracebackType | None) -> dict[str, bool]:
    """Returns the names that a frame has bound since `begin`; and of each, whether it is a global one."""
    end, found, before = frame.f_lasti, {}, None
    while traceback is not None:
        # The handler of an exception is far behind the block.
        end = traceback.tb_lasti if traceback.tb_frame is frame else end
        traceback = traceback.tb_next
    for step in dis.get_instructions(frame.f_code):
        if not begin <= step.offset <= end:
            continue
        if step.opname.startswith(_STORES):
            names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            # Some instructions do two things, such as STORE_FAST_LOAD_FAST.
            does = [word for word in step.opname.split("_") if word in ("STORE", "LOAD")]
            for do, name in zip(does, names, strict=False):
                if do == "STORE":
                    found[name] = step.opname == "STORE_GLOBAL"
        if step.opname not in _BEFORE_EXIT:
            before = step
    if before is not None and before.opname == "LOAD_FAST_BORROW":
        found.pop(before.argval, None)  # From Python 3.14 on `return model` counts no reference.
    return found


class Bound:
    """The variables that a block has bound, and what they and `made` lead to.

    `owned` and `made` are known to have one reference of each. What an object of the class `opaque`
    refers to counts as held by somebody else.
    """

    def __init__(
        self,
        begun: Places,
        traceback: TracebackType | None,
        made: list[object],
        owned: list[object],
        opaque: type,
    ) -> None:
        self.names: dict[int, str] = {}
        self.objects: dict[int, object] = {}
        self.outside: set[int] = set()
        self._edges: dict[int, list[int]] = {}
        self._begun = begun
        self._opaque = (type, ModuleType, opaque)
        self._roots = made + owned
        self._known = Counter(id(one) for one in made + owned)
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if (begin := begun.get(id(frame))) is not None:
                for name, is_global in _stored(frame, begin, traceback).items():
                    self._add(frame, name, is_global)
            frame = frame.f_back
        self._known.update(id(one) for one in self._roots)
        models = tuple(classes())
        # Into models only if it has to be: one of their parts may refer to them.
        for closed in (models, ()):
            self._count(closed)
            if not any(issubclass(type(self.objects[key]), models) for key in self.outside):
                break

    def _add(self, frame: FrameType, name: str, is_global: bool) -> None:
        value = (frame.f_globals if is_global else locals_of(frame)).get(name)
        if not self._counts(value):
            return
        self.names.setdefault(id(value), name)
        code, held = frame.f_code, value
        if name in code.co_cellvars + code.co_freevars:
            # If there are two cells, one may be somebody else's.
            cells = [one for one in gc.get_referrers(value) if type(one) is CellType]
            held = cells[0] if len(cells) == 1 else None
        elif code.co_flags & 1 and isinstance(snapshot := frame_locals(frame), dict):
            self._known[id(value)] += snapshot.get(name) is value
        self._known[id(held)] += 1
        self._roots += [value, held]

    def _counts(self, one: object) -> bool:
        return gc.is_tracked(one) and not issubclass(type(one), self._opaque)

    def _count(self, closed: tuple[type, ...]) -> None:
        """Finds what the roots lead to, though not into objects of some classes, and what of it is
        held by somebody else."""
        self.objects, self._edges, known = {}, {}, Counter(self._known)
        todo = [one for one in self._roots if one is not None]
        while todo and len(self.objects) < _MOST_OBJECTS:
            one = todo.pop()
            if id(one) in self.objects:
                continue
            self.objects[id(one)] = one
            held = [] if issubclass(type(one), closed) else self._held(one)
            self._edges[id(one)] = [id(other) for other in held]
            known.update(self._edges[id(one)])
            todo += held
        one, held = None, []
        todo.clear()
        self.objects[0] = object()  # Has as many references as one that nobody else holds.
        counts = {key: sys.getrefcount(one) for key, one in self.objects.items()}
        del self.objects[0]
        none = counts.pop(0)
        self.outside = self.reached(
            key for key, count in counts.items() if count - none > known[key]
        )

    def _held(self, one: object) -> list[object]:
        if id(frame_of(one)) in self._begun:
            return []  # The variables of the block's own frames have been counted.
        held = gc.get_referents(one)
        if type(one) is FunctionType:
            world = one.__globals__, vars(builtins)
            held = [other for other in held if all(other is not names for names in world)]
        return [other for other in held if self._counts(other)]

    def reached(self, ids: Iterable[int]) -> set[int]:
        """Returns the ids of what some objects lead to, themselves included."""
        found: set[int] = set()
        todo = list(ids)
        while todo:
            if (one := todo.pop()) not in found:
                found.add(one)
                todo += self._edges.get(one, ())
        return found
