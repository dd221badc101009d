"""`lowtide.asgi.Idle`, with the protocol driven by hand. The tests in test_asgi_server.py have a server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import threading
import types
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import lowtide
import pytest
from alone import alone
from kernel import Caching, until
from lowtide._rungs import registry
from lowtide._rungs.registered import ModelsToHost
from lowtide.asgi import Idle, Message, Receive, Send

TO = "16 MiB"


class Model:
    """A model that comes back to the device when `may_wake` is set."""

    def __init__(self, device: Caching) -> None:
        self.device, self.weights = device, [device.allocate()]
        self.may_wake, self.wakes = threading.Event(), threading.Event()
        self.may_wake.set()
        self.fails = False
        self.threads: set[int] = set()

    def to(self, device: str) -> None:
        self.threads.add(threading.get_ident())
        if device == "cpu":
            while self.weights:
                self.device.free(self.weights.pop())
            return
        self.wakes.set()
        assert self.may_wake.wait(60)
        if self.fails:
            raise RuntimeError("CUDA out of memory")
        self.weights = self.weights or [self.device.allocate()]


@pytest.fixture
def device(clean: None, monkeypatch: pytest.MonkeyPatch) -> Caching:
    monkeypatch.setattr(registry, "models", registry.Registered("model"))
    device = Caching()
    device.kind = "test"
    device.pieces = [ModelsToHost(device)]
    return device


@pytest.fixture
def model(device: Caching) -> Iterator[Model]:
    model = lowtide.register_model(Model(device))
    yield model
    model.may_wake.set()


@contextlib.contextmanager
def idle(app: Any, device: Caching, after: str = "1h", **options: Any) -> Iterator[Idle]:
    middleware = Idle(app, after, to=TO, device=device, **options)
    try:
        yield middleware
    finally:
        if middleware._idle is not None:
            middleware._idle.close()


def active(device: Caching) -> int:
    return lowtide.Gate(device).active


def asleep(device: Caching, model: Model) -> None:
    """Takes the model off the device, as an idle release does."""
    model.may_wake.set()
    model.wakes.clear()
    lowtide.release(to=TO, device=device)
    assert not model.weights


async def receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def ask(app: Any, path: str = "/", kind: str = "http", **scope: Any) -> list[Message]:
    """Sends one request. Returns what the application has sent."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        await asyncio.sleep(0)
        sent.append(message)

    await app({"type": kind, "path": path, **scope}, receive, send)
    return sent


