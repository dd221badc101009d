"""A cluster of Ray with three nodes for each file of tests, and `--long`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nodes import Fleet, started


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="all rounds of the random and repeated tests"
    )


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with started(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture
def is_long(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--long", default=False))
