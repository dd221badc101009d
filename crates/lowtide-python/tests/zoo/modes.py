"""The visitors: what is done to an animal, one function each.

`cure` proves the plant: it stays when the collector runs, and the hand-typed cure, which undoes
nothing but the claimed holder, frees it. `lowtide` holds lowtide to the animal's expectations, and
`cut` executes the statement that the answer prints. The
others are what people reach for today; they are measured, not tested. When is an animal *named*?

- by `lowtide`: every regex of `names` is found in the text of the answer;
- by `objgraph`: given no more than a person has (the largest tensors it can see, four at most), a
  chain from a module passes the holder, or a frame, generator or coroutine of the holder's code;
- by torch's snapshot: every regex of `names` is found in the stack that it shows for a block of
  that size. (It shows where memory was made, not who holds it.)
- by `gc.collect()` and `empty_cache()`: never; they name nothing.
"""

from __future__ import annotations

import gc
import importlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from zoo.case import DEVICE, MIB, PINNED, Visit

NATIVE_S = 5.0
"""For so long, a thread of native code may keep memory that everybody else has let go."""


@contextmanager
def _timed(visit: Visit, name: str = "seconds") -> Iterator[None]:
    began = time.perf_counter()
    yield
    visit.found[name] = round(time.perf_counter() - began, 4)


def _empty_cache() -> None:
    if DEVICE != "cpu":
        torch.cuda.empty_cache()


def by_cure(visit: Visit) -> None:
    """The plant itself: it stays until the cure, and goes with it."""
    animal = visit.animal
    if not animal.dies_by_gc:
        gc.collect()
        stays = visit.is_alive() if animal.storages else bool(visit.what_stays())
        visit.expect(stays, "the collector alone frees it")
    cure(visit)


def cure(visit: Visit) -> None:
    """The cure frees it."""
    visit.type_cure()
    end = time.monotonic() + NATIVE_S
    while True:
        gc.collect()
        _empty_cache()
        left = visit.what_stays()
        if not left or time.monotonic() > end:
            break
        time.sleep(0.05)
    visit.expect(not left, f"the cure does not free it: {left}")
    visit.found["freed"] = not left


def by_gc(visit: Visit) -> None:
    """`gc.collect()` and `empty_cache()`."""
    with _timed(visit):
        gc.collect()
        _empty_cache()
    visit.found |= {"named": False, "freed": not visit.what_stays()}


def by_objgraph(visit: Visit) -> None:
    """objgraph: chains of references from a module to the largest tensors."""
    objgraph: Any = importlib.import_module("objgraph")
    holder = eval(visit.animal.holder, visit.scope) if visit.animal.holder else None
    with _timed(visit):
        found = [*objgraph.by_type("Tensor"), *objgraph.by_type("Parameter")]
        seen = [each for each in found if isinstance(each, torch.Tensor)]
        most = max((tensor.untyped_storage().nbytes() for tensor in seen), default=0)
        largest = [tensor for tensor in seen if tensor.untyped_storage().nbytes() == most]
        ignored = [id(ours) for ours in (found, seen, largest)]
        find, is_root = objgraph.find_backref_chain, objgraph.is_proper_module
        chains = [find(tensor, is_root, extra_ignore=ignored) for tensor in largest[:4]]
    is_it = most * 8 >= visit.animal.mib * MIB
    texts = [" -> ".join(type(link).__name__ for link in chain) for chain in chains]
    text = "\n".join(texts) if is_it else "(sees no such tensor)"
    is_named = is_it and any(_is_by(link, holder) for chain in chains for link in chain[:-1])
    visit.found |= {"named": is_named, "freed": None, "text": text}
    print(text)


def _is_by(link: object, holder: object) -> bool:
    """Whether a link of a chain is the holder, or runs the holder's code."""
    if holder is None:
        return False
    if isinstance(link, FrameType):
        return link.f_code is holder
    codes = [getattr(link, name, None) for name in ("gi_code", "cr_code", "ag_code")]
    return link is holder or any(code is holder for code in codes if code is not None)


