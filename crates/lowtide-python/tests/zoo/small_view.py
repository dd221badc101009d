"""A view that keeps a large storage.

The first row of the hidden states is all that is kept: a few kilobytes, it seems. It is a view, and
the storage behind it is the whole tensor.
"""

from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"features\[0\]", r"view"),
    cut=r"features",
    cure="features[0] = features[0].clone()",
    holder="features",
)


def first_row() -> Any:
    hidden = big().view(-1, 1024)
    return hidden[0]


if __name__ == "__main__":
    features = [first_row()]
    examine(CASE)
