"""A callback for the end of the program.

`atexit.register(save, model)` keeps the model until the program ends. The list of callbacks belongs
to the interpreter: no Python object refers to it, so no chain of references leads there.
"""

import atexit
from typing import Any

from zoo.case import PINNED, Case, big, examine

CASE = Case(
    names=(r"arguments of exit callback save\(\)",),
    cut=r"atexit\.unregister",
    verdict=PINNED,
    because="the interpreter calls it at the end, and it needs the model",
    then="cut",
    cure="atexit.unregister(save)",
    holder="atexit",
)


class Model:
    def __init__(self, weights: Any) -> None:
        self.weights = weights


def save(model: Model) -> None:
    print("saved", tuple(model.weights.shape))


if __name__ == "__main__":
    model = Model(big())
    atexit.register(save, model)
    del model
    examine(CASE)
