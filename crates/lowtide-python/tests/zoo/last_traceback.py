"""`sys.last_traceback`.

A prompt (python, IPython, a notebook's kernel) stores the last exception that nobody caught, for
debuggers. With it stay the locals of every function that it passed through, until the next error.
"""

import code
from typing import Any

from zoo.case import Case, big, examine

CASE = Case(
    names=(r"sys\.last_(traceback|value|exc)", r"serve\(\) line \d+", r"\bbatch\b"),
    cut=r"sys\.last_|clear_frames|release\(\)",
    cure="""
import sys
for name in ("last_exc", "last_value", "last_traceback", "last_type"):
    vars(sys).pop(name, None)
""",
    holder="serve.__code__",
)


def serve() -> None:
    batch: Any = big()
    raise ValueError(f"{batch.shape[0]} scores, and nobody catches this")


if __name__ == "__main__":
    prompt = code.InteractiveInterpreter({"serve": serve})
    prompt.runsource("serve()")
    examine(CASE)
