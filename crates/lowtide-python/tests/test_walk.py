"""The walk against programs that get in its way: what runs while it looks, what is odd in an
interpreter, what must be as it was afterwards.

Where a mistake would crash the interpreter or cannot be undone, the test runs in a process of its own.
"""

from __future__ import annotations

import builtins
import gc
import sys
import threading
import types
import weakref
from typing import Any

import lowtide
import pytest
import ways
from alone import alone
from lowtide import _native
from lowtide._runtime.heap import Interpreter, threads_in
from ways import Quiet, Runner

MIB = 1 << 20


shelf: dict[str, Any] = {}


def paths_to(target: object) -> tuple[str, ...]:
    return lowtide.why(target).held[0].paths


# Several threads.


IN_ANY_NUMBER_OF_THREADS = """
import ways
ways.check_any_number_of_threads(others=0, step=1)
"""
IN_PLACE = """
import ways
ways.check_lists_in_place()
ways.check_frozen_objects()
"""


@pytest.mark.parametrize("program", [IN_ANY_NUMBER_OF_THREADS, IN_PLACE])
def test_the_answer_is_the_same(program: str) -> None:
    """Of any number of threads, and whether the collector's lists are read in place or asked for."""
    alone(f"import sys; sys.path[:0] = {sys.path!r}\n{program}")


def test_any_number_of_threads_has_the_same_answer_among_many_objects() -> None:
    ways.check_any_number_of_threads(others=50_000, step=12)


