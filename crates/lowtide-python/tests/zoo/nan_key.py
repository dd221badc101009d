"""A dict with NaN as a key.

Activations are kept by their loss, and one loss was NaN. No expression that a person types is equal to
that key.
"""

from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"by_loss",),
    cut=r"by_loss",
    cure="by_loss.clear()",
    holder="by_loss",
)


by_loss: dict[float, Any] = {}


if __name__ == "__main__":
    by_loss[float("nan")] = big()
    examine(CASE)
