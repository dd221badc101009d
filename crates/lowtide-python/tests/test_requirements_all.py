"""Every number has a test that begins with it, and `docs/requirements.md` names them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TABLE = HERE.parent.parent.parent / "docs" / "requirements.md"
WANTED = set(range(1, 48))


def numbered() -> dict[str, int]:
    """Each test that carries a number, as the table names it, and the number."""
    found = {}
    for file in HERE.glob("test_*.py"):
        for name, number in re.findall(r"^def (test_r(\d+)_\w+)", file.read_text(), re.MULTILINE):
            found[f"{file.name}::{name}"] = int(number)
    return found


def test_every_number_has_a_test_of_its_own() -> None:
    assert set(numbered().values()) >= WANTED, sorted(WANTED - set(numbered().values()))


@pytest.mark.skipif(not TABLE.exists(), reason="the docs are not here, only the tests")
def test_the_table_names_them_all() -> None:
    rows = re.findall(r"^\| R(\d+) \|(.*)$", TABLE.read_text(), re.MULTILINE)
    named = {
        test: int(number)
        for number, row in rows
        for test in re.findall(r"`(test_\w+\.py::\w+)`", row)
    }
    assert named == numbered()
