"""Every number that holds from Python has a test that begins with it."""

from __future__ import annotations

import re
from pathlib import Path

WANTED = {*range(1, 46), 47}


def test_every_number_has_a_test_of_its_own() -> None:
    files = Path(__file__).parent.glob("test_*.py")
    text = "\n".join(file.read_text() for file in files)
    found = {int(number) for number in re.findall(r"^def test_r(\d+)_", text, re.MULTILINE)}
    assert found >= WANTED, sorted(WANTED - found)
