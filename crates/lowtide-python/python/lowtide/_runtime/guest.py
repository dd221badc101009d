"""Whether this package is a guest: loaded by `lowtide why PID` into a program that did not import it.

A guest registers nothing with the interpreter. It has another name than `lowtide`, so that the program's own
installation, if there is one, is neither used nor shadowed.
"""

from __future__ import annotations

from typing import Final

HOME: Final = __name__.partition(".")[0]
"""The module that the package is, by whatever name it was loaded."""
IS_GUEST: Final[bool] = HOME not in ("lowtide",)