def by_snapshot(visit: Visit) -> None:
    """torch's memory snapshot: the stacks of the blocks that are large enough."""
    if DEVICE == "cpu":
        visit.found |= {"named": None, "freed": None, "text": "needs a GPU"}
        return
    with _timed(visit):
        snapshot = torch.cuda.memory._snapshot()
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    large = [block for block in blocks if block["size"] * 8 >= visit.animal.mib * MIB]
    frames = [frame for block in large for frame in block.get("frames", [])]
    lines = [f"{frame['name']} ({frame['filename']}:{frame['line']})" for frame in frames]
    text = "\n".join(lines)
    is_named = bool(lines) and all(re.search(name, text) for name in visit.animal.names)
    visit.found |= {"named": is_named, "freed": None, "text": text}
    print(text)


def by_why(visit: Visit) -> None:
    """lowtide's answer alone: the holder is named, and the first cut frees where it should."""
    lowtide: Any = importlib.import_module("lowtide")
    answer = _ask(visit, lowtide)
    if visit.animal.then == "cut" and visit.animal.release == "lowtide.release()":
        _free_what_stays(visit, lowtide, answer)
    visit.found |= {"freed": not visit.what_stays(), "seconds": visit.found["why_s"]}


def by_cut(visit: Visit) -> None:
    """The answer's first statement, executed as it stands; until nothing stays, or nothing is held."""
    lowtide: Any = importlib.import_module("lowtide")
    execute_cuts(visit, lowtide, ask(visit, lowtide))


def ask(visit: Visit, lowtide: Any) -> Any:
    """Asks about the device, and prints the answer."""
    answer = lowtide.why(device=visit.animal.asked or DEVICE)
    print(answer)
    return answer


def execute_cuts(visit: Visit, lowtide: Any, answer: Any) -> None:
    """Executes the statement of this answer, and of others as long as something stays."""
    for turn in range(_MOST_CUTS):
        if turn > 0:
            answer = ask(visit, lowtide)
        held = _largest(visit, answer)
        if visit.animal.by_hand and not _statements(held):
            # What a person has to do is said to be that, and is not mixed with code.
            is_said = held is None or any("by hand" in line for line in held.lines())
            visit.expect(is_said, f"the answer does not say `by hand`: {visit.animal.by_hand}")
            return
        for statement in _statements(held):
            print("executed:", statement)
            exec(statement, visit.scope)
        if held is None or not visit.what_stays():
            break
    _empty_cache()
    left = visit.what_stays()
    visit.expect(not left, f"the statements do not free it: {left}")
    visit.found["freed"] = not left


_MOST_CUTS = 4


def _largest(visit: Visit, answer: Any) -> Any:
    """What holds most of the plant; or, if nothing does, the statements for the rest are executed."""
    held = [one for one in answer.held if visit.is_about(one.bytes)]
    if held:
        return held[0]
    for action in answer.actions:
        if not action.by_hand:
            print("executed:", action.action)
            exec(action.action, visit.scope)
    return None


def _statements(held: Any) -> list[str]:
    cuts = [] if held is None else held.cuts[:1]
    return [cut.code for cut in cuts if cut.code is not None]


def _ask(visit: Visit, lowtide: Any) -> Any:
    with _timed(visit, "why_s"):
        answer = ask(visit, lowtide)
    is_named(visit, str(answer))
    return answer


def is_named(visit: Visit, text: str) -> None:
    """Whether a text says what holds it, and what to do."""
    missing = [name for name in visit.animal.names if not re.search(name, text)]
    visit.found |= {"named": not missing, "text": text}
    visit.expect(not missing, f"the answer does not say {missing}")
    visit.expect(bool(re.search(visit.animal.cut, text)), f"does not advise {visit.animal.cut!r}")


