"""What all tests share: CPU tensors are device memory here, so that every test runs everywhere."""

from __future__ import annotations

import importlib.util
import os
import sys

os.environ.setdefault("LOWTIDE_DEVICE", "cpu")
os.environ.pop("LOWTIDE_FREE_ON_IDLE", None)

if importlib.util.find_spec("lowtide._why") is None:
    import lowtide

    sys.path.insert(0, os.path.dirname(__file__))
    import standin_why

    sys.modules["lowtide._why"] = lowtide._why = standin_why  # type: ignore[attr-defined]

import gc  # noqa: E402
from collections.abc import Iterator  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402

# Two cores at most in CI, and nothing here is worth a pool of threads.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """A test begins with what nobody has gone, so that its numbers are its own."""
    from lowtide import _native, _release, _stage

    for known in (_release._releasers, _stage._shared):
        for name in [name for name in known if name not in (None, "cpu")]:
            del known[name]  # type: ignore[attr-defined]
    gc.collect()
    _native.malloc_trim()
    yield
