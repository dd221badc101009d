"""A runner whose model somebody else holds, too.

The same runner as in `full_runner`; a metrics object took the model's weight for itself. Shutting
down gives all the rest back and names that holder: it is not the runner's to cut.
"""

from typing import Any

from zoo.case import big, examine, pinned
from zoo.packages.engine import Runner

CASE = pinned(
    names=(r"metrics\.baseline",),
    cut=r"metrics|runner",
    release="lowtide.shutdown(runner)",
    says=(r"metrics\.baseline",),
    cure="vars(runner).clear(); metrics.baseline = None",
    holder="metrics",
)


class Metrics:
    def __init__(self, baseline: Any) -> None:
        self.baseline = baseline


if __name__ == "__main__":
    runner = Runner(lambda: big(16))
    metrics = Metrics(runner.model)
    examine(CASE)
