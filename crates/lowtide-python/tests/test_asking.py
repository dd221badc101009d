"""Asking changes nothing: no memory is freed by a question, and questions do not see each other."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys
import threading
import types
import weakref
from typing import Any

import lowtide
import pytest
import torch
from alone import alone_with_torch, ended_with_torch
from torch.multiprocessing.reductions import StorageWeakRef

MIB = 1 << 20
TURNS = 2 if os.environ.get("LOWTIDE_LONG") == "1" else 1
"""How often questions that meet are asked."""
HAS_SNAPSHOT = sys.version_info < (3, 13)
# Up to Python 3.10 the caller of a running function has its arguments, too, where nobody can count
# them: "native code, or a call in progress".
SEES_CALLS = sys.version_info >= (3, 11)
INTERNALS = (
    *(("native code", "not visible") if SEES_CALLS else ("native code's",)),
    "enumerate",
    "iterator",
    "KeptTensors",
    "HeapPath",
    "lowtide",
    "generator",
)
"""What another examination would look like."""


class Runner:
    pass


shelf: dict[str, Any] = {}


def _texts(answer: Any) -> str:
    held = answer.held[0]
    return "\n".join([held.path, *held.paths, *(str(cut) for cut in held.cuts), str(answer)])


@pytest.mark.skipif(not HAS_SNAPSHOT, reason="from Python 3.13 on a frame keeps no snapshot")
def test_a_stale_snapshot_is_named_and_not_freed() -> None:
    def work() -> Any:
        model = torch.ones(16 * MIB)
        storage = StorageWeakRef(model.untyped_storage())
        sys._getframe().f_locals  # noqa: B018 (a debugger or a logger did it)
        del model
        answers = [lowtide.why(device="cpu"), lowtide.why(device="cpu")]
        is_alive = not storage.expired()
        return answers, is_alive, storage

    answers, is_alive, storage = work()
    assert is_alive, "the question has freed what it was about"
    assert storage.expired()
    for answer in answers:
        found = [held for held in answer.held if held.bytes == 64 * MIB]
        assert len(found) == 1, answer
        assert "locals()['model']" in found[0].path, answer
        assert found[0].cuts, answer


@pytest.mark.skipif(not HAS_SNAPSHOT, reason="from Python 3.13 on a frame keeps no snapshot")
def test_the_cut_of_a_stale_snapshot_frees_it() -> None:
    model = torch.ones(16 * MIB)
    storage = StorageWeakRef(model.untyped_storage())
    sys._getframe().f_locals  # noqa: B018
    del model
    answer = lowtide.why(device="cpu")
    held = next(held for held in answer.held if held.bytes == 64 * MIB)
    held.cuts[0].apply()
    assert storage.expired()


@pytest.mark.skipif(not HAS_SNAPSHOT, reason="from Python 3.13 on a frame keeps no snapshot")
def test_questions_about_every_frame_leave_its_snapshot_as_it_is() -> None:
    """Also for generators, closures, and frames that only a traceback has."""
    kept: list[weakref.ref[Runner]] = []

    def stale() -> Runner:
        held = Runner()
        kept.append(weakref.ref(held))
        return held

    def generator() -> Any:
        gone, shared = stale(), Runner()
        sys._getframe().f_locals  # noqa: B018
        del gone
        yield lambda: shared

    def failing() -> None:
        gone = stale()
        sys._getframe().f_locals  # noqa: B018
        del gone
        raise ValueError

    shelf["generator"] = generator()
    shelf["function"] = next(shelf["generator"])
    try:
        failing()
    except ValueError as error:
        shelf["error"] = error
    for one in [lambda: kept[0](), lambda: kept[1](), lambda: shelf["function"]()]:
        answer = lowtide.why(one())
        assert answer.held[0].holders, answer
    assert [one() is not None for one in kept] == [True, True]


def test_the_iterator_of_a_loop_belongs_to_its_frame() -> None:
    """It is on the stack of the frame, and has no name."""
    for one in [Runner(), Runner()]:
        held = lowtide.why(one).held[0]
        assert "native" not in " ".join(held.paths), held.paths
        assert any("_iterator)[" in path for path in held.paths), held.paths
        assert held.invisible == 0 or not SEES_CALLS


def test_a_program_with_closures_and_arguments_of_every_kind() -> None:
    """Variables are read where they are: cells, arguments that are cells, and unbound names."""

    def outer(argument: Any, other: Any, *more: Any, last: Any = None, **rest: Any) -> Any:
        local, shared = Runner(), Runner()

        def inner() -> Any:
            return argument, shared, last

        if other is None:
            unbound = 1
            del unbound
        paths = {
            name: lowtide.why(value).held[0].paths
            for name, value in [
                ("argument", argument),
                ("other", other),
                ("local", local),
                ("shared", shared),
                ("last", last),
            ]
        }
        return paths, inner

    found, _ = outer(Runner(), Runner(), Runner(), last=Runner(), word=Runner())
    for name, paths in found.items():
        assert any(path.endswith(f": {name}") for path in paths), (name, paths)


def test_the_variable_of_a_comprehension_outside_a_function() -> None:
    """Since Python 3.12 the comprehension runs in the frame around it, whose names are in a dict."""
    module = types.ModuleType("shop")
    code = """
