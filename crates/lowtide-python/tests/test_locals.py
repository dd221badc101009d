"""Reading the variables of a frame leaves nothing behind and removes nothing."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

from lowtide._why.references.locals import locals_of
from names import Held


def test_locals_leave_no_snapshot_behind() -> None:
    def serve(batch: object) -> Any:
        local = [batch]
        yield local

    held = Held()
    suspended = serve(held)
    next(suspended)
    before = sys.getrefcount(held)
    found = locals_of(suspended.gi_frame)
    assert found["batch"] is held
    assert sys.getrefcount(held) == before + 1  # `found` alone
    del found
    assert sys.getrefcount(held) == before
    assert not [one for one in gc.get_referents(suspended) if type(one) is dict and "batch" in one]


def test_locals_of_a_running_frame_leave_no_snapshot_behind() -> None:
    def read() -> None:
        assert locals_of(sys._getframe(1))["batch"] is not None

    def serve() -> Any:
        batch = Held()
        gone = weakref.ref(batch)
        read()
        del batch
        return gone

    gone = serve()
    assert gone() is None

    batch = Held()
    gone = weakref.ref(batch)
    read()
    del batch
    assert gone() is None


def test_locals_that_the_program_kept_stay() -> None:
    batch = Held()
    kept = locals()
    assert locals_of(sys._getframe())["batch"] is batch
    assert kept["batch"] is batch


def test_locals_of_a_known_snapshot_stay() -> None:
    def serve(batch: object) -> Any:
        yield locals() and None

    suspended = serve(Held())
    next(suspended)
    raw = suspended.gi_frame.f_locals
    known = {id(raw)}
    size = len(raw)
    del raw
    locals_of(suspended.gi_frame)
    if sys.version_info < (3, 13):
        assert [len(one) for one in gc.get_referents(suspended) if id(one) in known] in ([size], [])
    assert locals_of(suspended.gi_frame)


def test_locals_under_exec_stay() -> None:
    spaces: dict[str, Any] = {"locals_of": locals_of, "sys": sys}
    exec("batch = 7\nfound = locals_of(sys._getframe())", spaces)
    assert spaces["batch"] == 7
    assert spaces["found"]["batch"] == 7

    def inside() -> Any:
        batch = Held()
        exec("new = 5\nlocals_of(sys._getframe(1))\nassert new == 5")
        return batch

    assert type(inside()) is Held


def test_namespaces_of_modules_and_classes_are_never_cleared() -> None:
    class Body:
        first = Held()
        found = locals_of(sys._getframe())
        second = first

    assert Body.second is Body.first
    assert Body.found["first"] is Body.first

    class Space(dict):  # type: ignore[type-arg]
        def __getitem__(self, key: object) -> object:
            raise KeyError(key)

    space = Space(batch=1)
    exec("locals_of(sys._getframe())", {"locals_of": locals_of, "sys": sys}, space)
    assert dict.__len__(space) == 1


def test_a_debugger_does_not_lose_the_variables() -> None:
    seen = []

    def trace(frame: Any, event: str, arg: object) -> Any:
        if frame.f_code.co_name == "work":
            seen.append(set(locals_of(frame)))
            return trace
        return None

    def work() -> int:
        number = 1
        other = number + 1
        return number + other

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        answer = work()
    finally:
        sys.settrace(before)
    assert answer == 3
    assert {"number", "other"} in seen
