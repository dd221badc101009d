"""A herd: several animals in one process, for which lowtide is asked once and releases once.

A question and a release go through all objects of torch. Each animal is planted while the one before it
waits in its call of `visit`, so that what is on a stack stays there. The first is `__main__`, the others
are modules with their own names. Each is judged by what the answer and the receipt say of its own plant,
and by its own storages; then each is freed, one after another, and memory in use has to fall each time. It is freed
by the statement of the answer, which alone would be a visit of its own (`cut`). What `Cut.apply` does instead is
tried with the animals that are alone, and in the long tests with all.

    python -m zoo.closure lowtide mock_calls nan_key     # the first, what is done, and the others
"""

from __future__ import annotations

import ast
import gc
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zoo import visitors
from zoo.case import PINNED, LEAK_MIB, Case, Visit, in_use

MOST = 6
"""So many holders are printed in one answer."""


def can_join(animal: Case) -> bool:
    """Whether it can share a process: its memory stays until something is done that concerns it alone."""
    is_plain = animal.release == Case._field_defaults["release"] and not animal.asked
    is_seen = animal.storages and animal.memory and animal.mib == LEAK_MIB
    return is_plain and is_seen and animal.verdict == PINNED and not animal.alone


def plant(name: str) -> None:
    """Runs an animal's program as its module, up to its call of `visit` and on."""
    module = importlib.import_module(f"zoo.{name}")
    path = Path(module.__file__ or "")
    (*_, program) = ast.parse(path.read_text(encoding="utf-8")).body
    assert isinstance(program, ast.If), f"{path.name} does not end with its program"
    exec(compile(ast.Module(program.body, []), str(path), "exec"), vars(module))


def _each(herd: list[Visit], do: Callable[[Visit], None]) -> None:
    """Does it to one after another. Memory in use is counted from here on, and each has errors of its own."""
    for visit in herd:
        print("visiting:", visit.name, flush=True)
        visit.planted = in_use()
        try:
            do(visit)
        except Exception as error:  # noqa: BLE001 (it becomes a problem of the result)
            visit.failed(error)


def by_cure(herd: list[Visit]) -> None:
    """The plants themselves: they stay until their cures, and go with them."""
    gc.collect()
    for visit in herd:
        visit.expect(visit.is_alive(), "the collector alone frees it")
    _each(herd, visitors.cure)


def by_lowtide(herd: list[Visit]) -> None:
    """lowtide names each holder, and its release rightly says of each that it does not free it. Then the first
    statement of each is executed as it stands, which is told as a visit by `cut`."""
    lowtide: Any = importlib.import_module("lowtide")
    answer = visitors.ask(herd[0], lowtide)
    printed = str(answer)
    for visit in herd:
        lines = [
            line for held in answer.held if visit.is_about(held.bytes) for line in held.lines()
        ]
        visitors.is_named(visit, _said_of(visit, [line for line in lines if line in printed]))
    visitors.let_garbage_go(lowtide)
    receipt = lowtide.release()
    verdict, told = str(receipt.verdict), str(receipt)
    print(told)
    holders = [(one.bytes, one.path, one.remedy()) for one in receipt.holders]
    del receipt
    for visit in herd:
        said = [(path, remedy) for size, path, remedy in holders if visit.is_about(size)]
        of_it = [text for pair in said for text in pair if text in told]
        visit.found |= {"verdict": verdict, "receipt": told}
        visitors.judge(visit, verdict, _said_of(visit, of_it))

    def free(visit: Visit) -> None:
        of_release, visit.problems = visit.problems, []
        try:
            visitors.execute_cuts(visit, lowtide, answer)
        except Exception as error:  # noqa: BLE001 (it becomes a problem of the result)
            visit.failed(error)
        visit.tell("cut")
        visit.problems = of_release
        visitors.after_release(visit, lowtide, answer)

    _each(herd, free)


def _said_of(visit: Visit, lines: list[str]) -> str:
    """These lines without the name of its module, which would be taken for the name of a holder."""
    return "\n".join(lines).replace(f"zoo.{visit.name}", "__main__")


TOLD = {"cure": ("cure",), "lowtide": ("lowtide", "cut")}
"""What is done to a herd, and the visits to one animal of which it tells the results."""
MODES: dict[str, Callable[[list[Visit]], None]] = {
    "cure": by_cure,
    "lowtide": by_lowtide,
}
