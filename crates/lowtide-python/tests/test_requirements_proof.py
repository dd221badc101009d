"""R45 and R47, and failures of all kinds: a call that returns proves nothing."""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import signal
import threading
import time
import weakref
from pathlib import Path

import lowtide
import pytest
from alone import alone_with_torch, ended_with_torch
from kernel import (
    DEVICE,
    MIB,
    ON_GPU,
    PATIENCE_S,
    SIZE,
    Caching,
    Piece,
    Unknown,
    in_use,
    is_about,
    until,
    weights,
)
from lowtide._runtime.heap import frozen_count

pytestmark = pytest.mark.usefixtures("clean")


class Runner:
    def __init__(self) -> None:
        self.model = weights()


def test_r45_what_a_receipt_says_is_what_the_kernel_says() -> None:
    runner = Runner()
    before = in_use()
    receipt = lowtide.shutdown(runner, device=DEVICE)
    after = in_use()
    # The driver has memory for itself, too, and counts it to no process.
    beside = before - (receipt.before.own_bytes or 0) if ON_GPU else 0
    assert is_about((receipt.before.own_bytes or 0) + beside, before)
    assert is_about((receipt.after.own_bytes or 0) + beside, after, 2 * MIB)
    assert is_about(receipt.freed_bytes or 0, before - after)
    by_rung = sum(rung.freed_bytes or 0 for rung in receipt.rungs)
    assert is_about(by_rung, receipt.freed_bytes or 0, 2 * MIB)


def test_r45_nothing_counts_as_freed_because_a_call_returned() -> None:
    device = Caching()
    kept = device.allocate()
    device.trims = device.trimmable = lambda: SIZE  # type: ignore[method-assign]
    receipt = lowtide.empty_device_cache(device)
    trim = receipt.rung("trim")
    assert trim is not None
    (touch,) = trim.touched
    assert device.name in touch.what and touch.bytes == SIZE
    assert is_about(receipt.freed_bytes or 0, 0, 2 * MIB)
    assert receipt.verdict == "no-effect"
    del kept


def test_r45_a_device_that_cannot_be_asked_is_unverified() -> None:
    device = Caching()

    def broken() -> tuple[int, int]:
        raise RuntimeError("the driver is gone")

    device.usage = broken  # type: ignore[method-assign]
    device.own = broken  # type: ignore[assignment, method-assign]
    device.free(device.allocate())
    before = in_use()
    receipt = lowtide.empty_device_cache(device)
    assert is_about(before - in_use(), SIZE), "it was done, and is not claimed"
    assert (receipt.verdict, receipt.freed_bytes, receipt.proved) == ("unverified", None, False)
    assert any("RuntimeError: the driver is gone" in line for line in receipt.advice)


def test_r45_a_receipt_is_plain_data_of_its_schema() -> None:
    receipt = lowtide.shutdown(Runner(), device=DEVICE)
    data = receipt.to_dict()
    assert json.loads(json.dumps(data)) == data
    schema = next(
        parent / "docs/schemas/receipt.json"
        for parent in Path(__file__).resolve().parents
        if (parent / "docs/schemas/receipt.json").exists()
    )
    assert set(data) == set(json.loads(schema.read_text())["properties"])
    assert data["verdict"] == receipt.verdict == "released"
    assert data["freed_bytes"] == receipt.freed_bytes
    assert str(receipt).startswith(receipt.line()) and not str(receipt).endswith("\n")
    assert "touched" not in str(receipt), "rungs on request"
    for words in (receipt.line(), "Before:", "After:", "Freed:", "touched"):
        assert words in receipt.detailed()


def test_r47_the_ledger_adds_up_and_the_unknown_is_printed() -> None:
    device = Caching()
    kept = device.allocate()
    beside = Unknown()
    ledger = lowtide._release.releasers.releaser_of(device).ledger()
    assert ledger is not None
    known = sum(line.bytes for line in ledger.lines)
    assert known + ledger.unknown_bytes == ledger.driver_bytes
    assert is_about(ledger.unknown_bytes, SIZE), "what no allocator knows of"
    assert is_about(ledger.driver_bytes, 2 * SIZE)
    beside.free()
    del kept


def test_r45_noise_proves_nothing() -> None:
    # A process never stands still; some pages more or less are no release.
    receipts = [lowtide.empty_device_cache(DEVICE) for _ in range(4)]
    for receipt in receipts[1:]:
        assert receipt.claim is not None
        assert receipt.verdict == ("unverified" if receipt.claim.bytes else "released")


