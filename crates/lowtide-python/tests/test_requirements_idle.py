"""R25–R36: free on idle, the eight steps, and what people are told."""

from __future__ import annotations

import logging
import threading

import lowtide
import pytest
from alone import alone
from kernel import DEVICE, MIB, SIZE, Caching, Piece, in_use, is_about, until, weights
from lowtide import _native
from lowtide._native import LedgerKind, ProcessUsage, Touch

pytestmark = pytest.mark.usefixtures("clean")


def test_r25_one_switch_turns_it_on_and_off_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Caching()
    device.free(device.allocate())
    threads = threading.active_count()
    for switch in (lowtide.idle(None, device=device), lowtide.idle("off", device=device)):
        with switch.work():
            pass
        assert not switch.enabled
        assert switch.tick() is None
    assert threading.active_count() == threads, "no thread"
    assert device.log == [], "nothing was asked of the device"
    monkeypatch.setenv("LOWTIDE_FREE_ON_IDLE", "50ms")
    with lowtide.idle(None, device=device, to=0) as switch:
        assert switch.enabled
        assert switch.after_s == 0.05
        before = in_use()
        with switch.work():
            pass
        until(lambda: is_about(before - in_use(), SIZE))
        until(lambda: switch.last is not None)
    monkeypatch.setenv("LOWTIDE_FREE_ON_IDLE", "off")
    assert not lowtide.idle("5m", device=device).enabled, "the variable has the last word"
    monkeypatch.setenv("LOWTIDE_FREE_ON_IDLE", "soon")
    with pytest.raises(ValueError, match=r'"soon" does not say when'):
        lowtide.idle(device=device)
    until(lambda: threading.active_count() == threads)


