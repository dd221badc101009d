"""R37–R44: pause, update, resume."""

from __future__ import annotations

import logging
import re
import threading
import time

import lowtide
import pytest
from kernel import MIB, PATIENCE_S, SIZE, Caching, Piece, in_use, is_about, until
from lowtide._native import AllocatorCounts

pytestmark = pytest.mark.usefixtures("clean")


class Worker(threading.Thread):
    """Works in steps until it is told otherwise, and keeps its KV on the device."""

    def __init__(self, gate: lowtide.Gate, device: Caching, kv: int = 32 * MIB) -> None:
        super().__init__(daemon=True)
        self.gate, self.device, self.kv_size = gate, device, kv
        self.steps, self.ended, self.stop = 0, "", False
        self.at_work = threading.Event()
        self.kv = None

    def run(self) -> None:
        with self.gate.enter() as work:
            self.kv = self.device.allocate(self.kv_size)  # type: ignore[assignment]
            self.at_work.set()
            while not self.stop:
                told = work.checkpoint()
                if told != "go":
                    self.ended = told
                    break
                self.steps += 1
                time.sleep(0.001)
            self.flush()

    def flush(self) -> None:
        kv, self.kv = self.kv, None
        if kv is not None:
            self.device.free(kv)


def working(gate: lowtide.Gate, device: Caching) -> Worker:
    worker = Worker(gate, device)
    worker.start()
    assert worker.at_work.wait(PATIENCE_S)
    return worker


@pytest.mark.parametrize("mode", ["abort", "retract"])
def test_r37_abort_and_retract_flush_and_trim_at_the_pause(mode: str) -> None:
    device = Caching()
    flushed = []
    gate = lowtide.Gate(device, flush=lambda: flushed.append(in_use()))
    before = in_use()
    worker = working(gate, device)
    receipt = gate.pause(mode, "10s")
    worker.join(PATIENCE_S)
    assert worker.ended == mode
    assert len(flushed) == 1
    assert receipt is not None and receipt.verdict == "released"
    assert is_about(in_use(), before), "back already, while paused"
    assert not gate.open
    gate.resume()
    assert gate.open


def test_r37_in_place_stops_work_where_it_is_and_keeps_its_memory() -> None:
    device = Caching()
    flushed = []
    gate = lowtide.Gate(device, flush=lambda: flushed.append(True))
    worker = working(gate, device)
    assert gate.pause("in_place", PATIENCE_S) is None
    steps, taken = worker.steps, in_use()
    time.sleep(0.1)
    assert (worker.steps, flushed, worker.kv is not None) == (steps, [], True)
    assert is_about(in_use(), taken)
    gate.resume()
    until(lambda: worker.steps != steps)
    worker.stop = True
    worker.join(PATIENCE_S)
    assert worker.ended == ""


def test_r37_work_that_does_not_stop_makes_it_busy_and_nothing_is_stopped() -> None:
    device = Caching()
    gate = lowtide.Gate(device)
    told = r"1 pass is still active, held since \S*test_requirements_pause\.py:\d+"
    with gate.enter(), pytest.raises(lowtide.Busy, match=told):
        gate.pause("in_place", 0.05)
    assert gate.open
    with pytest.raises(ValueError, match="abort, retract or in_place"):
        gate.pause("hard", 1)


def test_r37_a_flush_that_raises_is_raised_and_the_gate_opens() -> None:
    gate = lowtide.Gate(Caching(), flush=lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        gate.pause("abort", 1)
    assert gate.open


def test_r38_the_trim_is_done_before_the_gate_opens() -> None:
    device = Caching()
    gate = lowtide.Gate(device)
    states = []
    device.trims = lambda: states.append(gate.open) or 0
    gate.pause("in_place", 1)
    gate.resume()
    assert states and not any(states)
    assert gate.open


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_r39_every_mode_trims_on_resume_and_in_place_keeps_the_kv(mode: str) -> None:
    device = Caching()
    gate = lowtide.Gate(device)
    kv = device.allocate()
    with gate.paused(mode, 1):
        device.free(device.allocate())  # New weights came in, and the old ones are cached.
        before = in_use()
    assert is_about(before - in_use(), SIZE)
    assert kv is not None and int(kv[-1]) == 7
    assert device.counts() == AllocatorCounts(SIZE, SIZE)


def test_r40_a_second_trim_is_a_harmless_no_op() -> None:
    device = Caching()
    device.free(device.allocate())
    assert lowtide.empty_device_cache(device).verdict == "released"
    second = lowtide.empty_device_cache(device)
    assert second.claim is not None and second.claim.bytes == 0
    assert second.verdict == "released", "nothing to do is a success"
    assert is_about(second.freed_bytes or 0, 0, 2 * MIB)


def test_r41_without_empty_cache_nothing_is_trimmed() -> None:
    device = Caching()
    gate = lowtide.Gate(device)
    gate.pause("in_place", 1)
    device.free(device.allocate())
    before = in_use()
    assert gate.resume(empty_cache=False) is None
    assert "trim" not in device.log
    assert is_about(in_use(), before)
    assert gate.open
    assert gate.resume() is None, "nothing is paused any more"


def test_r38_it_has_another_name_and_the_collection_is_optional() -> None:
    device = Caching()
    device.pieces = [Piece(device.log, "collect", "collect")]
    gate = lowtide.Gate(device)
    gate.pause("in_place", 1)
    assert gate.resume(torch_empty_cache=False) is None and device.log == []
    gate.pause("in_place", 1)
    device.free(device.allocate())
    before = in_use()
    receipt = gate.resume(torch_empty_cache=True, collect=False)
    assert receipt is not None and [rung.rung for rung in receipt.rungs] == ["trim"]
    assert "collect" not in device.log and is_about(before - in_use(), SIZE)
    with gate.paused(collect=False):
        pass
    assert "collect" not in device.log
    with gate.paused():
        pass
    assert "collect" in device.log


def test_r42_one_info_line_says_before_after_and_freed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lowtide")
    device = Caching()
    gate = lowtide.Gate(device)
    gate.pause("in_place", 1)
    device.free(device.allocate(96 * MIB))
    gate.resume()
    (record,) = caplog.records
    wanted = "resume: reserved 96.0 MiB before, 0.0 MiB after, 96.0 MiB freed"
    assert (record.levelname, record.getMessage()) == ("INFO", wanted)


def test_r43_over_many_updates_reserved_memory_stays_flat() -> None:
    device = Caching()
    gate = lowtide.Gate(device)
    before = in_use()
    for _ in range(10):
        with gate.paused("in_place", 1):
            device.free(device.allocate(16 * MIB))
    assert is_about(in_use(), before)
    trend = gate.trend()
    assert (trend.samples, trend.rising, trend.per_update_bytes) == (10, False, 0)


def test_r43_a_slope_that_rises_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    device = Caching()
    gate = lowtide.Gate(device)
    leaked = []  # Each has a segment of its own on a GPU, too.
    for _ in range(12):
        with gate.paused("in_place", 1):
            leaked.append(device.allocate(10 * MIB))
    trend = gate.trend()
    assert trend.rising and trend.per_update_bytes == 10 * MIB
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert re.search(r"grows by 10\.0 MiB with every update", warnings[0].getMessage())


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps", "cpu-like"])
def test_r44_one_helper_serves_every_kind_of_device(kind: str) -> None:
    device = Caching(kind)
    device.free(device.allocate())
    before = in_use()
    receipt = lowtide.empty_device_cache(device)
    assert receipt.device == device.name
    assert is_about(before - in_use(), SIZE)
