"""A module that is no longer imported.

A plugin was reloaded: a function of the old module is still registered, and has its globals.
"""

import types
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"commands\['run'\]\.__globals__",),
    cut=r"commands\['run'\]",
    cure="commands.clear()",
    holder="commands",
)


SOURCE = "def run(): return weights"


def load() -> Any:
    plugin: Any = types.ModuleType("plugin")
    exec(SOURCE, plugin.__dict__)
    plugin.weights = big()
    return plugin.run


if __name__ == "__main__":
    commands = {"run": load()}
    examine(CASE)
