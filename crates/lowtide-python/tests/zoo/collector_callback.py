"""A callback of the collector.

`gc.callbacks.append(log)` measures collections, and its closure has a batch.
"""

import gc
from typing import Any

from zoo.case import OWN, PINNED, Case, big, examine

CASE = Case(
    names=(r"gc\.callbacks",),
    cut=r"gc.*callbacks",
    verdict=PINNED,
    because=OWN,
    then="cut",
    cure="gc.callbacks.pop()",
    holder="gc.callbacks",
)


def measure(buffer: Any) -> None:
    gc.callbacks.append(lambda phase, info: buffer.shape)


if __name__ == "__main__":
    measure(big())
    examine(CASE)
