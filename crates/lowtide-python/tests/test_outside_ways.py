"""`lowtide why PID` from end to end: the ways into a program, and programs that make it difficult.

A part of each way is always tried. `LOWTIDE_TRIALS` (set by `cargo xtask pythons`) has the rest tried as well: that
many questions to a busy server, and programs that are busy, blocked, large or about to die.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from outside import PACKAGE

ROOT = Path(__file__).parents[3]
BUILT = ROOT / "target" / "debug"
LOWTIDE, AGENT = BUILT / "lowtide", BUILT / "deps" / "liblowtide_agent.so"
DOUBLE = BUILT / "deps" / "liblowtide_testing.so"
TRIALS = int(os.environ.get("LOWTIDE_TRIALS", "0"))
HAS_PROTOCOL = sys.version_info >= (3, 14)
LIMIT_S = 120

pytestmark = [
    pytest.mark.skipif(not LOWTIDE.exists(), reason="target/debug/lowtide is not built"),
]


def may_trace() -> bool:
    """Returns whether the kernel lets one process look into another."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.exists() and scope.read_text().strip() != "0" and os.geteuid() != 0:
        return False
    child = subprocess.Popen(["sleep", "100"])
    try:
        with open(f"/proc/{child.pid}/mem", "r+b"):
            return True
    except OSError:
        return False
    finally:
        child.kill()
        child.wait()


by_debugger = pytest.mark.skipif(
    not may_trace() or (not HAS_PROTOCOL and shutil.which("gdb") is None),
    reason="the kernel lets nobody in, or Python is older than 3.14 and there is no gdb",
)
trial = pytest.mark.skipif(not TRIALS, reason="LOWTIDE_TRIALS is not set: by cargo xtask pythons")

HELD = """
import os, sys, threading, time
import torch
cache = [torch.ones(1 << 18)]
def ready():
    print("ready", flush=True)
"""
CUDA = """
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
"""
WAITS = "ready(); sys.stdin.readline()"


def assert_runs(child: subprocess.Popen[str]) -> None:
    """Asserts that a program is there, and neither stopped nor traced."""
    assert child.poll() is None
    status = Path(f"/proc/{child.pid}/status").read_text()
    assert "TracerPid:\t0" in status and "State:\tT" not in status and "State:\tt" not in status


