"""A profile function for new threads.

`threading.setprofile` keeps it in a name of its module, which every new thread looks up. To delete the
name would end each of them with a NameError.
"""

import threading
from typing import Any

from zoo.keeper import OWN, PINNED, Animal, big, visit

ANIMAL = Animal(
    names=(r"threading", r"weights"),
    cut=r"_profile_hook = None",
    verdict=PINNED,
    because=OWN,
    then="cut",
    cure="threading.setprofile(None)",
    holder="threading._profile_hook",
    after="threading._profile_hook is None",
    alone="threads of the others would have its function",
)


def install(weights: Any) -> None:
    threading.setprofile(lambda frame, event, argument: weights is None)


if __name__ == "__main__":
    install(big())
    visit(ANIMAL)
