"""The one instance that a module keeps.

`global` and a name that is None at first: the function that creates the engine looks for None, and fails
if the name is gone.
"""

from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"_engine",),
    cut=r"_engine = None",
    cure="_engine = None",
    after="_engine is None",
)


_engine: Any = None


def engine() -> Any:
    global _engine
    if _engine is None:
        _engine = (big(), "ready")
    return _engine


if __name__ == "__main__":
    engine()
    examine(CASE)