import lowtide
class Runner: pass
of_module = [lowtide.why(one).held[0] for one in [Runner()]]
class Table:
    row = Runner()
    of_class = [lowtide.why(one).held[0] for one in [Runner()]]
    around = [lowtide.why(one).held[0] for one in [row]]
"""
    exec(compile(code, "shop.py", "exec"), vars(module))
    for held in [module.of_module[0], module.Table.of_class[0], module.Table.around[0]]:
        assert any(path.endswith(": one") for path in held.paths), held.paths
        assert "native" not in " ".join(held.paths), held.paths
    assert any(path.endswith("row") for path in held.paths), held.paths


@pytest.mark.skipif(not SEES_CALLS, reason="calls in progress have references, too")
def test_references_that_nobody_sees_are_counted_where_arguments_are_borrowed() -> None:
    """From Python 3.14 on an argument may use the reference of the caller's variable."""

    def ask(value: Any) -> Any:
        return lowtide.why(value).held[0]

    def pass_on(value: Any) -> Any:
        return ask(value)

    one = Runner()
    count = ctypes.pythonapi
    assert pass_on(one).invisible == 0
    count.Py_IncRef(ctypes.py_object(one))
    try:
        assert pass_on(one).invisible == 1
    finally:
        count.Py_DecRef(ctypes.py_object(one))