class World:
    """A runtime folder of its own, and programs in it."""

    def __init__(self, folder: Path, way: str = "") -> None:
        self.way, self.more = way, ["--inject"] if way == "inject" else list[str]()
        (folder / "run").mkdir()
        self.environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "LOWTIDE_PACKAGE": str(PACKAGE),
            "LOWTIDE_NVML_LIBRARY": "/nowhere",
            "COLUMNS": "400",
        }
        self.environment.pop("LOWTIDE_DEVICE", None)
        self.folder = folder
        self.children: list[subprocess.Popen[str]] = []

    def start(self, text: str) -> subprocess.Popen[str]:
        """Starts a program. One that is asked through its agent has a context."""
        more = {}
        if self.way == "agent":
            text = CUDA + text
            link = self.folder / "libcuda.so.1"
            if not link.exists():
                link.symlink_to(DOUBLE)
            more = {"LD_PRELOAD": str(AGENT), "LD_LIBRARY_PATH": str(self.folder)}
            more |= {"LOWTIDE_DOUBLE_STATE": str(self.folder / "state")}
        child = subprocess.Popen(
            [sys.executable, "-u", "-c", HELD + text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**self.environment, **more},
        )
        self.children.append(child)
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        return child

    def command(self, child: subprocess.Popen[str], *words: str) -> list[str]:
        return [str(LOWTIDE), "why", str(child.pid), *self.more, *words]

    def why(self, child: subprocess.Popen[str], *words: str) -> tuple[int, dict[str, Any]]:
        """Asks, and returns the exit code and the answer."""
        command = self.command(child, "--json", *words)
        done = subprocess.run(
            command,
            check=False,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.stdout, done.stderr
        answer = json.loads(done.stdout)
        if "gdb cannot call a function" in answer.get("reason", ""):
            pytest.skip(answer["reason"])
        return done.returncode, answer

    def named(self, child: subprocess.Popen[str], *words: str) -> dict[str, Any]:
        """Asks, asserts that what holds the memory is named, and returns the answer."""
        code, answer = self.why(child, *words)
        way = self.way or "remote-exec"
        assert (code, answer.get("answer"), answer.get("way")) == (0, "why", way), answer
        assert "cache[0]" in answer["text"] and answer["why"]["held_bytes"] >= 1 << 20
        return answer

    def shown(self, child: subprocess.Popen[str], limit: str) -> dict[str, Any]:
        """Asks, asserts that the ledger is shown and that the program goes on, and returns what is shown."""
        code, answer = self.why(child, "--limit", limit)
        assert (code, answer["answer"]) == (1, "ledger"), answer
        assert_runs(child)
        return answer

    def end(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.end()


needs_agent = pytest.mark.skipif(
    not (AGENT.exists() and DOUBLE.exists()), reason="the agent is not built"
)


@pytest.fixture(
    params=[
        pytest.param("agent", marks=needs_agent),
        pytest.param("remote-exec" if HAS_PROTOCOL else "inject", marks=by_debugger),
    ]
)
def asked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A world whose programs are asked in one way."""
    world = World(tmp_path, request.param)
    yield world
    world.end()


@needs_agent
def test_a_program_with_an_agent_is_asked_through_it(world: World) -> None:
    world.way = "agent"
    child = world.start(WAITS)
    for _ in range(2):
        answer = world.named(child)
    name = answer["name"]
    code, refused = world.why(child, "--cut", "1", "--of", name)
    assert code == 3 and "--yes" in refused["reason"] and str(child.pid) in refused["reason"]
    code, done = world.why(child, "--cut", "1", "--of", name, "--yes")
    assert (code, done["freed_bytes"]) == (0, 1 << 20), done
    code, done = world.why(child, "--cut", "1", "--of", "abcdef", "--yes")
    assert code == 3 and "nothing was done" in done["reason"]
    assert world.why(child)[1]["why"]["held_bytes"] == 0
    assert child.communicate("\n", LIMIT_S) == ("", None) and child.returncode == 0


@by_debugger
def test_a_program_without_preparation_is_asked(world: World) -> None:
    child = world.start(WAITS)
    if not HAS_PROTOCOL:
        code, refused = world.why(child)
        assert code == 3 and "--inject" in refused["reason"], refused
        world.way, world.more = "inject", ["--inject"]
        for _ in range(2):
            world.named(child)
    else:
        # The main thread waits for a line; nobody else is there to answer.
        world.shown(child, "3s")
    assert child.communicate("\n", LIMIT_S) == ("", None) and child.returncode == 0


LOST_DEBUGGER = """#!/bin/sh
while read -r word rest; do case $word in
attach) echo "$rest" > "$0.pid" ;;
echo) echo lowtide-mark ;;
print/u) echo "= 1" ;;
detach) exit 1 ;;
esac; done
"""


@by_debugger
@pytest.mark.skipif(HAS_PROTOCOL, reason="Python 3.14 needs no debugger")
def test_the_process_tried_on_ends_with_a_lost_debugger(world: World) -> None:
    gdb = world.folder / "gdb"
    gdb.write_text(LOST_DEBUGGER)
    gdb.chmod(0o700)
    world.environment["PATH"] = f"{world.folder}:{world.environment['PATH']}"
    command = world.command(world.start(WAITS), "--inject")
    done = subprocess.run(
        command, check=False, env=world.environment, timeout=LIMIT_S, stderr=subprocess.PIPE
    )
    assert done.returncode == 3 and b"gdb" in done.stderr, done
    assert not Path("/proc", (world.folder / "gdb.pid").read_text().strip()).exists()


@by_debugger
@pytest.mark.skipif(not HAS_PROTOCOL, reason="Python before 3.14")
def test_the_protocol_of_python_is_spoken(world: World) -> None:
    turns = "ready()\nwhile True: time.sleep(0.01)"
    child = world.start(turns)
    for _ in range(2):
        world.named(child)
    # The main thread does not come to a safe point, and another one does.
    other = "threading.Thread(target=lambda: [time.sleep(0.01) for _ in iter(int, 1)], daemon=True).start()\n"
    child = world.start(other + WAITS)
    world.named(child)
    assert not [
        one for one in os.listdir(world.folder / "run" / "lowtide") if one.startswith("why-")
    ]
    world.environment["PYTHON_DISABLE_REMOTE_DEBUG"] = "1"
    child = world.start(turns)
    code, refused = world.why(child)
    assert code == 3 and "PYTHON_DISABLE_REMOTE_DEBUG" in refused["reason"], refused


TURNS = "ready()\nwhile True: time.sleep(0.01)"
BUSY = "many = torch.ones(3000, 3000); torch.set_num_threads(1); ready()\nwhile True: many @ many"
HOG = "ready()\nwhile True: sum(range(60_000_000)); time.sleep(0.001)"
BLOCKED = "lock = threading.Lock(); lock.acquire(); ready(); lock.acquire()"
IN_C = "import ctypes; ready(); ctypes.CDLL(None).sleep(1000)"
WITH_LOCK = "import ctypes; ready(); ctypes.PyDLL(None).sleep(6)\n" + TURNS
IN_DRIVER = """
slow = ctypes.cast(ctypes.CDLL(None).sleep, ctypes.c_void_p)
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuLaunchHostFunc(None, slow, ctypes.c_void_p(12)) == 0
driver = {library}("libcuda.so.1")
ready()
driver.cuCtxSynchronize()
""" + TURNS.replace("ready()", "print('back', flush=True)")
LARGE = "many = [[number] for number in range(5_000_000)]; ready()\nwhile True: time.sleep(0.01)"
SIGNALS = (
    """
