"""An argument of a pool's initializer.

`ThreadPoolExecutor(initializer=load, initargs=(weights,))`: later workers would need it.
"""

import concurrent.futures
from typing import Any

from zoo.keeper import OWN, PINNED, Animal, big, visit

ANIMAL = Animal(
    names=(r"executor\._initargs",),
    cut=r"executor\._initargs",
    verdict=PINNED,
    because=OWN,
    then="cut",
    cure="executor.shutdown(); del executor",
    holder="executor",
)


def load(weights: Any) -> None:
    weights.zero_()


if __name__ == "__main__":
    executor = concurrent.futures.ThreadPoolExecutor(1, initializer=load, initargs=(big(),))
    visit(ANIMAL)
