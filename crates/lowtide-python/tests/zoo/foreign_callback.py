"""A function that was given to a C library.

`ctypes.CFUNCTYPE(...)(closure)` has to be kept as long as the library may call it, and is kept for good.
"""

import ctypes
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"callbacks\[0\]",),
    cut=r"callbacks\[0\]",
    cure="callbacks.clear()",
    holder="callbacks",
)


def callback(buffer: Any) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda at: int(buffer[at]))


if __name__ == "__main__":
    callbacks = [callback(big())]
    examine(CASE)
