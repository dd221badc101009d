"""What is done to a program of the zoo, one function each.

`cure` proves the leak: it stays when the collector runs, and the hand-typed cure, which undoes
nothing but the claimed holder, frees it. `lowtide` holds lowtide to what the case expects, and
`cut` executes the statement that the answer prints. The
others are what people reach for today; they are measured, not tested. When is a holder *named*?

- by `lowtide`: every regex of `names` is found in the text of the answer;
- by `objgraph`: given no more than a person has (the largest tensors it can see, four at most), a
  chain from a module passes the holder, or a frame, generator or coroutine of the holder's code;
- by torch's snapshot: every regex of `names` is found in the stack that it shows for a block of
  that size. (It shows where memory was made, not who holds it.)
- by `gc.collect()` and `empty_cache()`: never; they name nothing.
"""

from __future__ import annotations

import ast
import gc
import importlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from zoo.case import DEVICE, MIB, PINNED, Run

NATIVE_S = 5.0
"""For so long, a thread of native code may keep memory that everybody else has let go."""


@contextmanager
def _timed(run: Run, name: str = "seconds") -> Iterator[None]:
    began = time.perf_counter()
    yield
    run.found[name] = round(time.perf_counter() - began, 4)


def _empty_cache() -> None:
    if DEVICE != "cpu":
        torch.cuda.empty_cache()


def by_cure(run: Run) -> None:
    """The leak itself: it stays until the cure, and goes with it."""
    case = run.case
    if not case.dies_by_gc:
        gc.collect()
        stays = run.is_alive() if case.storages else bool(run.what_stays())
        run.expect(stays, "the collector alone frees it")
    run.type_cure()
    end = time.monotonic() + NATIVE_S
    while True:
        gc.collect()
        _empty_cache()
        left = run.what_stays()
        if not left or time.monotonic() > end:
            break
        time.sleep(0.05)
    run.expect(not left, f"the cure does not free it: {left}")
    run.found["freed"] = not left


def by_gc(run: Run) -> None:
    """`gc.collect()` and `empty_cache()`."""
    with _timed(run):
        gc.collect()
        _empty_cache()
    run.found |= {"named": False, "freed": not run.what_stays()}


def by_objgraph(run: Run) -> None:
    """objgraph: chains of references from a module to the largest tensors."""
    objgraph: Any = importlib.import_module("objgraph")
    holder = eval(run.case.holder, run.scope) if run.case.holder else None
    with _timed(run):
        found = [*objgraph.by_type("Tensor"), *objgraph.by_type("Parameter")]
        seen = [each for each in found if isinstance(each, torch.Tensor)]
        most = max((tensor.untyped_storage().nbytes() for tensor in seen), default=0)
        largest = [tensor for tensor in seen if tensor.untyped_storage().nbytes() == most]
        ignored = [id(ours) for ours in (found, seen, largest)]
        find, is_root = objgraph.find_backref_chain, objgraph.is_proper_module
        chains = [find(tensor, is_root, extra_ignore=ignored) for tensor in largest[:4]]
    is_it = most * 8 >= run.case.mib * MIB
    texts = [" -> ".join(type(link).__name__ for link in chain) for chain in chains]
    text = "\n".join(texts) if is_it else "(sees no such tensor)"
    is_named = is_it and any(_is_by(link, holder) for chain in chains for link in chain[:-1])
    run.found |= {"named": is_named, "freed": None, "text": text}
    print(text)


def _is_by(link: object, holder: object) -> bool:
    """Whether a link of a chain is the holder, or runs the holder's code."""
    if holder is None:
        return False
    if isinstance(link, FrameType):
        return link.f_code is holder
    codes = [getattr(link, name, None) for name in ("gi_code", "cr_code", "ag_code")]
    return link is holder or any(code is holder for code in codes if code is not None)


