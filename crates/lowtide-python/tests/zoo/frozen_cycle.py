"""A cycle that was frozen.

Servers call `gc.freeze()` after they have loaded, so that the collector need not look at what stays
anyway. What is swapped out later (a model that knows its trainer, which knows its model) is dead,
but frozen: no collection ever looks at it.
"""

import gc
from typing import Any

from zoo.case import PINNED, Case, big, examine

CASE = Case(
    names=(r"(?i)froz|freeze",),
    cut=r"unfreeze",
    verdict=PINNED,
    because="a frozen set cannot be put back as it was, so it is thawed only on request",
    then="lowtide.release(unfreeze=True)",
    cure="gc.unfreeze(); gc.collect()",
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
    gc.freeze()
    del model
    examine(CASE)
