"""Where the program `lowtide` is that was installed with this package."""

from __future__ import annotations

import os
from importlib import metadata


def find_program() -> str | None:
    """Returns the path of the program, or None if this installation has none.

    The installer's own list of files is asked: the search path may have another version first.
    """
    try:
        files = metadata.files(__package__) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        path = os.path.abspath(str(file.locate()))
        if file.name == "lowtide" and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None
