"""A cluster of Ray with three nodes for each file of tests, and whether all rounds are wanted."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from nodes import Fleet, started


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with started(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture
def is_long() -> bool:
    return os.environ.get("LOWTIDE_LONG") == "1"
