"""The prompt's `_`.

At a prompt the value of the last expression is kept in `builtins._`. Somebody looked at a tensor by
typing its name, then deleted the name.
"""

import code
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"builtins\._(?!\w)",),
    cut=r"builtins\._(?!\w)",
    cure="import builtins; del builtins._",
    holder="__import__('builtins')",
)


if __name__ == "__main__":
    names: dict[str, Any] = {"scores": big()}
    prompt = code.InteractiveInterpreter(names)
    prompt.runsource("scores")
    prompt.runsource("del scores")
    examine(CASE)
