"""`python -m lowtide`: the program `lowtide` of this installation, wherever the search path points."""

from __future__ import annotations

import os
import sys

from ._program import find_program


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
