"""The zoo: lowtide names every way in which memory is kept alive, and frees it or rightly says
pinned.

First it is checked without lowtide that the memory stays and that the known fix frees it; then lowtide
is asked.

Each run of a case has a process of its own.

`ZOO_DEVICE=cuda` runs them on a GPU. Without one, the cases that need it are skipped, or fail if
`LOWTIDE_DEMAND_GPU=1`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

runs: Any = pytest.importorskip("zoo.runs", reason="the leaks are tensors: torch is missing")

CASES = runs.cases()
_spec = find_spec("lowtide")
HAS_LOWTIDE = _spec is not None and _spec.origin is not None  # a folder of that name is no package

Run = Callable[[str, str], tuple[dict[str, Any], str]]
"""Runs a case in one of its modes: the result, and all that was printed."""


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Forks of a warm process; on a GPU, fresh processes."""
    if runs.DEVICE != "cpu" or not hasattr(os, "fork"):
        yield runs.run
        return
    warm = runs.Warm()
    yield warm.run
    warm.close()


def _is_right(run: Run, name: str, mode: str) -> None:
    reason = runs.why_not(CASES[name])
    if reason and os.environ.get("LOWTIDE_DEMAND_GPU") == "1" and not CASES[name].cpu:
        pytest.fail(f"a GPU is demanded: {reason}")
    if reason:
        pytest.skip(reason)
    result, told = run(name, mode)
    assert result["problems"] == [], told


@pytest.mark.parametrize("name", CASES)
def test_by_cure(run: Run, name: str) -> None:
    """The leak: the program holds memory in the claimed way, and only so."""
    _is_right(run, name, "cure")


@pytest.mark.skipif(not HAS_LOWTIDE, reason="lowtide is not installed here")
@pytest.mark.parametrize("name", CASES)
def test_by_lowtide(run: Run, name: str) -> None:
    """What `why` names, what the release says, and what the memory says of both."""
    _is_right(run, name, "lowtide")


@pytest.mark.skipif(not HAS_LOWTIDE, reason="lowtide is not installed here")
@pytest.mark.parametrize("name", CASES)
def test_by_cut(run: Run, name: str) -> None:
    """The statement that the answer prints runs as it stands and frees it, or is rightly `by hand`."""
    _is_right(run, name, "cut")


def test_every_file_is_a_case() -> None:
    """A case that nobody runs would be no proof."""
    files = {path.stem for path in (runs.TESTS / "zoo").glob("*.py")}
    assert files - {"__init__", "case", "modes", "runs"} == set(CASES)


def test_most_cuts_are_statements() -> None:
    """`lowtide.cut(1)` is for what Python has no plain way into."""
    by_number = importlib.import_module("zoo.modes").BY_NUMBER
    assert by_number <= set(CASES)
    assert len(by_number) <= 0.15 * len(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_case_says_what_it_is(name: str) -> None:
    """How it happens in real programs, and why it is right where it is not simply freed."""
    case = CASES[name]
    assert (sys.modules[f"zoo.{name}"].__doc__ or "").count("\n") >= 3
    assert case.names and case.cut and case.cure
    if case.verdict != "released":
        assert case.because and (case.then or case.frees)
