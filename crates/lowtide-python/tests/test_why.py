"""`why` on real heaps: names, bytes, cuts, and that it leaves nothing behind.

The zoo tests the ways in which memory is kept alive; this file tests the answer itself.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import types
import unicodedata
import weakref
from typing import Any

import lowtide
import pytest
import torch
from kernel import has_accelerator
from lowtide._native import ProcessUsage
from lowtide._why.naming.found import of_others

MIB = 1 << 20
LONG = os.environ.get("LOWTIDE_LONG") == "1"


def tensor(mib: int = 4) -> torch.Tensor:
    return torch.ones(mib * MIB // 4)


class Runner:
    pass


shelf: dict[str, Any] = {}


def test_r46_two_holders_are_named_with_the_cut_that_frees() -> None:
    runner = Runner()
    runner.model = torch.nn.Linear(1024, 1024)
    shelf["cache"] = [runner.model]
    answer = lowtide.why(runner.model)
    (holder,) = answer.held
    assert holder.bytes == 4 * MIB + 4096
    assert any(path.endswith("runner.model") for path in holder.paths), holder.paths
    assert any(path.endswith("shelf['cache'][0]") for path in holder.paths), holder.paths
    cuts = {one.path.rpartition(": ")[2]: one.cut for one in holder.holders}
    assert any("shelf['cache'][0]" in path and "del" in (cut or "") for path, cut in cuts.items())
    assert answer.holders == holder.holders and all(one.count == 1 for one in answer.holders)
    gentlest = answer.cuts[0]
    assert len(gentlest.steps) == 2
    assert gentlest.freed_bytes == holder.bytes
    assert gentlest.beside_bytes == 0


def test_r46_an_applied_cut_frees_and_leaves_the_rest() -> None:
    shelf["runner"] = Runner()
    shelf["runner"].model = torch.nn.Linear(8, 8)
    shelf["runner"].name = "kept"
    gone = weakref.ref(shelf["runner"].model)
    answer = lowtide.why(gone())
    assert answer.cuts[0].can_apply
    answer.cuts[0].apply()
    assert gone() is None
    assert shelf["runner"].name == "kept"
    answer.cuts[0].apply()  # What is gone needs no cut.


def test_a_cut_has_every_reference_of_a_holder() -> None:
    shelf["runner"] = Runner()
    shelf["runner"].model = shelf["runner"].also = torch.nn.Linear(8, 8)
    shelf["list"] = [shelf["runner"].model] * 2
    gone = weakref.ref(shelf["runner"].model)
    cut = lowtide.why(gone()).cuts[0]
    assert len(cut.steps) == 4, cut
    cut.apply()
    assert gone() is None


def test_a_cut_can_be_typed_as_it_stands() -> None:
    part = Runner()
    shelf["runner"] = Runner()
    shelf["runner"].parts = [part, 1, part, 2, 3, part]
    shelf["keys"] = {0: None, part: None, 2: None}
    gone = weakref.ref(part)
    del part
    cut = lowtide.why(gone()).cuts[0]
    assert len(cut.steps) == 4, cut
    for step in cut.steps:
        exec(step.action, {__name__: sys.modules[__name__]})
    assert gone() is None
    assert (shelf["runner"].parts, shelf["keys"]) == ([1, 2, 3], {0: None, 2: None})


def test_a_cut_is_applied_though_another_way_to_it_is_shorter_now() -> None:
    """Naming looks at attributes, which up to Python 3.12 makes dicts and lengthens paths."""
    part = Runner()
    part.model = torch.nn.Linear(8, 8)
    shelf["first"] = Runner()
    shelf["first"].part = part
    shelf["second"] = [part]
    gone = weakref.ref(part.model)
    del part
    lowtide.why(gone()).cuts[0].apply()
    assert gone() is None


def test_a_cut_that_is_not_there_any_more_says_so() -> None:
    shelf["runner"] = Runner()
    shelf["runner"].model = torch.nn.Linear(8, 8)
    model = shelf["runner"].model
    answer = lowtide.why(model)
    shelf["other"] = model
    shelf["runner"].model = None
    with pytest.raises(LookupError, match="Ask again"):
        answer.cuts[-1].apply()


def test_the_answer_keeps_nothing_alive() -> None:
    shelf["model"] = torch.nn.Linear(8, 8)
    gone = weakref.ref(shelf["model"])
    answers = [lowtide.why(shelf["model"]), lowtide.why(device="cpu")]
    shelf.clear()
    assert gone() is None
    assert all(str(answer) for answer in answers)


def test_counts_are_as_before() -> None:
    gc.collect()
    held = tensor()
    shelf["a"], shelf["b"] = held, [held]
    everything = [held, shelf, shelf["b"], Runner, sys.modules, test_counts_are_as_before]
    before = [sys.getrefcount(one) for one in everything]
    for _ in range(3 if LONG else 1):
        lowtide.why(held)
        lowtide.why(device="cpu")
    assert [sys.getrefcount(one) for one in everything] == before
    assert gc.isenabled()


def test_frames_keep_no_snapshot_of_their_variables() -> None:
    """On older Pythons a look at a frame's variables leaves a dict that holds them."""
    held = tensor()
    gone = weakref.ref(held)
    lowtide.why(device="cpu")
    del held
    assert gone() is None


