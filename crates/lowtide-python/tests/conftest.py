"""What all tests share: CPU tensors are device memory here, so that every test runs everywhere."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from limits import Limits

os.environ.setdefault("LOWTIDE_DEVICE", os.environ.get("ZOO_DEVICE", "cpu"))
os.environ.pop("LOWTIDE_FREE_ON_IDLE", None)

M_MMAP_THRESHOLD = -3
# Otherwise glibc gives blocks no mapping of their own any more once another test has freed a larger one: their memory
# stays when they are freed, and the next test's numbers are not its own.
ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 128 << 10)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Limits(config), "lowtide-limits")


@pytest.fixture(autouse=True)
def _empty_shelf(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the tests of a file keep on its shelf goes after each of them."""
    yield
    getattr(request.module, "shelf", {}).clear()


@pytest.fixture
def shop() -> Iterator[Any]:
    """A module that is imported under this name."""
    module = types.ModuleType("shop")
    sys.modules["shop"] = module
    yield module
    del sys.modules["shop"]
    vars(module).clear()
    # What the test has made. A whole collection goes through all of torch, every time.
    gc.collect(1)


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
