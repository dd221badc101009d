"""A context variable, and a call that was scheduled while it was set.

A request sets `request`, and schedules a call for later: the call keeps a copy of the context, which
shares the values with the context that it is a copy of. To set the variable in one leaves it in the other.
"""

import asyncio
import contextvars

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"context variable 'request'|request",),
    cut=r"request",
    cure="request.set(None); context.run(request.set, None)",
    after="context.get(request) is None and request.get() is None",
)

request: contextvars.ContextVar[object] = contextvars.ContextVar("request")


if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    request.set(big())
    context = contextvars.copy_context()
    later = loop.call_later(3600, print, context=context)
    examine(CASE)
