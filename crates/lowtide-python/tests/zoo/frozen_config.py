"""A frozen dataclass.

The configuration of an engine carries a tensor, and cannot be assigned to.
"""

import dataclasses
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"config\.scales",),
    cut=r"config",
    cure="object.__setattr__(config, 'scales', None)",
    holder="config",
)


@dataclasses.dataclass(frozen=True)
class Config:
    name: str
    scales: Any


if __name__ == "__main__":
    config = Config("base", big())
    examine(CASE)
