"""The walk held against a naive oracle on random heaps, and asked while other threads are busy.

Seeds are printed: LOWTIDE_SEED=… runs one of them again, LOWTIDE_FUZZ_S=… runs for longer.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from alone import ended
from random_heaps import Plain, Target, remembered, suspended

SEED = int(os.environ.get("LOWTIDE_SEED", "0"))
LONG = os.environ.get("LOWTIDE_LONG") == "1"
SECONDS = float(os.environ.get("LOWTIDE_FUZZ_S", "20" if LONG else "2"))
HEAPS = 25

shelf: dict[str, Any] = {}


SEEDS = range(SEED, SEED + (1 if "LOWTIDE_SEED" in os.environ else HEAPS))


@pytest.fixture(scope="module")
def heaps() -> tuple[dict[int, str], str]:
    """What went wrong with the heap of each seed, and all that was printed."""
    program = str(Path(__file__).parent / "random_heaps.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    how = ended([sys.executable, "-X", "faulthandler", program, *map(str, SEEDS)], env=environment)
    return dict(
        map(json.loads, how.output.splitlines())
    ), f"exit {how.status}\n{how.errors[-3000:]}"


@pytest.mark.parametrize("number", SEEDS)
def test_random_heaps(heaps: tuple[dict[int, str], str], number: int) -> None:
    print(f"LOWTIDE_SEED={number}")
    problems, told = heaps
    assert number in problems, f"it ended before this heap, or in it: {told}"
    assert not problems[number], problems[number]


def busy(stop: threading.Event, dice: random.Random) -> None:
    """Makes and drops whatever a walk may meet."""

    def fails(depth: int, held: object) -> None:
        if depth == 0:
            raise ValueError(held)
        fails(depth - 1, held)

    kept: list[Any] = []
    while not stop.is_set():
        tensor = torch.ones(dice.randrange(1, 64), requires_grad=dice.random() < 0.3)
        cycle: list[Any] = [tensor, {"view": tensor[:1]}]
        cycle.append(cycle)
        generator = suspended(tensor, cycle)
        next(generator)
        made = type("Made", (Plain,), {"__slots__": ("x",)} if dice.random() < 0.5 else {})()
        made.one = generator
        try:
            fails(dice.randrange(4), tensor)
        except ValueError as error:
            kept.append(error if dice.random() < 0.5 else made)
        with_closure = remembered((tensor * 2).sum())
        kept.append(with_closure)
        if dice.random() < 0.05:
            snapshot = locals()
            kept.append(len(snapshot))
        if len(kept) > 50:
            del kept[: dice.randrange(50)]
        if dice.random() < 0.02:
            other = threading.Thread(target=next, args=(iter([tensor]),))
            other.start()
        if dice.random() < 0.01:
            gc.collect(dice.randrange(3))


def test_asked_while_others_are_busy() -> None:
    seed = SEED or random.randrange(1 << 30)
    print(f"LOWTIDE_SEED={seed}")
    shelf["held"] = Target()
    stop = threading.Event()
    failed: list[BaseException] = []
    asked: list[int] = []

    def ask(about_target: bool) -> None:
        try:
            while not stop.is_set():
                if about_target:
                    paths = lowtide.why(shelf["held"]).held[0].paths
                    assert any(path.endswith("shelf['held']") for path in paths), paths
                else:
                    str(lowtide.why(device="cpu"))
                asked.append(1)
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    workers = [
        threading.Thread(target=busy, args=(stop, random.Random(seed + at))) for at in range(2)
    ]
    workers += [threading.Thread(target=ask, args=(about,)) for about in (True, False)]
    for worker in workers:
        worker.start()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and not failed:
        time.sleep(0.05)
    stop.set()
    for worker in workers:
        worker.join()
    shelf.clear()
    assert not failed, failed
    assert asked