def test_views_share_their_storage_and_it_counts_once() -> None:
    base = tensor(8)
    shelf["views"] = [base[:1], base[1:2], base.view(-1, 2)]
    del base
    answer = lowtide.why(device="cpu")
    (holder,) = [holder for holder in answer.held if "views" in holder.path]
    assert holder.bytes == 8 * MIB
    assert holder.tensors == 1


def test_a_dead_cycle_is_the_collectors() -> None:
    gc.collect()
    gc.disable()
    try:
        runner = Runner()
        runner.self, runner.memory = runner, tensor(8)
        del runner
        answer = lowtide.why(device="cpu")
        dead = [one for one in answer.dead if one.type == "Runner"]
        assert [one.bytes for one in dead] == [8 * MIB]
        actions = [
            action for action in answer.actions if action.action == "import gc; gc.collect()"
        ]
        assert actions[0].bytes is not None
        assert actions[0].bytes >= 8 * MIB
    finally:
        gc.enable()
        gc.collect()


def test_frozen_dead_objects_are_found_and_said_to_be_frozen() -> None:
    gc.collect()
    runner = Runner()
    runner.self, runner.memory = runner, tensor(8)
    gc.freeze()
    try:
        del runner
        gc.collect()
        answer = lowtide.why(device="cpu")
        frozen = [one for one in answer.dead if one.frozen]
        assert [one.bytes for one in frozen] == [8 * MIB]
        assert answer.frozen_objects > 1000
        assert any("unfreeze" in action.action for action in answer.actions)
    finally:
        gc.unfreeze()
        gc.collect()


def test_a_frozen_holder_is_named_like_any_other() -> None:
    shelf["frozen"] = tensor(8)
    gc.freeze()
    try:
        answer = lowtide.why(shelf["frozen"])
        assert any(path.endswith("shelf['frozen']") for path in answer.held[0].paths)
        assert answer.held[0].frozen
    finally:
        gc.unfreeze()


def test_a_frame_of_another_thread() -> None:
    started, done = threading.Event(), threading.Event()

    def serve() -> None:
        batch = tensor(8)
        started.set()
        done.wait()
        del batch

    thread = threading.Thread(target=serve, name="server")
    thread.start()
    try:
        started.wait()
        answer = lowtide.why(device="cpu")
        paths = [holder.path for holder in answer.held]
        assert any("serve()" in path and path.endswith("batch") for path in paths), paths
        assert any("server" in path for path in paths), paths
    finally:
        done.set()
        thread.join()


def test_what_only_the_call_holds() -> None:
    answer = lowtide.why(tensor())
    assert answer.held[0].path == "only this call"
    assert answer.cuts == ()


def test_an_object_that_is_not_collected() -> None:
    shelf["text"] = b"x" * 1000
    answer = lowtide.why(shelf["text"])
    assert any(path.endswith("shelf['text']") for path in answer.held[0].paths)


def test_data_first_and_a_text_that_fits_a_screen() -> None:
    names = [f"batch_{number}" for number in range(40)]
    globals().update({name: tensor(1) for name in names})
    try:
        answer = lowtide.why(device="cpu")
    finally:
        for name in names:
            del globals()[name]
    data = answer.to_dict()
    assert data["held_bytes"] >= 40 * MIB
    assert data["held"][0]["holders"][0]["bytes"] >= MIB
    text = str(answer)
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 240
    assert "more object" in text


def test_hostile_objects_run_no_code() -> None:
    calls: list[str] = []

    class Hostile:
        def __getattribute__(self, name: str) -> Any:
            calls.append(name)
            raise RuntimeError(name)

        def __repr__(self) -> str:
            calls.append("repr")
            raise RuntimeError("repr")

        def __eq__(self, other: object) -> bool:
            calls.append("eq")
            raise RuntimeError("eq")

        __hash__ = object.__hash__

    hostile = Hostile()
    object.__setattr__(hostile, "memory", tensor(8))
    shelf["hostile"] = {hostile: [hostile]}
    held = [holder for holder in lowtide.why(device="cpu").held if "memory" in holder.path]
    assert [holder.bytes for holder in held] == [8 * MIB]
    assert calls == []
    object.__setattr__(hostile, "memory", None)