def by_snapshot(run: Run) -> None:
    """torch's memory snapshot: the stacks of the blocks that are large enough."""
    if DEVICE == "cpu":
        run.found |= {"named": None, "freed": None, "text": "needs a GPU"}
        return
    with _timed(run):
        snapshot = torch.cuda.memory._snapshot()
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    large = [block for block in blocks if block["size"] * 8 >= run.case.mib * MIB]
    frames = [frame for block in large for frame in block.get("frames", [])]
    lines = [f"{frame['name']} ({frame['filename']}:{frame['line']})" for frame in frames]
    text = "\n".join(lines)
    is_named = bool(lines) and all(re.search(name, text) for name in run.case.names)
    run.found |= {"named": is_named, "freed": None, "text": text}
    print(text)


def by_why(run: Run) -> None:
    """lowtide's answer alone: the holder is named, and the first cut frees where it should."""
    lowtide: Any = importlib.import_module("lowtide")
    answer = _ask_for_holder(run, lowtide)
    if run.case.then == "cut" and run.case.release == "lowtide.release()":
        _free_what_stays(run, lowtide, answer)
    run.found |= {"freed": not run.what_stays(), "seconds": run.found["why_s"]}


def by_cut(run: Run) -> None:
    """The answer's first statement, executed as it stands; until nothing stays, or nothing is held."""
    lowtide: Any = importlib.import_module("lowtide")
    for _ in range(_MOST_CUTS):
        held = _largest(run, _ask(run, lowtide))
        first = held.cuts[0] if held and held.cuts else None
        statements = [first.code] if first is not None and first.code else []
        for code in statements:
            run.expect(_is_plain(code), f"nobody would write this: {code}")
        if not statements and first is not None and first.number is not None:
            run.expect(run.name in BY_NUMBER, "there is no statement")
            statements = [f"import lowtide; print(lowtide.cut({first.number}))"]
        if run.case.by_hand and not statements:
            # What a person has to do is said to be that, and is not mixed with code.
            is_said = held is None or any("by hand" in line for line in held.lines())
            run.expect(is_said, f"the answer does not say `by hand`: {run.case.by_hand}")
            return
        for statement in statements:
            print("executed:", statement)
            exec(statement, run.scope)
        if held is None or not run.what_stays():
            break
    _empty_cache()
    left = run.what_stays()
    run.expect(not left, f"the statements do not free it: {left}")
    run.found["freed"] = not left


_MOST_CUTS = 4
BY_NUMBER = {
    "asyncio_task",
    "copied_context",
    "ending_loop",
    "exception_handled",
    "gathered_tasks",
    "mock_calls",
    "monitoring_callback",
    "node_hook",
    "output_history",
    "queued_job",
    "signature_default",
    "sql_function",
    "thread_local",
    "timer_argument",
    "waiting_tasks",
}
"""The cases where no plain statement cuts it, but `lowtide.cut(1)` does."""


def _is_plain(code: str) -> bool:
    """Whether a person would write it: two statements at most, and only Python's own ways."""
    tree = ast.parse(code)
    acts = [one for one in tree.body if not isinstance(one, ast.Import)]
    acts = [one for one in acts if not ast.unparse(one).startswith("gc.")]
    odd = ("lambda", "functools.reduce", "gc.get_", "lowtide._")
    return len(acts) <= 2 and not any(word in code for word in odd)


def _ask(run: Run, lowtide: Any) -> Any:
    """Asks about the device, and prints the answer."""
    answer = lowtide.why(device=run.case.asked or DEVICE)
    print(answer)
    return answer


