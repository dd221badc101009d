"""A log record's arguments.

`log.debug("scores %s", scores)` formats late: the record keeps its arguments. A handler that
buffers records (or pytest's caplog) keeps the tensor, and nobody ever thought of a log as a holder.
"""

import logging
from logging.handlers import MemoryHandler

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"buffer", r"args"),
    cut=r"buffer|args",
    cure="handler.flush()",
    holder="handler.buffer",
)

log = logging.getLogger("serve")


def serve() -> None:
    scores = big()
    log.debug("scores %s", scores)


if __name__ == "__main__":
    handler = MemoryHandler(capacity=1000, target=logging.NullHandler())
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    serve()
    examine(CASE)
