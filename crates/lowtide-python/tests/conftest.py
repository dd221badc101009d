"""What all tests share: CPU tensors are device memory here, so that every test runs everywhere."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator

import pytest
from limits import Limits

os.environ.setdefault("LOWTIDE_DEVICE", os.environ.get("ZOO_DEVICE", "cpu"))
os.environ.pop("LOWTIDE_FREE_ON_IDLE", None)
LARGE = {"torch", "torch._dynamo", "sympy"}
"""Large modules: torch, which the tests in `without_torch/` do without, and what it imports when they are first
needed: its compiler, and what it computes shapes with."""

MOST_OLD = 50_000
"""The collector has more old objects only where nothing is frozen. To count the frozen ones would take longer."""
FROZEN = {
    "test_agent.py",
    "test_ambient.py",
    "test_by_need.py",
    "test_claims.py",
    "test_contract.py",
    "test_requirements_all.py",
    "test_requirements_idle.py",
    "test_requirements_pause.py",
    "test_requirements_proof.py",
    "test_requirements_shutdown.py",
    "test_requirements_stages.py",
    "test_requirements_tasks.py",
    "test_restore.py",
    "test_shutdown_shared.py",
    "test_worker.py",
}
"""Files about releases, in which the collector runs hundreds of times. What was imported is frozen for them, as
servers do it: torch has 168,000 objects, and a collection of those takes 0.1 s. The files about the walk, its
answers, the rungs and the collector have an ordinary heap."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Limits(config), "lowtide-limits")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Freezes the heap for the tests of some files, and again after a test that has unfrozen it."""
    if item.path.name not in FROZEN:
        gc.unfreeze()
    elif len(gc.get_objects(generation=2)) > MOST_OLD:
        gc.collect()
        gc.freeze()


@pytest.fixture
def clean() -> None:
    """A test that measures begins with what nobody has gone, so that its numbers are its own."""
    from lowtide import _native
    from lowtide._release import releasers as _releasers
    from lowtide._stages import stage as _stage

    for known in (_releasers._releasers, _stage._shared):
        for name in [name for name in known if name not in (None, "cpu")]:
            del known[name]  # type: ignore[attr-defined]
    gc.collect()
    _native.malloc_trim()
    if os.environ["LOWTIDE_DEVICE"].startswith("cuda"):
        import torch

        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Warns of a test that loads one of the large modules: all tests after it walk over its objects."""
    had = LARGE & sys.modules.keys()
    yield
    for name in (LARGE & sys.modules.keys()) - had:
        warnings.warn(f"{item.nodeid} loads {name}: run it in another process", stacklevel=1)
