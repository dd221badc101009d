"""A filter of a logger.

Loggers are never freed, and neither are the filters that are added to them for each model.
"""

import logging
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"logging\.getLogger\('engine'\)\.filters",),
    cut=r"del logging\.getLogger\('engine'\)\.filters",
    cure="logging.getLogger('engine').filters.clear()",
    holder="logging.getLogger('engine')",
)


def add_filter(weights: Any) -> None:
    logging.getLogger("engine").addFilter(lambda record: weights is not None)


if __name__ == "__main__":
    add_filter(big())
    examine(CASE)