def _largest(run: Run, answer: Any) -> Any:
    """What holds most of the leak; or, if nothing does, the statements for the rest are executed."""
    held = [one for one in answer.held if one.bytes >= run.case.mib * MIB // 16]
    if held:
        return held[0]
    for action in answer.actions:
        if not action.by_hand:
            print("executed:", action.action)
            exec(action.action, run.scope)
    return None


def _ask_for_holder(run: Run, lowtide: Any) -> Any:
    """Asks, and looks whether the answer says what holds it, and what to do."""
    with _timed(run, "why_s"):
        answer = _ask(run, lowtide)
    text = str(answer)
    missing = [name for name in run.case.names if not re.search(name, text)]
    run.found |= {"named": not missing, "text": text}
    run.expect(not missing, f"the answer does not say {missing}")
    run.expect(bool(re.search(run.case.cut, text)), f"does not advise {run.case.cut!r}")
    return answer


def by_lowtide(run: Run) -> None:
    """lowtide: it names the holder, and its release frees, or rightly says that it does not."""
    lowtide: Any = importlib.import_module("lowtide")
    # The answer stays in a variable, as it does at a prompt: it must hold nothing itself.
    answer = _ask_for_holder(run, lowtide)
    again = lowtide.why(device=run.case.asked or DEVICE)
    is_same = run.name in ONCE or _said(again) == _said(answer)
    run.expect(is_same, f"asked twice, it says {_said(answer)}, then {_said(again)}")
    del again
    if run.case.verdict == PINNED:
        # Nothing but the leak is left to come back. A fork begins without garbage.
        gc.collect(1 if DEVICE == "cpu" else 2)
        _empty_cache()
        lowtide._native.malloc_trim()
    with _timed(run, "release_s"):
        receipt = eval(run.case.release, run.scope, {"lowtide": lowtide})
    verdict, told = str(receipt.verdict), str(receipt)
    del receipt
    print(told)
    run.found |= {"verdict": verdict, "receipt": told}
    _judge(run, verdict, told)
    run.found["seconds"] = run.found["why_s"] + run.found["release_s"]
    run.found["by_hand"] = bool(run.what_stays()) and run.case.then == "cure"
    if run.what_stays():
        _free_what_stays(run, lowtide, answer)
    left = run.what_stays()
    run.found["freed"] = not left
    run.expect(not left, f"not freed: {left}")
    if run.case.after:
        is_so = bool(eval(run.case.after, run.scope))
        run.expect(is_so, f"no longer so: {run.case.after}")


ONCE = {"gradient_graph", "node_hook"}
"""Native code drops the Python object of a tensor that nothing else has, once it was asked about."""


def _said(answer: Any) -> list[Any]:
    """What an answer says of holders and cuts."""
    return [(one.path, one.paths, [str(cut) for cut in one.cuts]) for one in answer.held]


def _judge(run: Run, verdict: str, told: str) -> None:
    """The receipt against what was expected of it, and against the memory."""
    case = run.case
    right = re.fullmatch(case.verdict, verdict)
    run.expect(right is not None, f"{case.release} says {verdict}, not {case.verdict}")
    frees = case.frees if case.frees is not None else case.verdict == "released"
    left = run.what_stays()
    if frees:
        run.expect(not left, f"{case.release} does not free it: {left}")
    else:
        run.expect(bool(left), f"{case.release} frees what it should not: {case.because}")
    if verdict == "pinned":
        named = any(re.search(name, told) for name in case.says or case.names)
        run.expect(named, "the receipt says pinned and does not name the holder")
    silent = [says for says in case.says if not re.search(says, told)]
    run.expect(not silent, f"the receipt does not say {silent}")


def _free_what_stays(run: Run, lowtide: Any, answer: Any) -> None:
    """What follows a verdict that is rightly not `released`."""
    then = run.case.then
    if then == "cut":
        try:
            _apply(run, answer)
        except LookupError as changed:
            # The release has freed some of it.
            print(changed)
            _apply(run, _ask(run, lowtide))
        _collect(run)
        left = run.what_stays()
        run.expect(not left, f"the cut does not free it, with the answer still there: {left}")
    elif then == "cure":
        run.type_cure()
        _collect(run)
    elif then:
        print(eval(then, run.scope, {"lowtide": lowtide}))


def _collect(run: Run) -> None:
    """Collects, unless it is known that nothing is left: a collection goes through all of torch."""
    if run.is_alive() or not run.case.storages:
        gc.collect()
    _empty_cache()


def _apply(run: Run, answer: Any) -> None:
    cuts = answer.held[0].cuts if answer.held else ()
    if run.expect(bool(cuts), "the answer has no cut"):
        print("cut:", cuts[0])
        cuts[0].apply()


MODES: dict[str, Callable[[Run], None]] = {
    "cure": by_cure,
    "gc": by_gc,
    "objgraph": by_objgraph,
    "snapshot": by_snapshot,
    "why": by_why,
    "cut": by_cut,
    "lowtide": by_lowtide,
}
