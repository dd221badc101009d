"""Exceptions that are kept for a report.

A test runner, or an evaluation over many cases, collects what failed and goes on. Every exception
keeps its traceback, and that keeps the locals of the case that failed.
"""

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"failures\[0\]", r"case\(\) line \d+", r"\bbatch\b"),
    cut=r"failures|clear_frames",
    cure="failures[0].__traceback__ = None",
    holder="failures",
)

failures: list[Exception] = []


def case() -> None:
    batch = big()
    assert batch.sum() < 0, "the scores are all negative"


def run_all() -> None:
    try:
        case()
    except AssertionError as error:
        failures.append(error)


if __name__ == "__main__":
    run_all()
    examine(CASE)
