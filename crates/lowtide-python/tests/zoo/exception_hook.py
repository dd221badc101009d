"""A reporter of exceptions.

`sys.excepthook = reporter.report`, and the reporter keeps the last batch to report it.
"""

import sys
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"sys\.excepthook\.__self__",),
    cut=r"excepthook",
    cure="sys.excepthook = sys.__excepthook__",
    holder="sys.excepthook.__self__",
)


class Reporter:
    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def report(self, *exception: Any) -> None:
        print(self.batch.shape, exception)


if __name__ == "__main__":
    sys.excepthook = Reporter(big()).report
    examine(CASE)