def test_an_autograd_graph_is_named_and_hooks_do_not_run() -> None:
    unpacked: list[object] = []

    def unpack(saved: object) -> object:
        unpacked.append(saved)
        return saved

    weight = torch.ones(MIB, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
        hooked = (weight * weight).exp().sum()
    shelf["losses"] = [(weight * weight).exp().sum(), hooked]
    del hooked
    answer = lowtide.why(device="cpu")
    assert any("losses" in path for holder in answer.held for path in holder.paths)
    assert unpacked == []


def test_wrong_devices_are_refused_with_what_to_do() -> None:
    with pytest.raises((ValueError, RuntimeError), match="toaster"):
        lowtide.why(device="toaster")


@pytest.mark.skipif(has_accelerator(), reason="there is an accelerator here")
@pytest.mark.parametrize("device", ["cuda", "cuda:9", 3, torch.device("cuda", 1)])
def test_r2_a_device_that_is_not_there_holds_nothing_and_says_so(device: object) -> None:
    shelf["held"] = tensor()
    for answer in (lowtide.why(device=device), lowtide.why(shelf["held"], device=device)):
        assert sum(holder.bytes for holder in answer.held) == 0, answer
        (note,) = answer.notes
        assert note.startswith(f"torch has no {answer.device} here"), note
        assert "cpu" not in str(answer.device)


def test_many_threads_may_ask_at_once() -> None:
    shelf["held"] = tensor()
    answers: list[Any] = []

    turns = 2 if LONG else 1

    def ask() -> None:
        for _ in range(turns):
            answers.append(lowtide.why(shelf["held"]))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4 * turns
    for answer in answers:
        assert any(path.endswith("shelf['held']") for path in answer.held[0].paths)


def test_names_that_others_chose_do_nothing_to_the_terminal() -> None:
    kind: Any = type("Ev\x1b[31mil\u202e", (), {"__module__": "two\nlines"})
    module: Any = types.ModuleType("host\u202eile")
    thing = kind()
    module.holder = kind()
    setattr(module.holder, "at\x1b]0;t\x07tr", thing)
    setattr(module, "na\x9bme", {"ke\x1by\u2066": thing, ("x\n", 3): [thing]})
    sys.modules[module.__name__] = module
    try:
        for held in (thing, module.holder):
            answer = lowtide.why(held)
            (one,) = answer.held
            assert r"two\nlines.Ev\u{1b}[31mil\u{202e}" in str(answer)
            actions = [step.action for cut in answer.cuts for step in cut.steps]
            for text in (str(answer), one.path, one.type, *one.paths, *actions):
                kinds = {unicodedata.category(c) for c in text.replace("\n", "")}
                assert not kinds & {"Cc", "Cf", "Zl", "Zp"}, ascii(text)
            assert all("\n" not in path for path in one.paths), one.paths
    finally:
        del sys.modules[module.__name__]


class Session:
    """An object of a library."""

    def __init__(self, held: Any) -> None:
        self.cache = {"kv": held}


def _on_event(held: Any) -> Any:
    def on_event() -> Any:
        return held

    return on_event


NATIVE: dict[str, tuple[Any, str, str]] = {
    "tensor": (lambda held: held, "Tensor", "drop"),
    "object": (Session, "Session.cache['kv']", "drop"),
    "function": (_on_event, "on_event() (test_why.py line", "unregister on_event()"),
    "arguments": (lambda held: (1, held), "tuple[1]", "drop"),
    "array": (lambda held: held.numpy(), "Tensor", "drop"),
}


@pytest.mark.parametrize("kind", NATIVE)
def test_a_native_answer_says_who_how_much_and_what_to_do_in_three_lines(kind: str) -> None:
    """And nothing that was not seen: it is no hook, and no function of a thread."""
    make, who, what = NATIVE[kind]
    size = 3 * MIB + 512  # Nothing else has as many bytes.
    leak = make(torch.ones(size // 4))
    address = id(leak)
    held = [[leak] for _ in range(1000)]  # In memory all over.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(leak))
    try:
        del leak, held
        answer = lowtide.why(device="cpu")
        (found,) = [held for held in answer.held if held.bytes == size]
        lines = found.lines()[:2]  # The answer's header is the first.
        assert "3.0 MiB" in lines[0] and f"native code's {who}" in lines[0].replace(
            "function ", ""
        ), answer
        assert "by hand" in lines[1] and what in lines[1], answer
        assert "3.0 MiB" in lines[1] or "not visible" in lines[1], answer
        assert "hook" not in "".join(lines) and "thread" not in "".join(lines), answer
    finally:
        ctypes.pythonapi.Py_DecRef(ctypes.cast(address, ctypes.py_object))


def test_of_many_other_processes_the_largest_are_named() -> None:
    others = [ProcessUsage(name=f"pid {pid}", bytes=pid * MIB) for pid in range(1, 6)]
    assert [action.line().strip() for action in of_others(others)] == [
        "by hand  end pid 5, another process, which uses 5.0 MiB of the device → frees 5.0 MiB",
        "by hand  end pid 4, another process, which uses 4.0 MiB of the device → frees 4.0 MiB",
        "by hand  see `lowtide ps` for 3 more, which use 6.0 MiB of the device",
    ]
