"""A holder that was frozen.

The same `gc.freeze()`, and a registry that is alive. `gc.get_referrers` and all tools that are
built on it see nothing of what is frozen: for them nobody holds the tensor.
"""

import gc
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"registry\.adapters\['base'\]",),
    cut=r"registry\.adapters",
    cure="del registry.adapters['base']",
    holder="registry",
)


class Registry:
    def __init__(self) -> None:
        self.adapters: dict[str, Any] = {}


if __name__ == "__main__":
    registry = Registry()
    registry.adapters["base"] = big()
    gc.freeze()
    examine(CASE)
