"""What all tests share: CPU tensors are device memory here, so that every test runs everywhere."""

from __future__ import annotations

import os

os.environ.setdefault("LOWTIDE_DEVICE", "cpu")
os.environ.pop("LOWTIDE_FREE_ON_IDLE", None)
