"""The walk in an interpreter with torch: tensors that come and go meanwhile, and what is left afterwards.

The rest of its tests is in `test_walk.py`.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import lowtide
import pytest
import torch
from alone import alone_with_torch
from lowtide import _native
from lowtide._why.memory.autograd import KeptTensors
from ways import Quiet

MIB = 1 << 20
LONG = os.environ.get("LOWTIDE_LONG") == "1"

shelf: dict[str, Any] = {}


def test_a_class_that_ends_meanwhile_and_another_in_its_place() -> None:
    """Between the first look and the walk Python runs; what was known of types may be wrong then."""
    asked: set[str] = set()

    def probe(objects: list[object]) -> list[None]:
        asked.update(type(one).__name__ for one in objects)
        if "gone" in shelf:
            at = id(type(shelf.pop("gone")))
            gc.collect()
            tried = []
            while len(tried) < 200 and (not tried or id(tried[-1]) != at):
                tried.append(type("Made", (torch.Tensor,), {}))
            if id(tried[-1]) == at:
                shelf["made"] = tried[-1]()
        return [None] * len(objects)

    for _ in range(20):
        shelf["gone"] = type("Gone", (), {})()
        question = Quiet([shelf])
        question.probe = probe
        asked.clear()
        _native.examine(question)
        if "made" in shelf:
            break
    else:
        pytest.skip("no class came to lie where another had been")
    assert "Made" in asked, "a tensor was taken for what had been there before"


def test_tensors_that_are_made_all_the_time_do_not_keep_it_from_answering() -> None:
    shelf["made"] = []
    question = Quiet([shelf])

    def probe(objects: list[object]) -> list[None]:
        assert len(shelf["made"]) < 50, "it would never end"
        shelf["made"].append(torch.ones(1))
        return [None] * len(objects)

    question.probe = probe
    assert _native.examine(question).held[0].reached


def test_only_structures_with_objects_are_a_reason_for_a_second_walk() -> None:
    """Python is asked where they have the objects, and the walk is repeated."""
    said = alone_with_torch(
        """
        import gc, torch, numpy, lowtide
        from lowtide import _native
        from lowtide._why.question import Question

        walks, layouts = [], []

        def ask():
            question = Question([kept], most=1)
            real, layout = question.interpreter, question.layout

            class Counting(real):
                @staticmethod
                def current_exceptions():
                    walks.append(1)
                    return real.current_exceptions()

            question.interpreter = Counting
            question.layout = lambda dtype: layouts.append(dtype.names) or layout(dtype)
            walks.clear(), layouts.clear()
            assert _native.examine(question).held[0].reached
            print(len(walks), layouts)

        kept = torch.zeros(4)
        ask()
        plain = [numpy.zeros(3, [("x", code), ("y", "b", 3)]) for code in ("b", "h", "d", "S5", "V2")]
        ask()
        array = numpy.zeros(1, [("model", "O")])
        ask()
        inside = numpy.zeros(1, [("x", "b"), ("pair", [("y", "b"), ("model", "O", 2)])])
        array = inside
        ask()
        """
    )
    assert said.splitlines() == ["1 []", "1 []", "2 [('model',)]", "2 [('x', 'pair')]"]


def test_a_tuple_that_is_being_made_is_shown_to_nobody() -> None:
    """Its empty places would end whoever reads them, so it runs by itself."""
    code = """
        import threading, lowtide, torch
        held, begun, done = torch.ones(4), threading.Event(), threading.Event()

        def parts():
            yield held
            begun.set()
            done.wait()

        maker = threading.Thread(target=lambda: tuple(parts()))
        maker.start()
        begun.wait()
        answer = lowtide.why(held)
        print([path for path in answer.held[0].paths if "tuple" in path], len(str(answer)) > 0)
        done.set()
        maker.join()
    """
    assert alone_with_torch(code).strip() == "[] True"


def test_the_collector_is_as_it_was_when_the_programs_code_runs_again() -> None:
    """What only the walk still holds ends with it, and its finaliser may look."""
    seen: list[bool] = []

    class Last:
        def __del__(self) -> None:
            seen.append(gc.isenabled())

    question = Quiet([shelf])
    calls: list[int] = []

    def autograd(tensors: list[object]) -> list[KeptTensors]:
        calls.append(len(tensors))
        # The answer is kept by nobody but the walk.
        return [KeptTensors(0, [Last()])] if len(calls) == 1 else []

    shelf["tensor"] = torch.ones(1)
    question.autograd = autograd
    for enabled in (True, False):
        seen.clear()
        calls.clear()
        (gc.enable if enabled else gc.disable)()
        try:
            _native.examine(question)
            assert seen == [enabled]
            assert gc.isenabled() is enabled
        finally:
            gc.enable()


def test_nothing_is_left_of_many_questions() -> None:
    shelf["model"] = torch.nn.Linear(8, 8)
    grown: list[int] = []
    size = 0
    for _ in range(4 if LONG else 3):
        objects = len(gc.get_objects())
        for _ in range(5 if LONG else 1):
            lowtide.why(shelf["model"])
            lowtide.why(device="cpu")
        gc.collect()
        grown.append(len(gc.get_objects()) - objects)
        size = size or resident()
    # Caches of the interpreter's fill now and then; nothing is made for each question.
    assert min(grown) < 5, grown
    assert resident() - size < 8 * MIB


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096
