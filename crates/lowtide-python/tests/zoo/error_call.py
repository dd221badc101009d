"""The function that numpy calls at floating-point errors.

numpy has it in native code, and gives it to whoever asks.
"""

from typing import Any

import numpy as np

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"numpy\.geterrcall\(\)", r"weights"),
    cut=r"numpy\.seterrcall\(None\)",
    cure="np.seterrcall(None)",
    holder="np.geterrcall()",
    after="np.geterrcall() is None",
)


def report(weights: Any) -> None:
    np.seterrcall(lambda kind, flag: weights is None)


if __name__ == "__main__":
    report(big())
    examine(CASE)
