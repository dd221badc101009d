"""What a release took off the device is back before the next task begins."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import lowtide
import pytest
import torch
from kernel import MIB, SIZE, Caching, in_use, is_about
from lowtide import _native
from lowtide._rungs import registry
from lowtide._rungs.registered import ModelsToHost, Sessions

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture(autouse=True)
def fresh_registries(monkeypatch: Any) -> None:
    monkeypatch.setattr(registry, "models", registry.Registered("model"))
    monkeypatch.setattr(registry, "sessions", registry.Registered("session"))


class Model:
    """A model with real memory: on the device, or nowhere (so that the kernel's number shows it)."""

    def __init__(self, device: Caching, log: list[str], name: str = "model") -> None:
        self.device, self.log, self.name = device, log, name
        self.fails = False
        self.at, self.weights = device.name, device.allocate()

    def to(self, device: str) -> Model:
        if self.fails and device != "cpu":
            raise RuntimeError("CUDA out of memory")
        self.log.append(f"{self.name} to {device}")
        if device == "cpu" and self.weights is not None:
            self.device.free(self.weights)
            self.weights = None
        elif device != "cpu" and self.weights is None:
            self.weights = self.device.allocate()
        self.at = device
        return self

    def __call__(self) -> str:
        return self.at


class Session:
    """A session with real memory."""

    def __init__(self, device: Caching) -> None:
        self.device = device
        self.native: torch.Tensor | None = device.allocate(64 * MIB)

    def close(self) -> None:
        if self.native is not None:
            self.device.free(self.native)
            self.native = None

    def __del__(self) -> None:
        self.close()


@pytest.fixture
def device() -> Caching:
    device = Caching()
    device.kind = "test"  # Models are moved off everything but host memory.
    device.pieces = [ModelsToHost(device), Sessions()]
    return device


@pytest.fixture
def model(device: Caching) -> Model:
    return lowtide.register_model(Model(device, []))


def idled(device: Caching, switch: str = "0ms") -> lowtide.Idle:
    """Idle without its thread: the tests tick."""
    idle = lowtide.Idle("off", device=device)
    idle._native = _native.Idle(lowtide._release.releasers.releaser_of(device), switch, to="16 MiB")
    return idle


def test_the_second_request_finds_its_model_on_the_device(device: Caching, model: Model) -> None:
    idle = idled(device)
    used = in_use()
    with idle.work() as work:
        assert model() == device.name
        assert work._working is not None and work._working.restored is None
    receipt = idle.tick()
    assert receipt is not None and receipt.verdict == "released", receipt
    assert model() == "cpu" and is_about(used - in_use(), SIZE)
    work = idle.work()
    assert model() == device.name, "before it returns"
    assert is_about(in_use(), used)
    with work:
        assert model() == device.name
    assert idle.restored is not None and idle.restored.proved
    assert [touch.what for touch in idle.restored.touched] == ["model Model"]
    assert "restored model Model, 96.0 MiB" in str(idle.restored), "its size was measured"


def test_all_come_back_in_the_order_of_their_registration_and_sessions_last(
    device: Caching,
) -> None:
    log: list[str] = []
    models = [lowtide.register_model(Model(device, log, name), name) for name in ("one", "two")]

    def open_it() -> Session:
        log.append("open")
        return Session(device)

    session = lowtide.register_session(Session(device), name="ort", open=open_it)
    idle = idled(device)
    idle.work().leave()
    assert idle.tick() is not None
    assert session.native is None
    log.clear()
    with idle.work():
        assert log == [f"one to {device.name}", f"two to {device.name}", "open"]
        assert session.native is not None, "the program's own object is open again"
        gc.collect()
        assert session.native is not None, "and stays open when the one it was made from is gone"
    assert idle.restored is not None
    named = [touch.what for touch in idle.restored.touched]
    assert named == ["model one", "model two", "session ort"]
    with idle.work():
        assert len(log) == 3, "a second task has nothing to wait for"
    del models


def test_work_that_arrives_during_the_release_finds_everything_back(
    device: Caching, model: Model
) -> None:
    seen: list[str] = []
    moving = threading.Event()

    class Slow(ModelsToHost):
        def run(self, round: int) -> Any:
            moving.set()
            return super().run(round)

    device.pieces = [Slow(device)]
    idle = idled(device)

    def serve() -> None:
        moving.wait(20)
        with idle.work():
            seen.append(model())

    idle.work().leave()
    threads = [threading.Thread(target=serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    idle.tick()
    for thread in threads:
        thread.join(20)
    assert seen == [device.name] * 3


def test_what_cannot_come_back_is_named_and_the_next_task_tries_again(device: Caching) -> None:
    log: list[str] = []
    bad = lowtide.register_model(Model(device, log, "bad"), "bad")
    good = lowtide.register_model(Model(device, log, "good"), "good")
    idle = idled(device)
    idle.work().leave()
    idle.tick()
    bad.fails = True
    with pytest.raises(RuntimeError, match=r"model bad: RuntimeError: CUDA out of memory"):
        idle.work()
    assert idle._native.tick().why_not != "tasks are running: 1", "the task has not begun"
    bad.fails = False
    with idle.work():
        assert (bad(), good()) == (device.name, device.name)


def test_the_gate_and_restore_bring_them_back_too(device: Caching, model: Model) -> None:
    lowtide.release(to="16 MiB", device=device)
    assert model() == "cpu"
    with lowtide.Gate(device).enter():
        assert model() == device.name
    lowtide.release(to="16 MiB", device=device)
    assert [touch.what for touch in lowtide.restore()] == ["model Model"]
    assert model() == device.name
    assert lowtide.restore(device) == []


def test_a_session_without_a_way_back_is_refused(device: Caching) -> None:
    with pytest.raises(TypeError, match="cannot be registered without open="):
        lowtide.register_session(Session(device))
    with pytest.raises(TypeError, match="no close method"):
        lowtide.register_session(SimpleNamespace(), open=SimpleNamespace)

    class Slotted:
        __slots__ = ("__weakref__",)

        def close(self) -> None: ...
        def reopen(self) -> None: ...

    slotted = Slotted()
    with pytest.raises(TypeError, match="a method of the session itself"):
        lowtide.register_session(slotted, open=Slotted)
    lowtide.register_session(slotted, open=slotted.reopen)
    alive = weakref.ref(slotted)
    del slotted
    assert alive() is None, "nothing is kept alive"


def test_a_model_that_is_not_where_it_was_is_a_failure() -> None:
    class Stays(torch.nn.Linear):
        def to(self, device: str) -> Any:
            return self

    model = Stays(4, 4)
    registry.register_model(model, "stays")
    (entry,) = registry.models.entries()
    entry.was = {"weight": "cuda:0", "bias": "cuda:0"}
    hook = ModelsToHost(SimpleNamespace(kind="cuda", name="cuda:0"))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="weight is on cpu and not on cuda:0"):
        hook.restore()
    assert entry.was, "and is tried again"


class TestAtTheEndOfATask:
    def test_memory_is_free_when_the_block_is_left(self, device: Caching, model: Model) -> None:
        with lowtide.idle("task", device=device, to="16 MiB") as idle:
            used = in_use()
            with idle.work(), idle.work():
                assert model() == device.name
            assert model() == "cpu"
            assert idle.last is not None and idle.last.verdict == "released"
            assert is_about(used - in_use(), SIZE)
            with idle.work():
                assert model() == device.name

    def test_not_while_another_task_is_active(self, device: Caching, model: Model) -> None:
        with lowtide.idle("task", device=device, to="16 MiB") as idle, idle.work():
            with idle.work():
                pass
            assert model() == device.name and idle.last is None

    def test_by_the_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOWTIDE_FREE_ON_IDLE", "task")
        with lowtide.idle(None, device=Caching()) as idle:
            assert idle.enabled and idle.after_s == 0


class TestInACoroutine:
    def test_the_event_loop_goes_on(self, device: Caching, model: Model) -> None:
        gone_on: list[int] = []
        held = threading.Event()

        class Waits(ModelsToHost):
            def run(self, round: int) -> Any:
                assert held.wait(20), "the event loop stood still"
                held.clear()
                return super().run(round)

            def restore(self) -> Any:
                assert held.wait(20), "the event loop stood still"
                held.clear()
                return super().restore()

        device.pieces = [Waits(device)]

        async def beat() -> None:
            while True:
                await asyncio.sleep(0.001)
                gone_on.append(1)
                held.set()

        async def serve(idle: lowtide.Idle) -> str:
            beating = asyncio.create_task(beat())
            async with idle.work():
                assert model() == device.name
            assert model() == "cpu", "released before the block was left"
            async with idle.work() as work:
                said = model() + work.checkpoint()
            beating.cancel()
            return said

        with lowtide.idle("task", device=device, to="16 MiB") as idle:
            assert asyncio.run(serve(idle)) == f"{device.name}go"
        assert gone_on

    def test_a_plain_with_block_hands_the_release_to_the_thread(
        self, device: Caching, model: Model
    ) -> None:

        async def serve(idle: lowtide.Idle) -> None:
            with idle.work():
                assert model() == device.name
            for _ in range(2000):
                if idle.last is not None:
                    return
                await asyncio.sleep(0.01)

        with lowtide.idle("task", device=device, to="16 MiB") as idle:
            asyncio.run(serve(idle))
            assert model() == "cpu"

    def test_one_that_is_cancelled_leaves_no_task_behind(
        self, device: Caching, model: Model
    ) -> None:
        idle = idled(device)
        idle.work().leave()
        idle.tick()
        go_on = threading.Event()

        class Waits(ModelsToHost):
            def restore(self) -> Any:
                go_on.wait(20)
                return super().restore()

        vars(device.pieces[0])["restore"] = lambda: Waits(device).restore()

        async def serve() -> None:
            async def one() -> None:
                async with idle.work():
                    raise AssertionError("cancelled before")

            task = asyncio.create_task(one())
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()
            for _ in range(2000):
                if model() == device.name and lowtide.Gate(device).active == 0:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError("the task did not end")

        asyncio.run(serve())

    def test_cleaning_after_inference_does_not_stop_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads: list[str] = []

        @lowtide.after_inference(device="cpu")
        async def infer() -> int:
            return 7

        between = lowtide.Stages.between

        def noted(self: lowtide.Stages, name: str, **options: Any) -> Any:
            threads.append(threading.current_thread().name)
            return between(self, name, **options)

        monkeypatch.setattr(lowtide.Stages, "between", noted)
        assert asyncio.run(infer()) == 7
        assert threads and threads[0] != threading.main_thread().name


def test_r32_an_idle_release_logs_before_after_and_freed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lowtide")
    device = Caching()
    device.free(device.allocate())
    idle = idled(device)
    idle.work().leave()
    assert idle.tick() is not None
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in lines[-3:]] == ["Before:", "After:", "Freed:"]
    assert all("MiB" in line for line in lines[-3:])


@pytest.fixture(autouse=True)
def no_switch_left() -> Iterator[None]:
    yield
    assert "lowtide-idle" not in {thread.name for thread in threading.enumerate()}, sys.version
