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
