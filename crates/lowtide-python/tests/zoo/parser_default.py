"""A default of a command-line parser.

The parser is made at import and lives as long as the program; `set_defaults` of a sub-command holds the
function that runs it.
"""

import argparse
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"parser",),
    cut=r"parser",
    cure="parser._subparsers._group_actions[0].choices['serve']._defaults.clear()",
    holder="parser",
)


def add_command(parser: argparse.ArgumentParser, weights: Any) -> None:
    command = parser.add_subparsers().add_parser("serve")
    command.set_defaults(run=lambda arguments: weights)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_command(parser, big())
    examine(CASE)