import signal
for one in (signal.SIGUSR1, signal.SIGINT): signal.signal(one, lambda *_: None)
def storm():
    while True:
        for one in (signal.SIGUSR1, signal.SIGINT): os.kill(os.getpid(), one)
        time.sleep(0.0005)
threading.Thread(target=storm, daemon=True).start()
"""
    + TURNS
)


@trial
def test_a_program_busy_in_c_answers(asked: World) -> None:
    child = asked.start(BUSY)
    asked.named(child, "--limit", "100s")
    assert_runs(child)


@trial
def test_a_program_that_has_the_lock_for_seconds_again_and_again_is_shown(asked: World) -> None:
    # Each file of the package is read without the lock, which is had again seconds later.
    asked.shown(asked.start(HOG), "2s")


@trial
@pytest.mark.parametrize("text", [BLOCKED, IN_C])
def test_a_blocked_program_answers_or_is_shown_and_goes_on(asked: World, text: str) -> None:
    child = asked.start(text)
    if asked.way == "remote-exec":
        asked.shown(child, "5s")
    else:
        asked.named(child)
        assert_runs(child)


@trial
def test_a_program_that_keeps_the_lock_is_shown_and_answers_later(asked: World) -> None:
    child = asked.start(WITH_LOCK)
    assert "interpreter's lock" in asked.shown(child, "1s")["reason"]
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    asked.named(child)
    assert_runs(child)


@trial
@needs_agent
@pytest.mark.parametrize("library", ["ctypes.CDLL", "ctypes.PyDLL"])
def test_a_program_that_waits_in_the_driver_answers_if_the_lock_is_free(
    world: World, library: str
) -> None:
    world.way = "agent"
    child = world.start(IN_DRIVER.replace("{library}", library))
    if library == "ctypes.CDLL":
        world.named(child)
    else:
        assert world.shown(child, "1s")["ledgers"]
    assert child.stdout is not None and child.stdout.readline() == "back\n"
    world.named(child)


@trial
def test_five_million_objects_are_asked_about_first_and_given_up_at_the_limit(asked: World) -> None:
    child = asked.start(LARGE)
    code, answer = asked.why(child)
    assert code == 3 and "stand still" in answer["reason"], answer
    code, answer = asked.why(child, "--yes", "--limit", "1s")
    assert code == 3 and "limit" in answer["reason"], answer
    answer = asked.named(child, "--yes", "--limit", "100s")
    print(f"5 million objects: stood still for {answer['longest_stop_s']:.2f} s")


@trial
def test_signals_of_the_program_are_its_own(asked: World) -> None:
    child = asked.start(SIGNALS)
    for _ in range(3):
        asked.named(child)
    assert_runs(child)


@trial
def test_a_program_that_dies_during_the_question_is_said_to_have_ended(asked: World) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance, took_s = random.Random(seed), 1.0
    for at in range(9):
        child = asked.start(TURNS)
        began = time.monotonic()
        asking = subprocess.Popen(
            asked.command(child),
            env=asked.environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if at == 0:
            assert asking.wait(LIMIT_S) == 0
            took_s = time.monotonic() - began
            continue
        time.sleep(chance.random() * took_s)
        child.kill()
        child.wait()
        _, said = asking.communicate(timeout=LIMIT_S)
        assert asking.returncode in (0, 1, 3), said
        print(asking.returncode, said.decode().strip().splitlines()[-1:])


@trial
def test_whoever_asks_may_be_killed_at_any_moment(asked: World) -> None:
    child = asked.start(TURNS)
    began = time.monotonic()
    asked.named(child)
    took_s = time.monotonic() - began
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)

    def counts() -> list[int]:
        return [len(os.listdir(f"/proc/{child.pid}/{what}")) for what in ("fd", "task")]

    def settle(is_settled: Callable[[], bool]) -> None:
        began = time.monotonic()
        while not is_settled():
            assert time.monotonic() - began < LIMIT_S
            time.sleep(0.01)

    before = counts()
    for _ in range(40):
        asking = subprocess.Popen(
            asked.command(child),
            env=asked.environment,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        time.sleep(chance.random() * took_s)
        asking.send_signal(signal.SIGKILL)
        asking.wait()
        settle(lambda: "TracerPid:\t0" in Path(f"/proc/{child.pid}/status").read_text())
    settle(lambda: counts() <= before)
    asked.named(child)
    assert_runs(child)


@trial
@pytest.mark.skipif(shutil.which("gdb") is None, reason="there is no gdb")
def test_a_program_with_a_debugger_is_asked_without_another(asked: World) -> None:
    child = asked.start(TURNS)
    gdb = subprocess.Popen(
        ["gdb", "-nx", "-q", "-p", str(child.pid), "-ex", "continue"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            status = Path(f"/proc/{child.pid}/status").read_text()
            if f"TracerPid:\t{gdb.pid}" in status and "State:\tS" in status:
                break
            time.sleep(0.05)
        if asked.way != "inject":
            asked.named(child)
        else:
            code, answer = asked.why(child)
            assert code == 3 and str(gdb.pid) in answer["reason"], answer
    finally:
        gdb.kill()
        gdb.wait()


SERVER = """
import ctypes, gc, http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = str(float(cache[0].sum())).encode()
        if self.path == "/state":
            gc.collect()
            body = json.dumps(state()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Counts
def state():
    return {"blocks": sys.getallocatedblocks(), "malloc": mallinfo().uordblks, "files": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")), "python_threads": len(threading._active)}
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], file=sys.stderr, flush=True)
PORT = server.server_address[1]
open(os.environ["PORT_FILE"], "w").write(str(PORT))
ready()
while True: time.sleep(0.01)
"""


class Served:
    """A server, and a client that asks it again and again."""

    def __init__(self, world: World, name: str) -> None:
        import http.client

        file = world.folder / name
        world.environment["PORT_FILE"] = str(file)
        self.child = world.start(SERVER)
        self.connection = http.client.HTTPConnection("127.0.0.1", int(file.read_text()), timeout=60)
        self.times: list[float] = []
        self.failures = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def get(self, path: str) -> Any:
        self.connection.request("GET", path)
        answer = self.connection.getresponse()
        body = answer.read()
        self.failures += answer.status != 200
        return json.loads(body)

    def _run(self) -> None:
        while not self._ends.is_set():
            began = time.perf_counter()
            try:
                assert self.get("/") == float(1 << 18)
            except Exception:  # noqa: BLE001
                self.failures += 1
            self.times.append(time.perf_counter() - began)
            time.sleep(0.005)

    def __enter__(self) -> None:
        self._ends.clear()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._ends.set()
        self._thread.join()

    def slowest(self) -> float:
        """Returns the 99th percentile of the times so far, and begins anew."""
        times, self.times = sorted(self.times), []
        return times[len(times) * 99 // 100]


@trial
def test_a_busy_server_serves_on_and_does_not_grow(asked: World) -> None:
    served, alone = Served(asked, "served"), Served(asked, "alone")
    asked.named(served.child)
    with served, alone:
        time.sleep(10)
    idle_s, _ = served.slowest(), alone.slowest()
    stops, took, states = [], [], []
    # What is made once, and tables of limited size, are full after the first half.
    for _ in range(2):
        with served, alone:
            for _ in range(TRIALS // 2):
                began = time.monotonic()
                stops.append(asked.named(served.child)["longest_stop_s"])
                took.append(time.monotonic() - began)
        states.append((served.get("/state"), alone.get("/state")))
    beside_s, busy_s = alone.slowest(), served.slowest()
    grown = [{key: now[key] - then[key] for key in now} for then, now in zip(*states)]
    print(
        f"{len(took)} questions of {sum(took) / len(took):.3f} s: 99th percentile {busy_s * 1e3:.1f} ms, beside it"
        f" {beside_s * 1e3:.1f} ms, before {idle_s * 1e3:.1f} ms, longest stop {max(stops) * 1e3:.1f} ms;"
        f" grown in the second half {grown[0]}, beside it {grown[1]}"
    )
    assert served.failures == alone.failures == 0
    for key in ("files", "threads", "python_threads"):
        assert grown[0][key] <= grown[1][key] + 1, key
    # A leak of one object or 16 bytes each time would show.
    assert grown[0]["blocks"] - grown[1]["blocks"] < TRIALS // 2
    assert grown[0]["malloc"] - grown[1]["malloc"] < 8 * TRIALS + (64 << 10)
