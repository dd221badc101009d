"""`lowtide.asgi.Idle`, with the protocol driven by hand, and in a server whose clients break off."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import re
import socket
import struct
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import lowtide
import pytest
from alone import alone
from kernel import MIB, PATIENCE_S, Caching, until
from lowtide._idle import idle as switches
from lowtide._rungs import registry
from lowtide._rungs.registered import ModelsToHost
from lowtide.asgi import Idle, Message

TO = "16 MiB"
LIFE = ["lifespan.startup.complete", "lifespan.shutdown.complete"]
START, BODY = "http.response.start", "http.response.body"


class Model:
    """A model that leaves its device and comes back when it may, and an application that uses it."""

    def __init__(self) -> None:
        self.device = Caching()
        self.device.kind = "test"
        self.device.pieces = [ModelsToHost(self.device)]
        self.gate = lowtide.Gate(self.device)
        self.weights = [self.device.allocate(48 * MIB)]
        self.fails, self.leaves, self.wakes = False, threading.Event(), threading.Event()
        self.may_leave, self.may_wake = threading.Event(), threading.Event()
        self.may_leave.set()
        self.may_wake.set()
        # By path: whether the application was a task, and whether the weights were there.
        self.seen: list[tuple[str, bool, bool]] = []

    def to(self, device: str) -> None:
        if device == "cpu":
            self.leaves.set()
            assert self.may_leave.wait(PATIENCE_S)
            while self.weights:
                self.device.free(self.weights.pop())
            return
        self.wakes.set()
        assert self.may_wake.wait(PATIENCE_S)
        if self.fails:
            raise RuntimeError("CUDA out of memory")
        self.weights = self.weights or [self.device.allocate(48 * MIB)]

    def stay_asleep(self) -> None:
        """Goes off the device, as in an idle release, until it may wake."""
        lowtide.release(to=TO, device=self.device)
        assert not self.weights
        self.wakes.clear()
        self.may_wake.clear()

    def serve(self, after: str = "1h", **options: Any) -> Idle:
        return Idle(self.app, after, to=TO, device=self.device, **options)

    async def app(self, scope: Message, receive: Any, send: Any) -> None:
        """Lives, or answers with the body of the request, as its path says."""
        path, body, message = scope["path"], b"", {"more_body": True}
        if scope["type"] == "lifespan":
            return await self.live(path, receive, send)
        while message.get("more_body"):
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
        await send({"type": START, "status": 200, "headers": []})
        self.see(path)
        if path == "/raises":
            raise LookupError("the application's own")
        await send({"type": BODY, "body": body, "more_body": True})
        await asyncio.sleep(0.002)
        self.see(path)
        return await send({"type": BODY})

    async def live(self, path: str, receive: Any, send: Any) -> None:
        assert path != "/refuses"
        for said in LIFE if path != "/returns" else []:
            await receive()
            self.see(path)
            if path == "/raises":
                raise LookupError("the application's own")
            await send({"type": "lifespan.startup.failed" if path == "/fails" else said})
            if path == "/fails":
                break

    def see(self, path: str) -> None:
        self.seen.append((path, self.gate.active > 0, bool(self.weights)))

    @property
    def is_idle(self) -> bool:
        return self.gate.active == 0 and not self.weights


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    gc.freeze()  # Each release collects garbage, and here not among the objects of torch.
    monkeypatch.setattr(registry, "models", registry.Registered("model"))
    model = lowtide.register_model(Model())
    yield model
    gc.unfreeze()
    model.may_leave.set()
    model.may_wake.set()
    switches._end_all()
    assert model.gate.active == 0
    model.weights.clear()
    model.device.trim()


async def ask(app: Any, path: str = "/", kind: str = "http", **scope: Any) -> list[str]:
    """Drives a request, a WebSocket or a whole lifespan. Returns what the application sends."""
    events, sent = ["startup", "shutdown"] if kind == "lifespan" else ["request"], []

    async def receive() -> Message:
        await asyncio.sleep(0)
        return {"type": f"{kind}.{events.pop(0)}"}

    async def send(message: Message) -> None:
        await asyncio.sleep(0)
        sent.append(message["type"])

    await app({"type": kind, "path": path, **scope}, receive, send)
    return sent


async def comes(happens: Callable[[], object]) -> None:
    """Waits without stopping the event loop."""
    end = time.monotonic() + PATIENCE_S
    while not happens():
        assert time.monotonic() < end, "it never happened"
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("is_task", "options", "scope"),
    [
        (True, {}, {"path": "/"}),
        (True, {"ignore": ["/health"]}, {"path": "/events", "kind": "websocket"}),
        (True, {"ignore": ["/health", "/api"]}, {"path": "/api/healthy", "root_path": "/api"}),
        (False, {"ignore": "/health"}, {"path": "/health"}),
        (False, {"ignore": ["/health"]}, {"path": "/api/health", "root_path": "/api"}),
        (False, {"ignore": ["/api/health"]}, {"path": "/api/health", "root_path": "/api"}),
        (False, {"ignore": ["/events"]}, {"path": "/events", "kind": "websocket"}),
        (False, {"after": "off"}, {"path": "/"}),
    ],
)
def test_a_request_is_a_task(model: Model, is_task: bool, options: Any, scope: Any) -> None:
    app = model.serve(**options)
    model.stay_asleep()
    if is_task:
        model.may_wake.set()
    assert asyncio.run(ask(app, **scope)) == [START, BODY, BODY]
    assert model.seen == [(scope["path"], is_task, is_task)] * 2 and model.gate.active == 0


@pytest.mark.parametrize(("many", "fails"), [(1000, False), (20, True)])
def test_the_event_loop_goes_on_during_a_wake(model: Model, many: int, fails: bool) -> None:
    async def visit() -> set[type]:
        before = threading.active_count()
        waiting = [asyncio.create_task(ask(app)) for _ in range(many)]
        await comes(model.wakes.is_set)
        assert len(await ask(app, "/health")) == 3
        assert await asyncio.to_thread(lambda: "free") == "free", "the loop's threads, too"
        assert threading.active_count() <= before + 3
        assert not any(task.done() for task in waiting)
        model.may_wake.set()
        return set(map(type, await asyncio.gather(*waiting, return_exceptions=True)))

    app = model.serve(ignore=["/health"])
    model.stay_asleep()
    model.fails = fails
    assert asyncio.run(visit()) == {RuntimeError if fails else list}
    assert model.gate.active == 0
    model.fails = False
    assert len(asyncio.run(ask(app))) == 3 and model.weights


@types.coroutine
def cancelled_at(number: int, coroutine: Any, late: bool) -> Any:
    """Cancels a coroutine in its n-th wait, or late: when that is over, before the coroutine knows."""
    task, failure = asyncio.current_task(), None
    with suppress(StopIteration):
        for step in itertools.count():
            waits = coroutine.throw(failure) if failure else coroutine.send(None)
            if step == number and late and waits is not None:
                waits.add_done_callback(lambda _: task.cancel())
            elif step == number:
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                failure = yield waits
            except BaseException as raised:  # noqa: BLE001  It is the coroutine's.
                failure = raised


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize("kind", ["http", "websocket", "lifespan"])
def test_each_wait_can_be_cancelled(model: Model, kind: str, sleeps: bool, late: bool) -> None:
    # The number of the wait for the wake, which is cancelled during it or after it.
    wake = 1 if kind == "lifespan" else 0

    async def visit(number: int) -> bool:
        task = asyncio.ensure_future(cancelled_at(number, ask(app, kind=kind), late))
        await comes(lambda: model.wakes.is_set() or task.done() or not sleeps)
        if late or number != wake:
            model.may_wake.set()
        with suppress(asyncio.CancelledError):
            await task
        model.may_wake.set()
        # The next one is served, and what the cancelled one had begun ends.
        assert len(await ask(app)) == 3
        await comes(lambda: model.gate.active == 0)
        return task.cancelled()

    app = model.serve()
    for number in itertools.count():
        if sleeps:
            model.stay_asleep()
        if not asyncio.run(visit(number)):
            break
    assert number == 5 + sleeps, "every wait of it"


def test_an_event_loop_may_end_during_a_wake(model: Model) -> None:
    async def visit() -> None:
        tasks.append(asyncio.create_task(ask(app)))
        await comes(model.wakes.is_set)

    app, tasks, loop = model.serve(), [], asyncio.new_event_loop()
    model.stay_asleep()
    loop.run_until_complete(visit())
    loop.close()
    tasks.clear()
    model.may_wake.set()
    until(lambda: model.weights)
    # A coroutine that nobody ends is garbage, together with its task.
    until(lambda: gc.collect() is None or model.gate.active == 0)
    assert len(asyncio.run(ask(app))) == 3


@pytest.mark.parametrize("after", ["50ms", "task"])
def test_memory_is_released_after_a_thousand_requests(model: Model, after: str) -> None:
    async def visit() -> None:
        model.leaves.clear()
        model.may_leave.clear()
        paths = [dice.choice(["/", "/", "/raises"]) for _ in range(1000)]
        tasks = [asyncio.create_task(ask(app, path)) for path in paths]
        for task in tasks[::2]:
            asyncio.get_running_loop().call_later(dice.random() / 20, task.cancel)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert set(map(type, results)) == {list, LookupError, asyncio.CancelledError}
        # The event loop goes on while the model leaves.
        await comes(model.leaves.is_set)
        model.may_leave.set()
        await comes(lambda: model.is_idle)

    app, dice = model.serve(after), random.Random(7)
    for _ in range(2):
        asyncio.run(visit())
    assert set(model.seen) == {("/", True, True), ("/raises", True, True)}
    until(lambda: app._idle.last and app._idle.last.verdict == "released")


@pytest.mark.parametrize(
    ("path", "said", "tasks"),
    [
        ("/lives", LIFE, [True, False]),
        ("/returns", LIFE, []),
        ("/refuses", LIFE, []),
        ("/fails", ["lifespan.startup.failed"], [True]),
        ("/raises", None, [True]),
    ],
)
def test_the_start_is_a_task(model: Model, path: str, said: Any, tasks: list[bool]) -> None:
    app, threads = model.serve(), threading.active_count()
    with nullcontext() if said else pytest.raises(LookupError, match="own"):
        assert asyncio.run(ask(app, path, "lifespan")) == said
    assert ([is_task for _, is_task, _ in model.seen], model.gate.active) == (tasks, 0)
    if said == LIFE:
        assert app._idle is None
        until(lambda: threading.active_count() == threads)


@pytest.mark.parametrize("wrong", [{"after": "soon"}, {"to": "512"}, {"device": "gpu-0:x"}])
def test_what_cannot_be_read_is_refused_when_the_server_is_made(wrong: Any) -> None:
    with pytest.raises(ValueError):
        Idle(lambda *_: None, **wrong)


SERVES = """
import asyncio, logging, lowtide, os, sys, threading
os.environ.pop("LOWTIDE_DEVICE", None)
logging.basicConfig(format="%(message)s", stream=sys.stdout)
async def app(scope, receive, send):
    print(scope["path"])
    if scope["path"] == "late":
        os.environ["LOWTIDE_DEVICE"] = "cpu"
