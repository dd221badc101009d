"""A finder of imports.

A package for plug-ins puts a finder into `sys.meta_path` and never takes it out.
"""

import sys
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"meta_path",),
    cut=r"meta_path",
    cure="sys.meta_path.pop()",
    holder="sys.meta_path[-1]",
)


class Finder:
    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def find_spec(self, *_: Any) -> None:
        return None


if __name__ == "__main__":
    sys.meta_path.append(Finder(big()))  # type: ignore[arg-type]
    examine(CASE)
