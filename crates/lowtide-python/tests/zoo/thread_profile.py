"""A profile function for new threads.

`threading.setprofile` keeps it in a name of its module, which every new thread looks up. To delete the
name would end each of them with a NameError.
"""

import threading
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"threading", r"weights"),
    cut=r"_profile_hook = None",
    cure="threading.setprofile(None)",
    holder="threading._profile_hook",
    after="threading._profile_hook is None",
)


def install(weights: Any) -> None:
    threading.setprofile(lambda frame, event, argument: weights is None)


if __name__ == "__main__":
    install(big())
    examine(CASE)
