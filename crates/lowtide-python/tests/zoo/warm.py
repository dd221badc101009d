"""A warm process, of which every visit is a fork: torch takes longer to import than most visits do.

    echo "closure cure" | python -m zoo.warm

Each line of the input is an animal and a mode; each line of the output is what the visit printed
and how its process ended, as JSON. A fork is a process of its own, with a heap like that of
`python -m zoo.closure`. Not for a GPU: torch's first look at one must not be before a fork.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import tempfile
import traceback
from typing import NoReturn

import zoo.visitors  # noqa: F401 (imported once, for every fork)

LIMIT_S = 120


def _be(name: str, mode: str, told: int) -> NoReturn:
    """Becomes that animal, in the fork, and never comes back."""
    signal.alarm(LIMIT_S)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(told, 1)
    os.dup2(told, 2)
    sys.argv[1:] = [mode]
    status = 0
    try:
        runpy.run_module(f"zoo.{name}", run_name="__main__", alter_sys=True)
    except BaseException:  # noqa: BLE001 (the fork must not go on as its parent)
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Forks once for each line."""
    for line in sys.stdin:
        name, mode = line.split()
        with tempfile.TemporaryFile() as told:
            child = os.fork()
            if child == 0:
                _be(name, mode, told.fileno())
            _, ended = os.waitpid(child, 0)
            told.seek(0)
            output = told.read().decode(errors="replace")
        status = os.waitstatus_to_exitcode(ended)
        print(json.dumps({"status": status, "output": output}), flush=True)


if __name__ == "__main__":
    main()
