"""An exception behind another.

`raise ValueError(...)` in an `except` block: the report keeps the new one, which has the old one and its frames.
"""

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(
        r"failures\[0\]",
        r"weights",
    ),
    cut=r"failures\[0\]",
    cure="failures.clear()",
    holder="failures",
)


def load() -> None:
    weights = big()
    raise KeyError(weights.shape)


def serve() -> None:
    try:
        load()
    except KeyError:
        raise ValueError("no such model") from None


if __name__ == "__main__":
    failures = []
    try:
        serve()
    except ValueError as error:
        failures.append(error)
    examine(CASE)