@pytest.mark.parametrize(
    ("after", "seconds"), [("90s", 90.0), (2, 2.0), (0.25, 0.25), (False, None), (None, None)]
)
def test_r25_a_time_is_a_text_or_a_number_of_seconds(
    after: float | str | None, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOWTIDE_FREE_ON_IDLE", raising=False)
    switch = lowtide.idle(after, device=DEVICE)
    try:
        assert switch.enabled == (seconds is not None)
        assert seconds is None or switch.after_s == seconds
    finally:
        switch.close()


def why_not(idle: _native.Idle) -> str | None:
    """Why nothing is released now."""
    tick = idle.tick()
    assert tick.receipt is None
    return tick.why_not


def test_r26_it_needs_all_four_conditions() -> None:
    def native(switch: str) -> tuple[Caching, _native.Idle]:
        device = Caching()
        device.free(device.allocate())
        return device, _native.Idle(
            lowtide._release.releasers.releaser_of(device), switch, to="48 MiB"
        )

    device, idle = native("off")
    idle.work().leave()
    assert why_not(idle) == "free on idle is switched off"
    device, idle = native("0ms")
    assert why_not(idle) == "no task has finished since the last release"
    with idle.work(), idle.work():
        assert why_not(idle) == "tasks are running: 2"
    tick = idle.tick()
    assert tick.receipt is not None and tick.receipt.verdict == "released" and tick.why_not is None
    assert why_not(idle) == "no task has finished since the last release"
    device, idle = native("1h")
    idle.work().leave()
    tick = idle.tick()
    assert tick.receipt is None and "s are left" in (tick.why_not or "")
    device, idle = native("0ms")
    device.return_cached()
    device.own = lambda: 0  # type: ignore[method-assign]
    idle.work().leave()
    assert why_not(idle) == "there is no memory to free"


STEPS = [
    "to_host",
    "sessions",
    "caches",
    "collect",
    "trim",
    "fraction",
    "context_reset",
    "fallback",
]


def stepwise(device: Caching, fails: str | None = None) -> None:
    """One piece of memory for each step to let go, all of it kept here."""
    held = {step: weights(32 * MIB) for step in STEPS if step not in ("trim", "fraction")}

    def let_go(step: str) -> object:
        def go() -> str:
            if step == fails:
                raise RuntimeError(f"{step} is broken")
            return f"{step}: {held.pop(step).nbytes if step in held else 0}"

        return go

    device.pieces = [Piece(device.log, step, step, let_go(step)) for step in held]
    device.own_settings = [Fraction(device)]
    device.free(device.allocate(32 * MIB))


class Fraction:
    name = "memory fraction"

    def __init__(self, device: Caching) -> None:
        self.device, self.value, self.lowered = device, 0.9, []  # type: ignore[var-annotated]
        self.breaks = ""

    def lower(self) -> object:
        self.lowered.append(self.value)
        self.value = 0.1
        self.device.log.append("fraction")
        return self.restore

    def restore(self) -> None:
        self.value = self.lowered.pop()

    def reset_statistics(self) -> None:
        if self.breaks == "statistics":
            raise RuntimeError("no statistics")


def idle_release(device: Caching, disposable: bool = False) -> lowtide.Receipt:
    releaser = lowtide._release.releasers.releaser_of(device)
    releaser.set_disposable(disposable)
    idle = _native.Idle(releaser, "0ms", to=0)
    idle.work().leave()
    receipt = idle.tick().receipt
    assert receipt is not None
    return receipt


def test_r27_eight_steps_each_give_their_own_back_in_order() -> None:
    device = Caching()
    stepwise(device)
    before = in_use()
    receipt = idle_release(device, disposable=True)
    rungs = [rung.rung for rung in receipt.rungs if rung.attempt == 1]
    assert [rung for rung in rungs if rung in STEPS] == STEPS
    log = [step for step in device.log if step in STEPS]
    assert [step for i, step in enumerate(log) if step not in log[:i]] == STEPS
    assert is_about(before - in_use(), 7 * 32 * MIB)


@pytest.mark.parametrize("fails", ["to_host", "sessions", "caches", "collect", "fallback"])
def test_r27_a_step_that_fails_stops_no_other(fails: str) -> None:
    device = Caching()
    stepwise(device, fails)
    before = in_use()
    receipt = idle_release(device)
    rung = receipt.rung(fails)
    assert rung is not None
    assert rung.outcome == "failed"
    assert f"{fails}: RuntimeError: {fails} is broken" in (rung.why or "")
    # All others, less the context that is not reset in a live process.
    assert is_about(before - in_use(), 5 * 32 * MIB)


def test_r28_the_fraction_comes_back_after_an_error() -> None:
    for breaks in ("", "trim", "statistics"):
        device = Caching()
        fraction = Fraction(device)
        fraction.breaks = breaks
        device.own_settings = [fraction]
        if breaks == "trim":
            device.trims = lambda: 1 // 0
        kept = device.allocate()
        receipt = idle_release(device)
        assert (fraction.value, fraction.lowered) == (0.9, []), breaks
        assert "fraction" in device.log
        rung = receipt.rung("fraction")
        assert rung is not None
        assert rung.outcome == ("failed" if breaks else "done")
        del kept
        device.return_cached()


def test_r28_a_context_is_reset_only_in_a_disposable_process() -> None:
    device = Caching()
    device.pieces = [Piece(device.log, "context_reset", "reset")]
    kept = device.allocate()
    rung = idle_release(device).rung("context_reset")
    assert rung is not None
    assert rung.outcome == "skipped" and "not disposable" in (rung.why or "")
    assert "reset" not in device.log
    idle_release(device, disposable=True)
    assert "reset" in device.log
    del kept


def test_r29_the_driver_is_looked_up_under_names_that_are_said() -> None:
    # In a process of its own: this one may have found the driver already.
    said = alone(
        """
        import os
        os.environ["LOWTIDE_NVML_LIBRARY"] = "/nowhere/libnvidia-ml.so.1"
        from lowtide import _native
        try:
            _native.nvml_usage("GPU-00000000")
        except RuntimeError as told:
            print(told)
        """
    )
    assert "/nowhere/libnvidia-ml.so.1" in said
    assert "LOWTIDE_NVML_LIBRARY" in said


def test_r30_stronger_steps_only_while_the_target_is_missed() -> None:
    device = Caching()
    held = [device.allocate()]
    strong = Piece(device.log, "sessions", "sessions", lambda: device.free(held.pop()))
    device.pieces = [strong]
    device.free(device.allocate())
    enough = lowtide.release(to=SIZE + 48 * MIB, device=device)
    assert (enough.verdict, "sessions" in device.log) == ("released", False)
    assert held, "what is in use stays"
    more = lowtide.release(to="48 MiB", device=device)
    assert (more.verdict, "sessions" in device.log) == ("released", True)
    assert more.target == "at most 48.0 MiB"


def test_r30_several_attempts_until_the_target_is_met() -> None:
    device = Caching()
    held = [device.allocate(48 * MIB) for _ in range(3)]

    def one() -> None:
        if held:
            device.free(held.pop())

    device.pieces = [Piece(device.log, "caches", "caches", one)]
    receipt = lowtide.release(to="40 MiB", device=device)
    assert receipt.verdict == "released", receipt
    assert max(rung.attempt for rung in receipt.rungs) == 2


def test_r31_all_streams_are_synchronised_before_and_after() -> None:
    device = Caching()
    device.free(device.allocate())
    device.pieces = [Piece(device.log, "caches", "caches")]
    lowtide.release(device=device)
    assert device.log[0] == "synchronise"
    assert device.log[-1] == "synchronise"
    assert "trim" in device.log[1:-1]


def test_r32_the_summary_has_before_after_and_freed() -> None:
    device = Caching()
    device.free(device.allocate(100 * MIB))
    lines = lowtide.empty_device_cache(device).summary().splitlines()
    assert [line.split()[0] for line in lines] == ["Before:", "After:", "Freed:"]
    assert "reserved    100.00 MiB" in lines[0]
    assert "reserved      0.00 MiB" in lines[1]
    assert "reserved    100.00 MiB" in lines[2]
    assert all("in use on the device" in line for line in lines)


def test_r33_an_idle_process_reaches_fifty_mb() -> None:
    device = Caching()
    models = [device.allocate(256 * MIB) for _ in range(3)]
    sessions = Piece(device.log, "sessions", "sessions", lambda: [*map(device.free, models)])

    def close() -> None:
        while models:
            device.free(models.pop())

    sessions.work = close
    device.pieces = [sessions]
    device.free(device.allocate(256 * MIB))
    assert (device.own() or 0) > 1000 * MIB
    with lowtide.idle("20ms", device=device, to=50_000_000) as switch:
        with switch.work():
            assert switch.last is None
        until(lambda: switch.last is not None)
        assert switch.last is not None
        assert switch.last.verdict == "released", switch.last
    assert (device.own() or 0) < 50_000_000


def test_r34_a_missed_target_names_what_is_left_and_what_frees_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = Caching()
    kept = device.allocate()
    receipt = lowtide.release(to="8 MiB", device=device)
    assert receipt.verdict in ("no-effect", "partial")
    assert any(
        "96.0 MiB are live (" in line and ("free them" in line or "lowtide.why" in line)
        for line in receipt.advice
    ), receipt.advice
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "96.0 MiB are live (" in record.getMessage()
    del kept


def test_r35_each_step_says_what_it_touched_or_that_it_was_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = Caching()
    device.free(device.allocate())
    device.pieces = [
        Piece(device.log, "caches", "caches", lambda: "my cache"),
        Piece(device.log, "collect", "collect"),
    ]
    caplog.set_level(logging.DEBUG, "lowtide")
    receipt = lowtide.release(device=device)
    for rung in receipt.rungs:
        assert str(rung) in caplog.text
        if rung.outcome == "done":
            assert "touched" in str(rung)
    caches, trim = receipt.rung("caches"), receipt.rung("trim")
    assert caches is not None and caches.touched == [Touch("my cache")]
    assert "touched my cache" in str(caches)
    assert trim is not None and "touched nothing" in str(trim), "the collector's rung had it"


def test_r36_others_on_the_device_are_shown() -> None:
    device = Caching()
    device.neighbours = [ProcessUsage("pid 4711", 3 << 30)]
    ledger = lowtide.empty_device_cache(device).ledger
    assert ledger is not None
    (line,) = [line for line in ledger.lines if line.kind == LedgerKind.OTHERS]
    assert (line.name, line.bytes) == ("pid 4711", 3 << 30)
    known = sum(line.bytes for line in ledger.lines)
    assert known + ledger.unknown_bytes == ledger.driver_bytes, "and it adds up"
