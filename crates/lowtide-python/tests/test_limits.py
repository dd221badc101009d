"""A test that hangs fails alone: the run goes on, and ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from alone import ended

pytest.importorskip("xdist", reason="pytest-xdist is not installed")

CONFTEST = """
from limits import Limits
def pytest_configure(config):
    config.pluginmanager.register(Limits(config), "limits")
"""
# In one file: pytest-xdist fails itself if two of its processes end at the same time.
TESTS = """
import os, pytest, time
@pytest.fixture
def made():
    yield
    time.sleep(600)
def test_first(): pass
def test_hangs():
    # Who is forked must not keep the run waiting for this process.
    if os.fork() == 0:
        time.sleep(600)
    time.sleep(600)
def test_between(): pass
def test_fails(made): assert False
def test_last(): pass
"""


def test_a_test_that_hangs_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    options = ["-rA", "-p", "no:cacheprovider", "-n", "1", "--dist", "loadfile", "--rootdir"]
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    kept = {name: of for name, of in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    how = ended(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": path, "LOWTIDE_TEST_LIMIT_S": "4"},
    )
    told = how.output + how.errors
    assert how.status == 1, told
    for name in ("first", "between", "last"):
        assert f"PASSED test_it.py::test_{name}" in told, told
    for name in ("hangs", "fails"):
        assert f"crashed while running 'test_it.py::test_{name}'" in told, told
        assert told.count(f"ERROR test_it.py::test_{name}") == 1, "it is not run again"
    assert "in test_hangs" in told and "in made" in told, "the stacks say where"
