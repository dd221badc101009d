"""A dict with weak keys and strong values.

State per request, in a `WeakKeyDictionary`, so that it goes with the request. But the state knows
its request. The value holds the key, the dict holds the value: the entry never goes.
"""

import weakref
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"STATES", r"\.kv"),
    cut=r"STATES",
    cure="STATES.clear()",
    holder="STATES",
)


class Request:
    """What a client asked for."""


class State:
    def __init__(self, request: Request, kv: Any) -> None:
        self.request = request
        self.kv = kv


STATES: "weakref.WeakKeyDictionary[Request, State]" = weakref.WeakKeyDictionary()


if __name__ == "__main__":
    request = Request()
    STATES[request] = State(request, big())
    del request
    examine(CASE)