async def ok(scope: Message, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def test_a_request_is_a_task_until_the_application_returns(device: Caching) -> None:
    seen: list[int] = []

    async def streams(scope: Message, receive: Receive, send: Send) -> None:
        for part in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": part < 2})
            seen.append(active(device))

    with idle(streams, device) as app:
        for kind in ("http", "websocket"):
            sent = asyncio.run(ask(app, kind=kind))
            assert (len(sent), seen) == (3, [1, 1, 1])
            assert active(device) == 0
            seen.clear()


def test_an_exception_is_the_applications_own_and_ends_the_task(device: Caching) -> None:
    async def fails(scope: Message, receive: Receive, send: Send) -> None:
        raise LookupError(active(device))

    with idle(fails, device) as app:
        with pytest.raises(LookupError, match="1"):
            asyncio.run(ask(app))
        assert active(device) == 0


@pytest.mark.parametrize(
    ("ignore", "scope"),
    [
        (["/health"], {"path": "/health"}),
        ("/health", {"path": "/health"}),
        (["/health"], {"path": "/api/health", "root_path": "/api"}),
        (["/api/health"], {"path": "/api/health", "root_path": "/api"}),
        (["/events"], {"path": "/events", "kind": "websocket"}),
    ],
)
def test_what_is_ignored_is_no_task_and_waits_for_nothing(
    device: Caching, model: Model, ignore: Any, scope: dict[str, str]
) -> None:
    seen = []

    async def counts(of: Message, receive: Receive, send: Send) -> None:
        seen.append(active(device))

    async def visit() -> None:
        await ask(app, **scope)
        await ask(app, **scope | {"path": "/api/healthy"})

    with idle(counts, device, ignore=ignore) as app:
        asleep(device, model)
        asyncio.run(ask(app, **scope))
        assert not model.weights, "and brings nothing back"
        asyncio.run(visit())
    assert seen == [0, 0, 1]


def test_the_event_loop_goes_on_while_a_thousand_requests_wait_in_one_thread(
    device: Caching, model: Model
) -> None:
    async def visit() -> None:
        asleep(device, model)
        model.may_wake.clear()
        before = threading.active_count()
        waiting = [asyncio.create_task(ask(app)) for _ in range(1000)]
        while not model.wakes.is_set():
            await asyncio.sleep(0.001)
        assert len(await ask(app, "/health")) == 2
        assert await asyncio.to_thread(lambda: "free") == "free", "the loop's threads, too"
        assert threading.active_count() <= before + 3
        assert not any(task.done() for task in waiting)
        model.may_wake.set()
        assert [len(sent) for sent in await asyncio.gather(*waiting)] == [2] * 1000
        assert threading.get_ident() not in model.threads - {here}

    here = threading.get_ident()
    with idle(ok, device, ignore=["/health"]) as app:
        asyncio.run(visit())
        assert active(device) == 0 and model.weights


def test_a_failed_wake_fails_its_requests_and_the_next_one_tries_again(
    device: Caching, model: Model
) -> None:
    with idle(ok, device) as app:
        asleep(device, model)
        model.fails = True
        with pytest.raises(RuntimeError, match="CUDA out of memory"):
            asyncio.run(ask(app))
        assert active(device) == 0
        model.fails = False
        assert len(asyncio.run(ask(app))) == 2
        assert active(device) == 0 and model.weights


@types.coroutine
def cancelled_at(number: int, coroutine: Coroutine[Any, Any, Any], late: bool) -> Any:
    """Runs a coroutine and cancels it while it waits for the n-th time. Returns how often it has waited.

    `late` cancels when the n-th wait is over, before the coroutine has learned so.
    """
    task = asyncio.current_task()
    assert task is not None
    failure: BaseException | None = None
    for step in itertools.count():
        try:
            waits = coroutine.send(None) if failure is None else coroutine.throw(failure)
        except StopIteration:
            return step
        if step == number and late and waits is not None:
            waits.add_done_callback(lambda _: task.cancel())
        elif step == number:
            asyncio.get_running_loop().call_soon(task.cancel)
        try:
            yield waits
            failure = None
        except BaseException as raised:  # noqa: BLE001  It is the coroutine's.
            failure = raised
    return None


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_request_that_is_cancelled_at_any_wait_leaves_no_task(
    device: Caching, model: Model, sleeps: bool, late: bool, kind: str
) -> None:
    async def visit(number: int) -> bool:
        task = asyncio.ensure_future(cancelled_at(number, ask(app, kind=kind), late))
        if sleeps:
            while not model.wakes.is_set():
                await asyncio.sleep(0.001)
            # The first wait is the one for the wake, and is cancelled during it or after it.
            if late or number > 0:
                model.may_wake.set()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            model.may_wake.set()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        # Whoever comes next is served, and what the cancelled one had begun ends.
        assert len(await ask(app)) == 2
        while active(device):
            await asyncio.sleep(0.001)
        return task.cancelled()

    with idle(ok, device) as app:
        for number in itertools.count():
            if sleeps:
                asleep(device, model)
                model.may_wake.clear()
            if not asyncio.run(visit(number)):
                break
        assert number == 2 + sleeps, "every wait of it"


@pytest.mark.parametrize("cancels", [True, False])
def test_an_event_loop_that_ends_during_a_wake_leaves_no_task(
    device: Caching, model: Model, cancels: bool
) -> None:
    async def visit() -> None:
        tasks.append(asyncio.create_task(ask(app)))
        while not model.wakes.is_set():
            await asyncio.sleep(0.001)

    tasks: list[asyncio.Task[Any]] = []
    with idle(ok, device) as app:
        asleep(device, model)
        model.may_wake.clear()
        loop = asyncio.new_event_loop()
        loop.run_until_complete(visit())
        if cancels:
            tasks[0].cancel()
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()
        tasks.clear()
        model.may_wake.set()
        until(lambda: model.weights)
        # A coroutine that nobody ends is garbage, together with its task.
        until(lambda: gc.collect() is None or active(device) == 0)
        assert len(asyncio.run(ask(app))) == 2


def test_after_a_thousand_requests_with_cancellations_memory_is_released(
    device: Caching, model: Model
) -> None:
    dice = random.Random(7)

    async def works(scope: Message, receive: Receive, send: Send) -> None:
        assert model.weights, "nothing is released under a request"
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(dice.random() / 100)
        assert model.weights
        if dice.random() < 0.1:
            raise LookupError
        await ok(scope, receive, send)

    async def visit() -> None:
        tasks = [asyncio.create_task(ask(app)) for _ in range(1000)]
        for task in tasks:
            if dice.random() < 0.5:
                loop = asyncio.get_running_loop()
                loop.call_later(dice.random() / 20, task.cancel)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in results} == {list, LookupError, asyncio.CancelledError}
        while active(device):
            await asyncio.sleep(0.001)
        while model.weights:
            await asyncio.sleep(0.001)
        assert model.threads.isdisjoint({threading.get_ident()}), "not by the event loop's thread"

    with idle(works, device, "50ms") as app:
        for _ in range(2):
            asyncio.run(visit())
        switch = app._idle
        assert switch is not None
        until(lambda: switch.last is not None)
        assert switch.last is not None and switch.last.verdict == "released"


def test_the_end_of_the_last_task_releases_at_once_in_another_thread(
    device: Caching, model: Model
) -> None:
    async def visit() -> None:
        await asyncio.gather(*(ask(app) for _ in range(20)))
        while model.weights:
            await asyncio.sleep(0.001)

    with idle(ok, device, "task") as app:
        asyncio.run(visit())
    assert threading.get_ident() not in model.threads


