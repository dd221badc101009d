"""`python -m lowtide`: the program `lowtide` of this installation, wherever the search path points."""

from __future__ import annotations

import os
import sys
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


def main() -> None:
    """Executes the program in this one's place."""
    program = find_program()
    if program is None:
        sys.exit(
            "lowtide: this installation has the Python package only, without the program `lowtide`."
            " The wheel of `cargo xtask dist` and `pip install .` in a checkout have both."
        )
    os.execv(program, ["lowtide", *sys.argv[1:]])


if __name__ == "__main__":
    main()
