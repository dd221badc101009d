"""What a release writes to the log: one line, through Python's logging, to the logger `lowtide`.

The native part decides the level and the text: INFO, or WARNING with what to do. What each rung
touched is logged at DEBUG. The numbers are in the record's `extra`, so that nobody has to parse the
text.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from . import has_exit_begun

if TYPE_CHECKING:
    from logging import Logger, LogRecord

    from .._native import Receipt, Restored


_unverified: set[str | None] = set()
"""The devices of which an idle release was unverified."""


def logger() -> Logger:
    """Returns the logger `lowtide`. Imports logging only when something is logged.

    Where a program has not set up logging, warnings go to standard error, as always in Python. LOWTIDE_LOG
    asks for another level, and LOWTIDE_LOG_FORMAT=json for lines that are objects.
    """
    import logging

    log = logging.getLogger("lowtide")
    _follow_variable(log)
    return log


@cache
def _follow_variable(log: Logger) -> None:
    """Shows what LOWTIDE_LOG names, as for the command: off, error, warn, info, debug or trace."""
    import logging
    import os

    levels = {name: getattr(logging, name.upper()) for name in ("error", "warn", "info", "debug")}
    levels |= {"off": logging.CRITICAL + 1, "trace": logging.DEBUG}
    asked = os.environ.get("LOWTIDE_LOG", "").strip()
    words = [word.strip().rpartition("=") for word in asked.lower().split(",")]
    wanted = [level for target, _, level in words if target in ("", "lowtide") and level in levels]
    is_json = os.environ.get("LOWTIDE_LOG_FORMAT") == "json"
    if (wanted or is_json) and not log.handlers:
        shown = logging.StreamHandler()
        formatter = logging.Formatter("lowtide: %(message)s")
        if is_json:
            formatter.format = json_line  # type: ignore[method-assign]
            log.propagate = False
        shown.setFormatter(formatter)
        log.addHandler(shown)
        log.setLevel(levels[wanted[0]] if wanted else logging.WARNING)
    if asked and not any(level in levels for _, _, level in words):
        log.warning("LOWTIDE_LOG=%s names no level: say %s", asked, ", ".join(levels))


def json_line(record: LogRecord) -> str:
    """Returns a record as one line, with the keys that the command `lowtide` uses."""
    import json
    from datetime import datetime, timezone

    at = datetime.fromtimestamp(record.created, timezone.utc).isoformat()
    numbers = {key[8:]: value for key, value in vars(record).items() if key.startswith("lowtide_")}
    fields = {"message": record.getMessage()} | numbers
    line = {"timestamp": at, "level": record.levelname, "fields": fields, "target": record.name}
    return json.dumps(line, default=str)


def tell(text: str) -> None:
    """Logs a warning that somebody has to see."""
    logger().warning("%s", text)


def log_release(receipt: Receipt, line: str | None = None, most: int = sys.maxsize) -> Receipt:
    """Logs a release, at this level at most, and returns its receipt. `line` replaces the usual line."""
    if has_exit_begun():
        return receipt
    from logging import DEBUG

    log = logger()
    if log.isEnabledFor(DEBUG):
        for rung in receipt.rungs:
            log.debug("%s", rung, extra={"lowtide_rung": rung.rung})
    level = min(receipt.log_level, most)
    if log.isEnabledFor(level):
        log.log(level, "%s", receipt.log_text(line), extra=numbers(receipt))
    return receipt


def log_summary(receipt: Receipt) -> Receipt:
    """Logs an idle release: its line, and the lines Before, After and Freed (R32). What no number shows here is
    warned of once."""
    if has_exit_begun():
        return receipt
    from logging import INFO

    log_release(receipt, most=INFO if receipt.device in _unverified else sys.maxsize)
    if receipt.verdict == "unverified":
        _unverified.add(receipt.device)
    log = logger()
    if log.isEnabledFor(INFO):
        for line in receipt.summary().splitlines():
            log.info("%s", line)
    return receipt


def log_restored(restored: Restored) -> Restored:
    """Logs what came back to the device: INFO, or WARNING if the numbers do not confirm it."""
    if has_exit_begun():
        return restored
    from logging import INFO, WARNING

    level = INFO if restored.proved else WARNING
    logger().log(level, "%s", restored, extra={"lowtide_took_s": restored.took_s})
    return restored


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