def test_targets_are_said_with_units() -> None:
    device = Caching()
    kept = device.allocate()
    wanted = [
        (SIZE * 2, "at most 192.0 MiB"),
        ("1 GiB", "at most 1,024.0 MiB"),
        ("free 2 GiB", "at least 2,048.0 MiB free"),
    ]
    for to, target in wanted:
        receipt = lowtide.release(to=to, device=device)  # type: ignore[arg-type]
        assert (receipt.target, receipt.verdict) == (target, "released")
    assert lowtide.release(to="floor", device=device).verdict == "unverified"
    for wrong in ("lots", "5 parsecs", -1, 1.5):
        with pytest.raises(ValueError, match=r"is not a size; write a number"):
            lowtide.release(to=wrong, device=device)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is not a time"):
        lowtide.release(wait="soon", device=device)
    del kept


def test_frozen_holders_are_unfrozen_only_when_asked() -> None:
    cycle = Runner()
    cycle.me = cycle  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    try:
        del cycle
        before = in_use()
        receipt = lowtide.release(device=DEVICE)
        assert is_about(in_use(), before), "the collector does not see it"
        receipt = lowtide.release(device=DEVICE, unfreeze=True)
        assert is_about(before - in_use(), SIZE)
        assert "the frozen set was not restored" in receipt.detailed()
        assert frozen_count() == 0
    finally:
        gc.unfreeze()


def test_a_release_keeps_nothing_alive() -> None:
    runner = Runner()
    seen = weakref.ref(runner)
    receipt = lowtide.shutdown(runner, device=DEVICE)
    with lowtide.stage("one", device=DEVICE) as stage:
        stage.own(runner)
    del runner
    assert seen() is None, (receipt, stage)


def test_bad_luck_ctrl_c_ends_a_wait_for_work_and_the_gate_is_open() -> None:
    device = Caching()
    gate = lowtide.Gate(device)
    held = gate.enter()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ended, rescued = threading.Event(), []

    def interrupt() -> None:
        until(lambda: not gate.open)
        os.kill(os.getpid(), signal.SIGINT)
        if not ended.wait(PATIENCE_S):
            rescued.append(True)
            held.leave()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        lowtide.release(device=device, wait="24h")
    ended.set()
    interrupter.join()
    assert not rescued, "it waited for the work"
    assert gate.open
    held.leave()
    assert lowtide.empty_device_cache(device).verdict == "released", "and it works again"


def test_bad_luck_ctrl_c_in_a_rung_that_hangs_restores_what_was_lowered() -> None:
    device = Caching()
    fraction = {"value": 0.9}

    class Setting:
        name = "fraction"

        def lower(self) -> object:
            fraction["value"] = 0.1
            return lambda: fraction.update(value=0.9)

        def reset_statistics(self) -> None:
            pass

    signal.signal(signal.SIGINT, signal.default_int_handler)
    hung = []

    # The fraction's rung trims while it is lowered; that is where Ctrl-C comes.
    def trim() -> int:
        if fraction["value"] < 0.5:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
            hung.append(fraction["value"])
        return 0

    device.own_settings = [Setting()]
    device.trims = trim
    kept = device.allocate()
    with pytest.raises(KeyboardInterrupt):
        lowtide.release(to=0, device=device)
    assert hung == [0.1]
    until(lambda: fraction["value"] == 0.9)
    assert lowtide.Gate(device).open
    del kept


def test_bad_luck_ctrl_c_ends_a_wait_at_the_gate() -> None:
    device = Caching()
    gate = lowtide.Gate(device)
    gate.pause("in_place", 1)
    # A shell that runs tests in the background has them ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        until(lambda: gate._gate.state().waiting)
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        gate.enter()
    interrupter.join()
    gate.resume()
    until(lambda: not gate.active)


def test_bad_luck_many_threads_release_while_python_is_busy() -> None:
    device = Caching()
    stop = False

    def busy() -> None:
        while not stop:
            sum(range(1000))

    worker = threading.Thread(target=busy)
    worker.start()
    receipts: list[lowtide.Receipt] = []
    try:
        device.free(device.allocate())
        calls = [
            threading.Thread(target=lambda: receipts.append(lowtide.empty_device_cache(device)))
            for _ in range(4)
        ]
        runner = Runner()
        calls.append(
            threading.Thread(
                target=lambda: receipts.append(lowtide.shutdown(runner, device=device))
            )
        )
        for call in calls:
            call.start()
        for call in calls:
            call.join(60)
            assert not call.is_alive(), "no deadlock"
    finally:
        stop = True
        worker.join()
    assert len(receipts) == 5
    assert runner.model is None


