"""The variable alone: a program that only imports lowtide, and says nothing about its work."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import lowtide
import pytest
import torch
from kernel import SIZE, Caching, in_use, is_about, until
from lowtide._idle import ambient as _ambient

pytestmark = pytest.mark.usefixtures("clean")


class Counting(Caching):
    """A device that counts what is allocated and freed, as torch's CUDA allocator does."""

    kind = "test"
    allocated = 0
    freed = 0

    def allocate(self, size: int = SIZE) -> torch.Tensor:
        self.allocated += 1
        return super().allocate(size)

    def free(self, tensor: torch.Tensor) -> None:
        self.freed += 1
        super().free(tensor)

    def activity(self) -> object:
        return (self.allocated, self.freed)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    device = Counting()
    monkeypatch.setattr(_ambient, "device_of", lambda name: device)
    monkeypatch.setattr(_ambient, "LOOK_S", 0.01)
    yield device
    watcher = _ambient._watcher
    _ambient.stop()
    if watcher is not None:
        watcher.thread.join(20)


def test_it_trims_when_the_counters_have_stood_still(
    device: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lowtide")
    model = lowtide.register_model(Moves())
    used = device.allocate()
    before = in_use()
    device.free(device.allocate())
    watcher = _ambient.start("50ms")
    assert watcher is not None
    until(lambda: watcher.last is not None)
    assert watcher.last is not None and watcher.last.verdict == "released"
    assert is_about(in_use(), before) and used.nbytes == SIZE
    assert model.moves == [], "nothing that is in use leaves the device"
    said = [record.getMessage() for record in caplog.records]
    assert sum("Models stay" in line and "lowtide.idle()" in line for line in said) == 1
    assert any(line.startswith("Before:") for line in said)
    first = watcher.last
    device.free(device.allocate())
    until(lambda: watcher.last is not first)


class Moves:
    def __init__(self) -> None:
        self.moves: list[str] = []

    def to(self, device: str) -> None:
        self.moves.append(device)


def test_a_program_that_says_when_it_works_ends_it(device: Counting) -> None:
    watcher = _ambient.start("1h")
    assert watcher is not None
    with lowtide.idle("1h", device=device):
        watcher.thread.join(20)
        assert not watcher.thread.is_alive()


@pytest.mark.parametrize("switch", ["off", "0", "soon"])
def test_off_and_what_says_nothing_start_nothing(
    switch: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert _ambient.start(switch) is None
    assert ("does not say when" in caplog.text) == (switch == "soon")


@pytest.mark.parametrize(("said", "runs"), [("5m", True), ("off", False), ("", False)])
def test_the_import_starts_it_without_torch(said: str, runs: bool) -> None:
    code = """
        import sys, threading, lowtide
        print("lowtide-ambient" in [thread.name for thread in threading.enumerate()])
        assert "torch" not in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "LOWTIDE_FREE_ON_IDLE": said},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(runs), "")
