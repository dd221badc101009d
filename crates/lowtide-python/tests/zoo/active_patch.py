"""A patch of a test that was never stopped.

`mock.patch(...).start()` without `stop`: the mock has the weights as its result.
"""

import json
from typing import Any
from unittest import mock

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"json|_active_patches",),
    cut=r"_active_patches|json",
    cure="mock.patch.stopall()",
    holder="json.loads",
)


def start(weights: Any) -> None:
    mock.patch("json.loads", side_effect=lambda text: weights).start()


if __name__ == "__main__":
    start(big())
    assert json.loads("") is not None
    examine(CASE)