def test_bad_luck_a_rung_that_asks_for_a_release_is_refused() -> None:
    device = Caching()
    told: list[str] = []

    def again() -> None:
        told.append(lowtide.empty_device_cache(device).verdict)

    device.pieces = [Piece(device.log, "caches", "again", again)]
    lowtide.release(device=device)
    assert told == ["busy"]


def test_bad_luck_a_hook_that_raises_becomes_words_and_is_not_kept() -> None:
    device = Caching()

    def fails() -> None:
        kept = weights()
        raise RuntimeError(f"no {kept.nbytes}")

    device.pieces = [Piece(device.log, "caches", "broken", fails)]
    before = in_use()
    receipt = lowtide.release(device=device)
    rung = receipt.rung("caches")
    assert rung is not None
    assert (rung.outcome, rung.why) == ("failed", f"broken: RuntimeError: no {SIZE}")
    assert is_about(in_use(), before), "the exception and its frames are gone"


def test_bad_luck_work_that_runs_is_waited_for_or_left_alone() -> None:
    device = Caching()
    gate = lowtide.Gate(device)
    with gate.enter():
        receipt = lowtide.release(device=device, wait="100ms")
    assert receipt.verdict == "busy"
    assert "trim" not in device.log
    assert any("1 pass is still active" in line for line in receipt.advice)


def test_bad_luck_a_forked_child_releases_on_its_own() -> None:
    # Host memory: CUDA does not work in a forked child.
    code = (
        "import os, torch, lowtide\n"
        "lowtide.empty_device_cache('cpu')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    receipt = lowtide.empty_device_cache('cpu')\n"
        "    os._exit(0 if receipt.device == 'cpu' else 1)\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    ended = ended_with_torch(code)
    assert ended.output == "0\n", ended.errors


def test_bad_luck_a_process_ends_while_an_idle_switch_watches() -> None:
    code = (
        "import os, torch, lowtide\n"
        "os.environ['LOWTIDE_LOG'] = 'off'\n"
        "switch = lowtide.idle('10ms', device='cpu')\n"
        "with switch.work(): pass\n"
    )
    ended = ended_with_torch(code)
    assert (ended.status, ended.errors) == (0, "")


def test_assert_released_fails_with_who_holds_it_and_passes_otherwise() -> None:
    with lowtide.assert_released(device=DEVICE):
        Runner()
    leaked = []
    with (
        pytest.raises(AssertionError, match=r"MiB of device memory are still in use") as told,
        lowtide.assert_released(device=DEVICE),
    ):
        leaked.append(weights())
    assert "held" in str(told.value) or "hold" in str(told.value)
    with lowtide.assert_released(within=10.0, device=DEVICE):
        leaked.append(weights())
    with pytest.raises(ValueError, match="mine"), lowtide.assert_released(device=DEVICE):
        leaked.append(weights())
        raise ValueError("mine")


def test_the_fixture_fails_a_test_that_leaves_memory_behind(tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(
        "import torch\n"
        f"take = lambda: torch.ones(1 << 26, dtype=torch.uint8, device={DEVICE!r})\n"
        "kept = []\n"
        "def test_good(device_memory, lowtide):\n"
        "    take()\n"
        "    assert device_memory.in_use_bytes() > 0\n"
        "    assert lowtide.__name__ == 'lowtide'\n"
        "def test_bad(device_memory):\n"
        "    kept.append(take())\n"
        "def test_allowed(device_memory):\n"
        "    device_memory.within = 5.0\n"
        "    kept.append(take())\n"
        "def test_broken(device_memory):\n"
        "    kept.append(take())\n"
        "    assert False\n"
    )
    # Under the name that it was installed by, where it was: pytest takes it from there by itself.
    installed = importlib.metadata.entry_points(group="pytest11", name="lowtide")
    plugin = "lowtide" if installed else "lowtide.pytest_plugin"
    options = ["-p", plugin, "-p", "no:cacheprovider", "-q", "-W", "ignore", "--rootdir"]
    arguments = [*options, str(tmp_path), str(test)]
    said = alone_with_torch(f"import pytest; pytest.main({arguments!r})")
    assert "1 failed, 3 passed, 1 error" in said, said
    assert "ERROR at teardown of test_bad" in said
    assert "__exit__" not in said, "nobody reads the plug-in's own code"
