"""`lowtide.asgi.Idle` in a real server, uvicorn, as a process of its own. This process is its clients."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernel import until

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("uvicorn") is None, reason="uvicorn is not installed"
)

SERVER = """
import asyncio, json, logging, sys, threading
import lowtide

logging.basicConfig(level=logging.INFO, stream=sys.stderr)
SIZE = 64 << 20
asked = threading.Event()

class Session:
    def __init__(self):
        self.native = bytearray(SIZE)
    def close(self):
        self.native = None

def reopen():
    # A wake lasts until the health check has been answered.
    asked.clear()
    assert asked.wait(60), "no health check was answered during the wake"
    return Session()

sessions, wakes = [], 0

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            event = (await receive())["type"]
            if event == "lifespan.startup":
                sessions.append(lowtide.register_session(Session(), open=reopen))
            await send({"type": event + ".complete"})
            if event == "lifespan.shutdown":
                return
    path = scope["path"]
    if path == "/health":
        asked.set()
        held = sessions[0].native is not None
        state = {"held": held, "active": lowtide.Gate().active}
        return await answer(send, json.dumps(state).encode())
    # Nothing is released under a request.
    assert sessions[0].native is not None
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message.get("body", b""), message.get("more_body", False)
    if path == "/fails":
        raise LookupError
    if path == "/streams":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(20):
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(0.001)
            assert sessions[0].native is not None
        return await send({"type": "http.response.body", "body": b""})
    await asyncio.sleep(0.002)
    assert len(sessions[0].native) == SIZE
    await answer(send, body[::-1])

async def answer(send, body):
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})

app = lowtide.asgi.Idle(app, after="300ms", to="1 MiB", ignore=["/health"])
"""


class Served:
    """The server's process, its port and its log."""

    def __init__(self, folder: Path) -> None:
        (folder / "served.py").write_text(SERVER)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port: int = taken.getsockname()[1]
            taken.listen()
            self.log = folder / "log"
            with self.log.open("wb") as log:
                # It listens on the socket that it is given.
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "uvicorn", "served:app", "--fd", str(taken.fileno())],
                    cwd=folder,
                    env=os.environ
                    | {"LOWTIDE_DEVICE": "cpu", "PYTHONPATH": ":".join(filter(None, sys.path))},
                    pass_fds=[taken.fileno()],
                    stdout=log,
                    stderr=log,
                )

    def health(self) -> dict[str, Any]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        client.request("GET", "/health")
        answer = json.loads(client.getresponse().read())
        client.close()
        return dict(answer)

    def is_idle(self) -> bool:
        return self.health() == {"held": False, "active": 0}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    server = Served(tmp_path)
    try:
        yield server
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) in (0, -signal.SIGTERM)
        assert "Application shutdown complete" in server.log.read_text()
    finally:
        server.process.kill()
        server.process.wait()


async def client(port: int, dice: random.Random, counts: dict[str, int]) -> None:
    """Sends a few requests, and breaks some connections off in the middle."""
    for _ in range(dice.randrange(1, 5)):
        path = dice.choice(["/", "/", "/", "/streams", "/fails"])
        body = dice.randbytes(dice.randrange(1, 2000))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        breaks = dice.choice([None, None, "in its head", "in its body", "sent", "answered"])
        if breaks in ("in its head", "in its body"):
            request = request[: 40 if breaks == "in its head" else -1]
        writer.write(request)
        await writer.drain()
        if breaks == "answered":
            await reader.read(10)
        elif breaks is not None:
            await asyncio.sleep(dice.random() / 50)
        if breaks is not None:
            # A reset, not an orderly end.
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            counts["broken"] += 1
            continue
        answer = await reader.read()
        writer.close()
        status, told = answer.split(b" ")[1], answer.partition(b"\r\n\r\n")[2]
        if path == "/fails":
            assert status == b"500", answer
        elif path == "/":
            assert (status, told) == (b"200", body[::-1])
        else:
            assert status == b"200" and told.count(body) >= 20 and told.endswith(b"0\r\n\r\n")
        counts["answered"] += 1


async def load(served: Served, seed: int) -> dict[str, int]:
    """Runs clients against a sleeping server, with health checks all the while."""
    counts = {"broken": 0, "answered": 0}
    dice = [random.Random(seed + number) for number in range(100)]
    clients = asyncio.gather(*(client(served.port, each, counts) for each in dice))
    while not clients.done():
        await asyncio.to_thread(served.health)
    await clients
    return counts


def test_a_server_under_load_sleeps_and_wakes_and_answers_health_checks(served: Served) -> None:
    for seed in (0, 1000):
        # It sleeps also if no request has ever come.
        until(served.is_idle)
        counts = asyncio.run(load(served, seed))
        assert counts["broken"] > 50 and counts["answered"] > 50, counts
    until(served.is_idle)
    log = served.log.read_text()
    assert log.count("restored session") >= 2, log
    assert "AssertionError" not in log, log
    assert "RuntimeError" not in log, log
