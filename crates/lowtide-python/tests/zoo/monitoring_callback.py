"""A callback of `sys.monitoring`.

A tracer registers a function for an event, and nobody unregisters it. The interpreter has it in its own
state: no module, no list and no function leads to it.
"""

import sys
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"sys\.monitoring", r"count\(\)", r"weights"),
    cut=r"lowtide\.cut\(1\)  # lets Tensor go: callback of sys\.monitoring",
    cure="sys.monitoring.register_callback(3, sys.monitoring.events.RAISE, None)",
    after="sys.monitoring.register_callback(3, sys.monitoring.events.PY_START, None) is other",
    python=(3, 12),
)


def install(weights: Any) -> None:
    def count(code: Any, offset: int, exception: BaseException) -> None:
        weights.numel()

    monitoring = vars(sys)["monitoring"]
    monitoring.use_tool_id(3, "tracer")
    monitoring.register_callback(3, monitoring.events.RAISE, count)
    monitoring.register_callback(3, monitoring.events.PY_START, other)


def other(code: Any, offset: int) -> None:
    """It stays registered."""


if __name__ == "__main__":
    install(big())
    examine(CASE)
