"""Every number has a test that begins with it, and `docs/requirements.md` names them all and says on
which devices they see it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TABLE = HERE.parent.parent.parent / "docs" / "requirements.md"
WANTED = set(range(1, 48))

needs_docs = pytest.mark.skipif(not TABLE.exists(), reason="the docs are not here, only the tests")


def numbered() -> dict[str, int]:
    """Each test that carries a number, as the table names it, and the number."""
    found = {}
    for file in HERE.glob("test_*.py"):
        for name, number in re.findall(r"^def (test_r(\d+)_\w+)", file.read_text(), re.MULTILINE):
            found[f"{file.name}::{name}"] = int(number)
    return found


def rows() -> list[tuple[int, str]]:
    """Each number in the table of Python's tests, and its row."""
    _, of_python = TABLE.read_text().split("## From Python")
    found = re.findall(r"^\| R(\d+) \|(.*)\|$", of_python, re.MULTILINE)
    return [(int(number), row) for number, row in found]


def named(row: str) -> list[str]:
    return re.findall(r"`(test_\w+\.py::\w+)`", row)


def devices(test: str) -> set[str]:
    """The devices that a test releases: `own` if it, or a function or class of its file that it uses,
    names the tests' own device, and `host` if it does not or names `DEVICE` beside it."""
    file, name = test.split("::")
    tree = ast.parse((HERE / file).read_text())
    defined = {one.name: one for one in tree.body if hasattr(one, "name")}
    used, unread = {name}, [name]
    while unread:
        for node in ast.walk(defined[unread.pop()]):
            if isinstance(node, ast.Name) and node.id not in used:
                used.add(node.id)
                unread += [node.id] if node.id in defined else []
    if "Caching" not in used:
        return {"host"}
    return {"own", "host"} if "DEVICE" in used else {"own"}


def test_every_number_has_a_test_of_its_own() -> None:
    assert set(numbered().values()) >= WANTED, sorted(WANTED - set(numbered().values()))


@needs_docs
def test_the_table_names_them_all() -> None:
    assert {test: number for number, row in rows() for test in named(row)} == numbered()


@needs_docs
def test_the_table_says_where_each_number_is_seen() -> None:
    for number, row in rows():
        told = {device.strip() for device in row.split(" | ")[1].split(",")}
        assert told == set().union(*map(devices, named(row))), f"R{number}"