def by_lowtide(visit: Visit) -> None:
    """lowtide: it names the holder, and its release frees, or rightly says that it does not."""
    lowtide: Any = importlib.import_module("lowtide")
    # The answer stays in a variable, as it does at a prompt: it must hold nothing itself.
    answer = _ask(visit, lowtide)
    if visit.animal.verdict == PINNED:
        let_garbage_go(lowtide)
    with _timed(visit, "release_s"):
        receipt = eval(visit.animal.release, visit.scope, {"lowtide": lowtide})
    verdict, told = str(receipt.verdict), str(receipt)
    del receipt
    print(told)
    visit.found |= {"verdict": verdict, "receipt": told}
    judge(visit, verdict, told)
    visit.found["seconds"] = visit.found["why_s"] + visit.found["release_s"]
    after_release(visit, lowtide, answer)


def let_garbage_go(lowtide: Any) -> None:
    """Frees what nobody has, so that nothing but the animal is left to come back. A fork begins without
    garbage."""
    gc.collect(1 if DEVICE == "cpu" else 2)
    _empty_cache()
    lowtide._native.malloc_trim()


def after_release(visit: Visit, lowtide: Any, answer: Any) -> None:
    """What the release has left is freed, and the program goes on."""
    visit.found["by_hand"] = bool(visit.what_stays()) and visit.animal.then == "cure"
    if visit.what_stays():
        _free_what_stays(visit, lowtide, answer)
    left = visit.what_stays()
    visit.found["freed"] = not left
    visit.expect(not left, f"not freed: {left}")
    if visit.animal.after:
        is_so = bool(eval(visit.animal.after, visit.scope))
        visit.expect(is_so, f"no longer so: {visit.animal.after}")


def judge(visit: Visit, verdict: str, told: str) -> None:
    """The receipt against what was expected of it, and against the memory."""
    animal = visit.animal
    right = re.fullmatch(animal.verdict, verdict)
    visit.expect(right is not None, f"{animal.release} says {verdict}, not {animal.verdict}")
    frees = animal.frees if animal.frees is not None else animal.verdict == "released"
    left = visit.what_stays()
    if frees:
        visit.expect(not left, f"{animal.release} does not free it: {left}")
    else:
        visit.expect(bool(left), f"{animal.release} frees what it should not: {animal.because}")
    if verdict == "pinned":
        named = any(re.search(name, told) for name in animal.says or animal.names)
        visit.expect(named, "the receipt says pinned and does not name the holder")
    silent = [says for says in animal.says if not re.search(says, told)]
    visit.expect(not silent, f"the receipt does not say {silent}")


def _free_what_stays(visit: Visit, lowtide: Any, answer: Any) -> None:
    """What follows a verdict that is rightly not `released`."""
    then = visit.animal.then
    if then == "cut":
        try:
            _apply(visit, answer)
        except LookupError as changed:
            # The release has freed some of it.
            print(changed)
            answer = lowtide.why(device=visit.animal.asked or DEVICE)
            _apply(visit, answer)
        _collect(visit)
        _empty_cache()
        left = visit.what_stays()
        visit.expect(not left, f"the cut does not free it, with the answer still there: {left}")
    elif then == "cure":
        visit.type_cure()
        _collect(visit)
        _empty_cache()
    elif then:
        print(eval(then, visit.scope, {"lowtide": lowtide}))


def _collect(visit: Visit) -> None:
    """Collects, unless it is known that nothing is left: a collection goes through all of torch."""
    if visit.is_alive() or not visit.animal.storages:
        gc.collect()


def _apply(visit: Visit, answer: Any) -> None:
    held = [one for one in answer.held if visit.is_alone() or visit.is_about(one.bytes)]
    cuts = held[0].cuts if held else ()
    if visit.expect(bool(cuts), "the answer has no cut"):
        print("cut:", cuts[0])
        cuts[0].apply()


MODES: dict[str, Callable[[Visit], None]] = {
    "cure": by_cure,
    "gc": by_gc,
    "objgraph": by_objgraph,
    "snapshot": by_snapshot,
    "why": by_why,
    "cut": by_cut,
    "lowtide": by_lowtide,
}
