"""A callback of the collector.

`gc.callbacks.append(log)` measures collections, and its closure has a batch.
"""

import gc
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"gc\.callbacks",),
    cut=r"gc.*callbacks",
    cure="gc.callbacks.pop()",
    holder="gc.callbacks",
)


def measure(buffer: Any) -> None:
    gc.callbacks.append(lambda phase, info: buffer.shape)


if __name__ == "__main__":
    measure(big())
    examine(CASE)
