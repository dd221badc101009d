"""A default in a signature.

A framework sets `__signature__` of an endpoint, with the defaults of another function.
"""

import inspect
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"endpoint\.__signature__",),
    cut=r"endpoint\.__signature__",
    cure="del endpoint.__signature__",
    holder="endpoint",
)


def endpoint() -> None:
    pass


def signature(model: Any) -> inspect.Signature:
    def dependency(name: str, model: Any = model) -> None:
        pass

    return inspect.signature(dependency)


if __name__ == "__main__":
    endpoint.__signature__ = signature(big())  # type: ignore[attr-defined]
    examine(CASE)
