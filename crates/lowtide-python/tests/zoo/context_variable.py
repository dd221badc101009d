"""A context variable.

Middleware sets the current adapter for a request and does not reset it. The context of the thread
keeps the value; the variable itself knows nothing of it.
"""

from contextvars import ContextVar
from typing import Any

from zoo.case import PINNED, Case, big, examine

CASE = Case(
    names=(r"CURRENT|current_adapter", r"(?i)context"),
    cut=r"(?i)\.set\(|reset|context",
    verdict=PINNED,
    because="a context is never changed, only replaced, by whoever runs in it",
    then="cure",
    cure="CURRENT.set(None)",
    holder="CURRENT",
)

CURRENT: ContextVar[Any] = ContextVar("current_adapter", default=None)


def serve() -> None:
    CURRENT.set(big())


if __name__ == "__main__":
    serve()
    examine(CASE)
