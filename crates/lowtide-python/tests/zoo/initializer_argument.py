"""An argument of a pool's initializer.

`ThreadPoolExecutor(initializer=load, initargs=(weights,))`: later workers would need it.
"""

import concurrent.futures
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"executor\.(_initargs|_create_worker_context)",),
    cut=r"executor\.__dict__\.update|prepare_context\(None, \(\)\)",
    cure="executor.__dict__.update(executor.__class__(1).__dict__)",
    holder="executor",
    after="executor.submit(int, 3).result() == 3",
)


def load(weights: Any) -> None:
    weights.zero_()


if __name__ == "__main__":
    executor = concurrent.futures.ThreadPoolExecutor(1, initializer=load, initargs=(big(),))
    examine(CASE)
