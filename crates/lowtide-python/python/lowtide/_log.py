"""What a release writes to the log: one line, through Python's logging, to the logger `lowtide`.

The level is INFO. It is WARNING, with what is left and what would free it, if a target was missed or
somebody still holds memory that should be free. What each rung touched is logged at DEBUG. The numbers
are in the record's `extra`, so that nobody has to parse the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

    from ._native import Receipt


def logger() -> Logger:
    """Returns the logger `lowtide`. Imports logging only when something is logged."""
    import logging

    return logging.getLogger("lowtide")


def log_release(receipt: Receipt, line: str | None = None) -> Receipt:
    """Logs a release and returns its receipt. `line` replaces the usual line."""
    from logging import DEBUG, INFO, WARNING

    log = logger()
    missed = receipt.target is not None and not receipt.proved
    level = WARNING if missed or receipt.verdict in ("pinned", "failed") else INFO
    if log.isEnabledFor(DEBUG):
        for rung in receipt.rungs:
            log.debug("%s", rung, extra={"lowtide_rung": rung.rung})
    if log.isEnabledFor(level):
        text = line if line is not None else receipt.line()
        if level == WARNING and receipt.advice:
            text += ": " + "; ".join(receipt.advice)
        log.log(level, "%s", text, extra=numbers(receipt))
    return receipt


def numbers(receipt: Receipt) -> dict[str, object]:
    """Returns what a log record carries beside its text."""
    return {
        "lowtide_release": receipt.name,
        "lowtide_device": receipt.device,
        "lowtide_verdict": receipt.verdict,
        "lowtide_freed_bytes": receipt.freed_bytes,
        "lowtide_in_use_bytes": receipt.after.in_use_bytes,
        "lowtide_reserved_bytes": receipt.after.reserved_bytes,
        "lowtide_took_s": receipt.took_s,
    }