def test_no_question_compares_or_removes_a_callback_of_the_end() -> None:
    """`atexit.unregister` would compare them, and remove one that says that it is equal."""

    class Callback:
        compared = 0

        def __init__(self, held: Any) -> None:
            self.held = held

        def __call__(self) -> None: ...

        def __eq__(self, other: object) -> bool:
            Callback.compared += 1
            return True

        __hash__ = None  # type: ignore[assignment]

    # Nothing else has as many bytes, or more: an answer has the largest few. Nobody touches them.
    size = (1 << 30) + 512
    lowtide.why(callback := Callback(torch.empty(size // 4)))
    atexit.register(callback)
    registered = atexit._ncallbacks()
    try:
        del callback
        answer = lowtide.why(device="cpu")
        (held,) = [held for held in answer.held if held.bytes == size]
        assert Callback.compared == 0
        assert atexit._ncallbacks() == registered
        assert "exit callback Callback" in held.path, answer
        # No statement can name it: whatever it is compared with is equal, and others would go.
        assert held.cuts[0].code is None, answer
        assert "atexit.unregister" in str(held.cuts[0]), answer
        with pytest.raises(TypeError, match="compares itself"):
            held.cuts[0].apply()
        assert Callback.compared == 0
    finally:
        atexit.unregister(None)
    assert not [held for held in lowtide.why(device="cpu").held if held.bytes == size]


def test_questions_in_many_threads_do_not_see_each_other() -> None:
    shelf["held"] = [Runner() for _ in range(4)]
    shelf["tensors"] = [torch.ones(MIB) for _ in range(4)]
    said: list[str] = []
    failed: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            for _ in range(TURNS):
                said.append(_texts(lowtide.why(shelf["held"][number])))
                said.append(_texts(lowtide.why(shelf["tensors"][number])))
                lowtide.why(device="cpu")
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(said) == 8 * TURNS
    wrong = [text for text in said if any(word in text for word in INTERNALS)]
    assert not wrong, f"{len(wrong)} of {len(said)}:\n{wrong[0]}"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_questions_from_a_signal_handler_do_not_see_the_one_they_interrupt() -> None:
    shelf["held"] = Runner()
    shelf["tensors"] = [torch.ones(256 + number, requires_grad=True) for number in range(200)]
    shelf["sums"] = [(one * one).sum() for one in shelf["tensors"]]
    said: list[str] = []
    nested: list[bool] = []
    lowtide.why(shelf)

    def handler(*_: object) -> None:
        from lowtide._why.alone import EXAMINING

        nested.append(EXAMINING.count > 0)
        said.append(_texts(lowtide.why(shelf["held"])))
        said.append(_texts(lowtide.why(shelf["tensors"][7])))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(200):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            lowtide.why(device="cpu")
            if sum(nested) >= 2 * TURNS:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert any(nested), "no question was interrupted"
    wrong = [text for text in said if any(word in text for word in INTERNALS)]
    assert not wrong, f"{len(wrong)} of {len(said)}:\n{wrong[0]}"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_see_the_questions_of_its_parent() -> None:
    code = f"""
        import os, sys, threading, torch, lowtide
        class Runner: pass
        held = Runner()
        tensors = [torch.ones(256 + number, requires_grad=True) for number in range(200)]
        done = threading.Event()
        lowtide.why(held)

        def ask():
            while not done.is_set():
                lowtide.why(device="cpu")

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range({2 * TURNS}):
            child = os.fork()
            if child == 0:
                # A signal ends a child that waits for ever.
                import signal
                signal.alarm(60)
                answers = lowtide.why(held), lowtide.why(tensors[3]), lowtide.why(tensors[100])
                for answer in answers:
                    print(answer.held[0].invisible, *answer.held[0].paths, flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        done.set()
        for thread in threads:
            thread.join()
    """
    lines = alone_with_torch(code).splitlines()
    assert len(lines) == 6 * TURNS
    seen = "0" if SEES_CALLS else "2"
    wrong = [line for line in lines if line[0] != seen or any(word in line for word in INTERNALS)]
    assert not wrong, f"{len(wrong)} of {len(lines)}: {wrong[0]}"


def test_the_answer_leaves_as_many_objects_as_before() -> None:
    lowtide.why(device="cpu")
    gc.collect()
    shelf["held"] = Runner()
    before = sys.getrefcount(shelf["held"])
    lowtide.why(shelf["held"])
    after = sys.getrefcount(shelf["held"])
    assert after == before


@pytest.mark.parametrize("call", ["lowtide.why", "lowtide.release"])
def test_the_program_ends_well_while_a_thread_is_in_a_call(call: str) -> None:
    # The thread runs Python code that native code has called, and so takes the interpreter's lock when
    # there is none any more.
    code = f"""
        import atexit, threading, time
        import lowtide
        from lowtide._why import alone, question
        # As if the time limit had passed.
        atexit.unregister(alone.EXAMINING.before_fork)
        called = threading.Event()

        def never_returns(*_):
            called.set()
            while True:
                time.sleep(0.001)

        question.autograd_edges = never_returns
        lowtide.register_cache("never empty", never_returns)
        threading.Thread(target={call}, daemon=True).start()
        assert called.wait(60)
        # This one waits for its turn.
        threading.Thread(target={call}, daemon=True).start()
        time.sleep(0.05)
    """
    assert ended_with_torch(code).status == 0


def test_a_dead_cycle_through_a_tensor_is_garbage_that_the_collector_frees() -> None:
    code = """
        import gc
        gc.disable()
        import torch, lowtide

        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.result = x * 2
                return ctx.result

        y = Double.apply(torch.ones(1 << 18, requires_grad=True))
        del y
        answer = lowtide.why(device="cpu")
        [dead] = answer.dead
        print(dead.bytes, dead.kept_bytes, answer.actions[0].action)
        exec(answer.actions[0].action)
        print(lowtide.why(device="cpu").held_bytes)
    """
    assert alone_with_torch(code).splitlines() == [f"{2 << 20} 0 import gc; gc.collect()", "0"]


def test_the_cut_of_an_annotation_runs() -> None:
    code = """
        import torch, lowtide

        # Not as in the file from which this runs: there annotations are text.
        function = "def f(a: [torch.ones(1 << 18)], b: int) -> None: ..."
        exec(compile(function, "f", "exec", dont_inherit=True))
        [cut] = lowtide.why(device="cpu").cuts[:1]
        exec(cut.code)
        print(lowtide.why(device="cpu").held_bytes)
    """
    assert alone_with_torch(code) == "0\n"