served = lowtide.asgi.Idle(app, "1h")
def ask(path):
    asyncio.run(served({"type": "http", "path": path}, None, None))
    if served._idle:
        print(served._idle._native.tick().why_not, flush=True)
"""
FORKS = """
os.environ["LOWTIDE_DEVICE"] = "cpu"
served = lowtide.asgi.Idle(app, "1h")
assert threading.active_count() == 1
child = os.fork()
ask("late")
os._exit(child and os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("for path in 'abcd': ask(path)", r"a\nb\n.*not imported.*LOWTIDE_DEVICE=cpu.*\nc\nd\n"),
        ("ask('late')", r"late\n.*s are left\n"),  # The task that has found the device counts.
        (FORKS, r"(late\n.*s are left\n){2}|(late\n){2}(.*s are left\n){2}"),
    ],
)
def test_a_server_is_made_before_it_has_a_device(program: str, says: str) -> None:
    assert re.fullmatch(says, alone(SERVES + program))


async def client(port: int, dice: random.Random, counts: Counter[str]) -> None:
    """Sends requests, and resets some: in the head, in the body, when sent, when half answered."""
    for _ in range(3):
        path, body = dice.choice(["/", "/", "/raises"]), dice.randbytes(dice.randrange(1, 2000))
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        sent, read = dice.choice([(None, -1)] * 3 + [(40, 0), (-1, 0), (None, 0), (None, 10)])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request[:sent])
        answer = await reader.read(read)
        if read == -1:
            assert path == "/raises" or (body in answer and answer.endswith(b"0\r\n\r\n")), answer
        else:
            await asyncio.sleep(dice.random() / 50)
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()
        counts["answered" if read == -1 else "broken"] += 1


def test_a_server_under_load_sleeps_and_wakes(model: Model, caplog: Any) -> None:
    uvicorn = pytest.importorskip("uvicorn")

    async def visit(listening: socket.socket) -> None:
        serving = asyncio.create_task(server.serve([listening]))
        # It sleeps also if no request has ever come.
        await comes(lambda: model.is_idle)
        model.may_wake.clear()
        counts, dice, port = Counter(), random.Random(7), listening.getsockname()[1]
        clients = asyncio.gather(*(client(port, dice, counts) for _ in range(200)))
        # Some break off while the others wait for the wake.
        await comes(lambda: counts["broken"] > 20 and model.wakes.is_set())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b" 200 " in await reader.read() and not counts["answered"]
        writer.close()
        model.may_wake.set()
        await clients
        await comes(lambda: model.is_idle)
        server.should_exit = True
        await serving

    server = uvicorn.Server(uvicorn.Config(model.serve("300ms", ignore="/health"), log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listening, caplog.at_level("INFO"):
        asyncio.run(visit(listening))
    assert {seen[1:] for seen in model.seen if seen[0] != "/health"} == {(True, True)}
    assert "shutdown complete" in caplog.text and "RuntimeError" not in caplog.text
