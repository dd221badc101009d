"""A default of a command-line parser.

The parser is made at import and lives as long as the program; `set_defaults` of a sub-command holds the
function that runs it.
"""

import argparse
from typing import Any

from zoo.case import OWN, PINNED, Case, big, examine

CASE = Case(
    names=(r"parser",),
    cut=r"parser",
    verdict=PINNED,
    because=OWN,
    then="cut",
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
