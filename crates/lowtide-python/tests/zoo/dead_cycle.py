"""A cycle that is dead.

A model that knows its trainer, which knows its model. Both are garbage, and old: only a full
collection looks there, and the collector counts Python objects, not gigabytes. It is in no hurry.
"""

import gc
from typing import Any

from zoo.case import Case, big, examine

CASE = Case(
    names=(r"(?i)collect|garbage|dead",),
    cut=r"gc\.collect\(\)|release\(\)|collector",
    cure="gc.collect()",
    dies_by_gc=True,
)


class Model:
    def __init__(self, weights: Any) -> None:
        self.weights = weights
        self.trainer = Trainer(self)


class Trainer:
    def __init__(self, model: Model) -> None:
        self.model = model


if __name__ == "__main__":
    model = Model(big())
    gc.collect()  # it has lived for a while: now it is in the oldest generation
    del model
    examine(CASE)