def test_only_the_calling_thread_walks_where_the_slots_are_not_known() -> None:
    versions = [(3, 9), (3, 10), (3, 13), (3, 14), (4, 0)]
    assert [threads_in(version) for version in versions] == [1, 0, 0, 1, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_NPROC is Linux's")
def test_a_refused_thread_is_done_without() -> None:
    said = alone(
        """
        import os, resource, lowtide
        from lowtide._runtime import heap as _heap

        class Kept: pass
        kept = Kept()
        str(lowtide.why(kept))
        if os.geteuid() == 0:
            os.setuid(12345)  # Root has no limit, and others may not import.
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        _heap.Interpreter.threads = 4
        print("kept" in str(lowtide.why(kept)))
        """
    )
    assert said.strip() == "True"


# What runs meanwhile.


def test_the_programs_import_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    real = builtins.__import__

    def spy(name: str, *args: Any, **kwargs: Any) -> Any:
        called.append(name)
        return real(name, *args, **kwargs)

    question = Quiet([shelf])
    monkeypatch.setattr(builtins, "__import__", spy)
    found = _native.examine(question)
    monkeypatch.undo()
    assert found.held[0].reached
    assert called == []


@pytest.mark.parametrize("in_place", [False, True])
def test_no_hook_runs_once_the_objects_are_listed(in_place: bool) -> None:
    """An audit hook is Python code: while it runs, others do, and objects end."""
    if in_place and not Interpreter.knows_generations:
        pytest.skip("the collector's lists are not read in this version")
    said = alone(
        f"""
        import sys, lowtide
        from lowtide._runtime.heap import Interpreter
        from lowtide._why.question import Question
        from lowtide import _native

        Interpreter.knows_generations = {in_place}
        events = []
        question = None

        def ask():
            class Kept: pass
            kept = Kept()
            def inner():
                # Nobody but its own frame has this function now.
                sys.addaudithook(lambda event, args: events.append(event))
                _native.examine(question)
                events.append("answered")
                return kept
            return inner

        question = Question([sys])
        ask()()
        events = events[: events.index("answered")]
        print(events.count("gc.get_objects"), events[-1])
        """
    )
    # The objects are listed twice, the second time after everything else.
    assert said.strip() == ("0 sys._current_exceptions" if in_place else "2 gc.get_objects")


def test_functions_that_were_replaced_before_the_import_are_not_believed() -> None:
    said = alone(
        """
        import gc
        gc.get_threshold = gc.get_count = lambda: None
        import lowtide

        class Kept: pass
        kept = Kept()
        print("kept" in str(lowtide.why(kept)))
        """
    )
    assert said.strip() == "True"


def test_functions_of_the_interpreter_that_were_replaced_are_not_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mine(*args: Any) -> Any:
        raise AssertionError("this is not the interpreter's")

    for module, name in [
        (gc, "get_objects"),
        (gc, "get_freeze_count"),
        (gc, "disable"),
        (gc, "isenabled"),
        (sys, "_current_frames"),
        (sys, "_current_exceptions"),
    ]:
        monkeypatch.setattr(module, name, mine)
    found = _native.examine(Quiet([shelf]))
    monkeypatch.undo()
    assert found.held[0].reached


def test_a_listing_written_in_python_is_refused() -> None:
    question = Quiet([shelf])
    question.interpreter = type(
        "Mine", (question.interpreter,), {"get_objects": lambda: list(shelf)}
    )
    with pytest.raises(RuntimeError, match="import lowtide before"):
        _native.examine(question)


def test_tuples_that_other_threads_are_making_may_grow() -> None:
    """The interpreter lets no tuple grow that somebody else has, and a list of all objects has it."""
    begun, on = threading.Event(), threading.Event()
    made: list[Any] = []

    def numbers() -> Any:
        yield 0
        begun.set()
        on.wait()
        yield from range(1, 100)

    def make() -> None:
        try:
            made.append(tuple(numbers()))
        except SystemError as error:
            made.append(error)

    def probe(objects: list[object]) -> list[None]:
        on.set()
        thread.join()
        return [None] * len(objects)

    thread = threading.Thread(target=make)
    thread.start()
    begun.wait()
    question = Quiet([shelf])
    question.probe = probe
    _native.examine(question)
    assert made == [tuple(range(100))]


def test_a_question_within_a_question() -> None:
    """As of another thread: what the outer one holds meanwhile is nobody's."""
    shelf["part"] = Runner()
    shelf["part"].held = Runner()
    gone = weakref.ref(shelf["part"].held)
    by_itself = lowtide.why(gone()).held[0]
    within: list[Any] = []
    question = Quiet([Runner()])

    def probe(objects: list[object]) -> list[None]:
        within.append(lowtide.why(gone()).held[0])
        return [None] * len(objects)

    question.probe = probe
    _native.examine(question)
    assert within
    for holder in within:
        assert holder.paths == by_itself.paths
        assert str(holder.cuts[0]) == str(by_itself.cuts[0])
        assert holder.invisible == by_itself.invisible


def test_threads_that_begin_while_names_are_given() -> None:
    class Named(threading.Thread):
        """Its name is the program's code, and begins another thread."""

        @property  # type: ignore[override]
        def name(self) -> str:
            other = threading.Thread(target=done.wait)
            others.append(other)
            other.start()
            return "named"

        @name.setter
        def name(self, name: str) -> None: ...

    done = threading.Event()
    others: list[threading.Thread] = []
    thread = Named(target=done.wait)
    thread.start()
    others.clear()
    try:
        shelf["held"] = Runner()
        assert any(path.endswith("shelf['held']") for path in paths_to(shelf["held"]))
        assert others == []
    finally:
        done.set()
        thread.join()
        for other in others:
            other.join()


# What frames have.


def test_variables_that_the_program_has_asked_for_stay() -> None:
    held = Runner()
    mine = locals()
    before = dict(mine)
    lowtide.why(held)
    lowtide.why(device="cpu")
    # Up to Python 3.12 it is the frame's, and knows of later variables, too.
    assert before.items() <= mine.items()
    assert mine["held"] is held


@pytest.mark.parametrize("install", ["settrace", "setprofile"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_debugger_keeps_the_variables_of_what_it_looks_at(install: str, packed: bool) -> None:
    """Behind a trace function the interpreter writes the snapshot back into the frame."""
    events: list[str] = []

    def look(frame: types.FrameType, event: str, arg: object) -> Any:
        if frame.f_code is debugged.__code__:
            events.append(event)
            _native.examine(Quiet([shelf]))
        return look

    def look_packed(*args: Any) -> Any:
        if args[0].f_code is debugged.__code__:
            events.append(args[1])
            _native.examine(Quiet([shelf]))
        return look_packed

    def debugged() -> list[Any]:
        held, number = Runner(), 7
        abs(number)
        text = "x"
        abs(number)
        return [type(held), number, text]

    before = getattr(sys, install.replace("set", "get"))()
    getattr(sys, install)(look_packed if packed else look)
    try:
        found = debugged()
    finally:
        getattr(sys, install)(before)
    assert found == [Runner, 7, "x"]
    assert len(events) >= 4, events


def test_bodies_run_in_mappings_of_every_kind() -> None:
    class Names(dict):  # type: ignore[type-arg]
        def __getitem__(self, name: str) -> Any:
            ran.append(name)
            return dict.__getitem__(self, name)

        def values(self) -> Any:
            raise AssertionError("the program's code ran")

    class Strange:
        """A mapping that is no dict."""

        def __init__(self) -> None:
            self.names: dict[str, Any] = {}

        def __getitem__(self, name: str) -> Any:
            return self.names[name]

        def __setitem__(self, name: str, value: object) -> None:
            self.names[name] = value

        def values(self) -> Any:
            raise AssertionError("the program's code ran")

    ran: list[str] = []
    code = "held = Runner(); answer = ask(held)"
    names = {"Runner": Runner, "ask": paths_to}
    for local in ({}, Names(), Strange()):
        exec(code, dict(names), local)
        assert local["answer"], local
        exec(code, Names(names), local)
    fresh = dict(names)
    exec(code, fresh)
    assert any("held" in path for path in fresh["answer"]), fresh["answer"]


def test_a_namespace_with_a_strange_name() -> None:
    class Name:
        def __hash__(self) -> int:
            raise AssertionError("the program's code ran")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("the program's code ran")

    names = {"__name__": Name(), "held": Runner(), "ask": paths_to}
    exec("answer = ask(held)", names)
    assert names["answer"]


def test_variables_of_comprehensions_in_bodies() -> None:
    """From Python 3.12 on a comprehension has no frame of its own."""
    said = alone(
        """
        import lowtide
        class Held: pass
        held = [lowtide.why(one).held[0].path for one in [Held()]]
        class Body:
            inner = Held()
            held = [lowtide.why(inner).held[0].path for inner in [inner]]
        print(held, Body.held)
        """
    )
    assert "only this call" not in said


def test_an_exception_that_can_be_indexed() -> None:
    class Failure(Exception):
        def __getitem__(self, at: int) -> Any:
            raise AssertionError("the program's code ran")

    failure = None
    try:
        held = Runner()
        raise Failure(held)
    except Failure as error:
        failure = weakref.ref(error)
        del held
        paths = lowtide.why(error.args[0]).held[0].paths
    assert any("args" in path for path in paths), paths
    del failure


def test_a_variable_of_a_running_generator_is_one_reference() -> None:
    def rows() -> Any:
        held = Runner()
        yield lowtide.why(held)

    answer = next(rows())
    (holder,) = answer.held
    assert holder.path != "only this call"
    assert all(len(cut.steps) == 1 for cut in holder.cuts), holder.cuts


# What is odd in an interpreter.


def test_a_table_of_modules_with_anything_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError("the program's code ran")

    monkeypatch.setitem(sys.modules, "not_a_module", Runner())  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "nothing", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    bare = types.ModuleType.__new__(types.ModuleType)
    monkeypatch.setitem(sys.modules, "bare", bare)
    sys.modules["not_a_module"].model = Runner()  # type: ignore[attr-defined]
    model = sys.modules["not_a_module"].model  # type: ignore[attr-defined]
    assert any("not_a_module" in path for path in paths_to(model)), paths_to(model)


def test_a_table_of_modules_that_was_replaced() -> None:
    for table in ("dict(sys.modules)", "collections.UserDict(sys.modules)"):
        said = alone(
            f"""
            import collections, sys, lowtide
            class Held: pass
            shelf = [Held()]
            lowtide.why(shelf[0])
            sys.modules = {table}
            print(lowtide.why(shelf[0]).held[0].paths)
            """
        )
        assert "shelf[0]" in said, said


def test_classes_whose_metaclass_lies() -> None:
    class Liar(type):
        def mro(cls) -> list[type]:
            return [cls, *list(object.__mro__)]

        def __getattribute__(cls, name: str) -> Any:
            raise AssertionError("the program's code ran")

        def __instancecheck__(cls, one: object) -> bool:
            raise AssertionError("the program's code ran")

    lying = Liar("Lying", (), {})
    one = object.__new__(lying)
    object.__setattr__(one, "held", Runner())
    shelf["liar"] = one
    held = object.__getattribute__(one, "held")
    del one
    assert any("shelf['liar'].held" in path for path in paths_to(held))


# What is left afterwards.


def test_the_memory_for_an_answer_goes_back_at_once() -> None:
    # Where frozen objects are found on the way, the tables have to grow: the C library would keep much of
    # what was in them then.
    told = alone(
        """
        import gc, lowtide
        from lowtide._runtime.heap import Interpreter
        Interpreter.knows_generations = False
        world = [{"number": [number]} for number in range(400_000)]
        gc.collect()
        gc.freeze()
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * 4096
        lowtide.why(lowtide)
        before = resident()
        objects = lowtide.why(world).objects
        print(objects, resident() - before)
        """
    )
    objects, kept = map(int, told.split())
    assert objects > 800_000
    assert kept < 4 * MIB, kept
