"""What a release writes to the log: one line, by Python's logging, under the name `lowtide`.

INFO where it is proved or nothing was to be proved; WARNING, with what is left and what would free
it, where a target was missed or somebody still holds what should be gone. What each rung touched is
there at DEBUG. The numbers travel beside the text (`extra`), so that nobody has to parse it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

    from ._native import Receipt


def logger() -> Logger:
    import logging

    return logging.getLogger("lowtide")


def say(receipt: Receipt, line: str | None = None) -> Receipt:
    """Writes what a release did, and gives the receipt on. `line` says it in other words."""
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
    """What a log record carries beside its text."""
    return {
        "lowtide_release": receipt.name,
        "lowtide_device": receipt.device,
        "lowtide_verdict": receipt.verdict,
        "lowtide_freed_bytes": receipt.freed_bytes,
        "lowtide_in_use_bytes": receipt.after.in_use_bytes,
        "lowtide_reserved_bytes": receipt.after.reserved_bytes,
        "lowtide_took_s": receipt.took_s,
    }