async def live(app: Any, *events: str) -> list[str]:
    """Lets an application live. Returns what it says of these events of its life."""
    coming, said = [f"lifespan.{event}" for event in events], []

    async def receive() -> Message:
        await asyncio.sleep(0)
        return {"type": coming.pop(0)}

    async def send(message: Message) -> None:
        await asyncio.sleep(0)
        said.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    return said


BOTH = ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_the_start_is_a_task_and_the_end_ends_the_thread(device: Caching, model: Model) -> None:
    seen: list[int] = []

    async def lives(scope: Message, receive: Receive, send: Send) -> None:
        for said in BOTH:
            await receive()
            seen.append(active(device))
            await send({"type": said})
        seen.append(active(device))

    threads = threading.active_count()
    with idle(lives, device, "1ms") as app:

        async def visit() -> list[str]:
            said = await live(app, "startup", "shutdown")
            assert app._idle is None
            return said

        assert asyncio.run(visit()) == BOTH
        assert seen == [1, 0, 0]
    until(lambda: threading.active_count() == threads)


async def none_by_return(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await ok(scope, receive, send)


async def none_by_error(scope: Message, receive: Receive, send: Send) -> None:
    assert scope["type"] == "http"
    await ok(scope, receive, send)


@pytest.mark.parametrize("app", [none_by_return, none_by_error])
def test_an_application_without_a_life_has_one(device: Caching, app: Any) -> None:
    with idle(app, device) as served:
        assert asyncio.run(live(served, "startup", "shutdown")) == BOTH
        assert active(device) == 0
        assert len(asyncio.run(ask(served))) == 2


def test_a_start_that_fails_is_the_applications_own(device: Caching) -> None:
    async def raises(scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        raise LookupError("no weights")

    async def says(scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no weights"})

    with idle(raises, device) as app, pytest.raises(LookupError):
        asyncio.run(live(app, "startup"))
    with idle(says, device) as app:
        assert asyncio.run(live(app, "startup")) == ["lifespan.startup.failed"]
    assert active(device) == 0


@pytest.mark.parametrize("number", range(4))
def test_a_life_that_is_cancelled_at_any_wait_leaves_no_task(device: Caching, number: int) -> None:
    async def lives(scope: Message, receive: Receive, send: Send) -> None:
        for said in BOTH:
            await receive()
            await send({"type": said})

    with idle(lives, device) as app:
        run: Callable[[], Any] = lambda: cancelled_at(
            number, live(app, "startup", "shutdown"), True
        )
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(awaited(run))
        assert active(device) == 0


async def awaited(make: Callable[[], Any]) -> None:
    await make()


def test_switched_off_it_passes_everything_on(device: Caching, monkeypatch: Any) -> None:
    threads = threading.active_count()
    with idle(ok, device, "off") as app:
        assert len(asyncio.run(ask(app))) == 2
    monkeypatch.setenv("LOWTIDE_FREE_ON_IDLE", "off")
    with idle(ok, device) as app:
        assert len(asyncio.run(ask(app))) == 2
        assert app._idle is None
    assert threading.active_count() == threads


@pytest.mark.parametrize("wrong", [{"after": "soon"}, {"to": "512"}, {"device": "gpu-0:x"}])
def test_what_cannot_be_read_is_refused_when_the_server_is_made(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        Idle(ok, **wrong)  # type: ignore[arg-type]


SERVES = """
import asyncio, logging, os, sys, threading
os.environ.pop("LOWTIDE_DEVICE", None)
import lowtide
logging.basicConfig(format="%(message)s", stream=sys.stdout)
async def app(scope, receive, send):
    await send(scope["path"])
served = lowtide.asgi.Idle(app, "1h")
async def send(path): print(path)
def ask(path): asyncio.run(served({"type": "http", "path": path}, None, send))
"""


def test_without_a_device_it_says_so_once_and_serves() -> None:
    said = alone(SERVES + "for path in 'abcd': ask(path)").splitlines()
    told = [line for line in said if "free on idle" in line]
    assert [line for line in said if line not in told] == ["a", "b", "c", "d"]
    assert len(told) == 1 and "torch is not imported" in told[0] and "LOWTIDE_DEVICE=cpu" in told[0]


def test_it_begins_when_the_first_request_has_found_a_device() -> None:
    said = alone(
        SERVES
        + """
async def app(scope, receive, send):
    os.environ["LOWTIDE_DEVICE"] = "cpu"
served = lowtide.asgi.Idle(app, "1h")
ask("a")
print(served._idle.enabled, served._idle._native.tick().why_not)
"""
    )
    assert said.startswith("True ") and "s are left" in said, "and the task counts"


def test_a_process_forked_from_the_one_that_made_the_server_has_its_own_idle_time() -> None:
    said = alone(
        SERVES
        + """
os.environ["LOWTIDE_DEVICE"] = "cpu"
child = os.fork()
ask("a")
print(served._idle._native.tick().why_not.split("than")[0])
sys.stdout.flush()
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    os._exit(0)
"""
    ).splitlines()
    assert len(said) == 4 and said[:2] == said[2:]
