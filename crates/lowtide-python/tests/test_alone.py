"""One examination at a time, whatever happens in the middle of one."""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType
from typing import Any

import lowtide
from kernel import until
from lowtide._why import alone, why
from lowtide._why.alone import EXAMINING


def can_another_thread_examine() -> bool:
    """Whether another thread may begin at once, and would be alone."""
    found: list[bool] = []

    def look() -> None:
        began = time.monotonic()
        with EXAMINING:
            found.append(alone.is_alone() and time.monotonic() - began < alone.WAIT_S / 2)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found == [True]


def interrupt_at(number: int, files: set[str]) -> Any:
    """A function that raises at the so-manieth place of these files where Ctrl-C may: the beginning of
    a function, and the end of a native one."""
    left = number

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename in files:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    return profile


def test_an_interrupt_anywhere_leaves_the_next_examination_alone() -> None:
    held = object()
    lowtide.why(held)
    files = {why.__file__, alone.__file__}
    number, is_interrupted = 0, True
    while is_interrupted:
        number += 1
        sys.setprofile(interrupt_at(number, files))
        try:
            lowtide.why(held)
            is_interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        assert can_another_thread_examine(), f"an interrupt at place {number} leaves it locked"
    assert number > 5


def others_before_us(turns: list[int]) -> int:
    before = len(turns)
    with EXAMINING:
        return len(turns) - before


def test_who_waits_has_the_next_turn() -> None:
    """Threads that ask without a pause do not keep a third waiting."""
    ended = threading.Event()
    turns: list[int] = []

    def ask() -> None:
        while not ended.is_set():
            with EXAMINING:
                turns.append(0)
                time.sleep(0.02)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(turns) > 2)
        waited = [others_before_us(turns) for _ in range(10)]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    # A busy machine may stop this thread for a while before it waits. Not each time.
    assert min(waited) <= 3, f"{waited} others went first"
