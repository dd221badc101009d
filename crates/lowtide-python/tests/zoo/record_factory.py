"""A factory of log records.

A library replaces `logging`'s factory by its own, which adds what it knows of the model to each record.
`logging` fails without a factory, so it gets its own back.
"""

import logging
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"logging", r"weights"),
    cut=r"_logRecordFactory = .*LogRecord",
    cure="logging.setLogRecordFactory(logging.LogRecord)",
    holder="logging.getLogRecordFactory()",
    after="logging.makeLogRecord({}) is not None",
)


def install(weights: Any) -> None:
    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = logging.LogRecord(*args, **kwargs)
        record.__dict__["shape"] = weights.shape
        return record

    logging.setLogRecordFactory(factory)


if __name__ == "__main__":
    install(big())
    examine(CASE)
