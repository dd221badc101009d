"""A warning that was recorded with its source.

`warnings.catch_warnings(record=True)`: each record has the object that the warning is about.
"""

import warnings

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"caught\[0\]\.source",),
    cut=r"caught\[0\]",
    cure="caught.clear()",
    holder="caught",
)


if __name__ == "__main__":
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("not closed", ResourceWarning, source=big())
    examine(CASE)
