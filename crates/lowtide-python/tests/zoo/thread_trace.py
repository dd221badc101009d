"""A trace function of another thread.

A debugger set it in every thread, and took it out of its own only. The interpreter has it in the state of
the thread; no function gives it to another thread.
"""

import threading
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"trace function of thread 'idle'", r"weights"),
    cut=r"settrace_all_threads\(None\)",
    cure="threading.settrace_all_threads(None)",
    python=(3, 12),
)


def install(weights: Any) -> None:
    vars(threading)["settrace_all_threads"](lambda frame, event, argument: weights.numel() and None)
    threading.settrace(None)  # type: ignore[arg-type]


def idle() -> None:
    waits.set()
    ends.wait()


if __name__ == "__main__":
    import sys

    waits, ends = threading.Event(), threading.Event()
    threading.Thread(target=idle, name="idle", daemon=True).start()
    waits.wait()
    install(big())
    sys.settrace(None)
    examine(CASE)
