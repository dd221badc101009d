"""A handler that buffers log records.

`MemoryHandler` writes when it is full or something serious happens: until then it keeps the arguments.
"""

import logging
import logging.handlers

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"\.buffer\[0\]",),
    cut=r"buffer\[0\]",
    cure="handler.buffer.clear()",
    holder="handler",
)


if __name__ == "__main__":
    handler = logging.handlers.MemoryHandler(1000, flushLevel=logging.CRITICAL)
    log = logging.getLogger("serving")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(handler)
    log.info("batch %s", big())
    examine(CASE)
