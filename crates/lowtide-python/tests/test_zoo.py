"""The zoo: lowtide names every way in which memory is kept alive, and frees it or rightly says
pinned.

First it is checked without lowtide that the memory stays and that the known fix frees it; then lowtide
is asked.

Up to six cases of `zoo/` share a process and a question (`zoo/herd.py`). In the long tests, and on a GPU,
each has a process of its own.

`ZOO_DEVICE=cuda` runs them on a GPU. Without one, the cases that need it are skipped, or fail if
`LOWTIDE_DEMAND_GPU=1`.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import pytest

tour: Any = pytest.importorskip("zoo.tour", reason="the animals are tensors: torch is missing")

ANIMALS = tour.animals()
_spec = find_spec("lowtide")
HAS_LOWTIDE = _spec is not None and _spec.origin is not None  # a folder of that name is no package


Visits = dict[tuple[str, str], "Future[tour.Results]"]
"""For an animal and what is done to it: the results of its herd."""


@pytest.fixture(scope="module")
def visits(request: pytest.FixtureRequest) -> Iterator[Visits]:
    """Every visit that was asked for, under way in forks of warm processes: two at a time, or one where
    another process of pytest runs other tests meanwhile.

    On a GPU one at a time, in fresh processes.
    """
    asked = [
        (str(item.callspec.params["name"]), item.originalname.removeprefix("test_by_"))
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module
        if item.originalname.startswith("test_by_")
        if HAS_LOWTIDE or item.originalname == "test_by_cure"
    ]
    able = [visit for visit in asked if not tour.why_not(ANIMALS[visit[0]])]
    if tour.DEVICE != "cpu" or not hasattr(os, "fork"):

        def run(name: str, mode: str) -> tour.Results:
            return {(name, mode): tour.run(name, mode)}

        with ThreadPoolExecutor(max_workers=1) as keeper:
            yield {visit: keeper.submit(run, *visit) for visit in able}
        return
    warm = [tour.Warm() for _ in range(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)]
    keepers = [ThreadPoolExecutor(max_workers=1) for _ in warm]
    turns = itertools.cycle(range(len(warm)))
    visits: Visits = {}
    for herd in tour.herds(dict.fromkeys(name for name, _ in able)):
        asked = [visit for visit in able if visit[0] in herd]
        for mode, told in _modes(herd, {mode for _, mode in asked}):
            turn = next(turns)
            results = keepers[turn].submit(warm[turn].run_herd, herd, mode)
            visits |= {visit: results for visit in asked if visit[1] in told}
    yield visits
    for keeper, process in zip(keepers, warm):
        keeper.shutdown(cancel_futures=True)
        process.close()


def _modes(herd: Sequence[str], asked: Collection[str]) -> list[tuple[str, Collection[str]]]:
    """What to do to a herd, or to a single animal, and of which visits that tells."""
    if len(herd) == 1:
        return [(mode, (mode,)) for mode in sorted(asked)]
    return [(mode, told) for mode, told in tour.herd.TOLD.items() if {*told} & {*asked}]


def _is_right(visits: Visits, name: str, mode: str) -> None:
    reason = tour.why_not(ANIMALS[name])
    if reason and os.environ.get("LOWTIDE_DEMAND_GPU") == "1" and not ANIMALS[name].cpu:
        pytest.fail(f"a GPU is demanded: {reason}")
    if reason:
        pytest.skip(reason)
    result, told = visits[name, mode].result()[name, mode]
    assert result["problems"] == [], told


@pytest.mark.parametrize("name", ANIMALS)
def test_by_cure(visits: Visits, name: str) -> None:
    """The plant: it holds memory in the claimed way, and only so."""
    _is_right(visits, name, "cure")


@pytest.mark.skipif(not HAS_LOWTIDE, reason="lowtide is not installed here")
@pytest.mark.parametrize("name", ANIMALS)
def test_by_lowtide(visits: Visits, name: str) -> None:
    """What `why` names, what the release says, and what the memory says of both."""
    _is_right(visits, name, "lowtide")


@pytest.mark.skipif(not HAS_LOWTIDE, reason="lowtide is not installed here")
@pytest.mark.parametrize("name", ANIMALS)
def test_by_cut(visits: Visits, name: str) -> None:
    """The statement that the answer prints runs as it stands and frees it, or is rightly `by hand`."""
    _is_right(visits, name, "cut")


def test_every_file_is_an_animal() -> None:
    """An animal that nobody runs would be no proof."""
    files = {path.stem for path in (tour.TESTS / "zoo").glob("*.py")}
    assert files - {"__init__", "herd", "keeper", "tour", "visitors"} == set(ANIMALS)


@pytest.mark.parametrize("name", ANIMALS)
def test_an_animal_says_what_it_is(name: str) -> None:
    """How it happens in real programs, and why it is right where it is not simply freed."""
    animal = ANIMALS[name]
    assert (sys.modules[f"zoo.{name}"].__doc__ or "").count("\n") >= 3
    assert animal.names and animal.cut and animal.cure
    if animal.verdict != "released":
        assert animal.because and (animal.then or animal.frees)
