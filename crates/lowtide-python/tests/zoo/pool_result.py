"""The result of a job in a thread pool.

A web server keeps the futures of its background jobs by their number, so that a client may ask for
the result later. No client asks.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(
        r"results",
        r"_result",
    ),
    cut=r"results",
    cure="del results['job-7']",
    holder="results",
)


results: dict[str, Any] = {}


if __name__ == "__main__":
    with ThreadPoolExecutor(max_workers=1) as pool:
        results["job-7"] = pool.submit(big)
    examine(CASE)
