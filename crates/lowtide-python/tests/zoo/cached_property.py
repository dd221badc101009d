"""A cached property.

The property computes a table once and keeps it in the instance. Setting it to None would break the
next reader; deleting it lets the next reader compute it again.
"""

import functools
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"model\.rotary",),
    cut=r"del .*rotary",
    cure="del model.rotary",
    after="model.rotary is not None",
    holder="model",
)


class Model:
    @functools.cached_property
    def rotary(self) -> Any:
        return big()


if __name__ == "__main__":
    model = Model()
    model.rotary.mul_(2)
    examine(CASE)
