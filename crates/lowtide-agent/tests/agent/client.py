"""A Python program that nobody changed. It does what it is told on standard input, one line each, and answers
with "ok" or a value, as client.c does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socketserver
import sys
import threading
import time
import types
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler
from typing import Any

cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
blocks: dict[str, tuple[ctypes.c_uint64, int, bytes]] = {}
trims: list[bool] = []
ended: list[bool] = []
threads: list[threading.Thread] = []
failures: list[OSError] = []
allocator = threading.Lock()
callbacks: list[object] = []


def call(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise OSError(f"{name} failed with {code}")


def start() -> None:
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)


def alloc(name: str, size: str, library: ctypes.CDLL = cuda, lock: Any = nullcontext()) -> None:
    at = ctypes.c_uint64()
    with lock:
        code = library.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(int(size)))
    if code:
        raise OSError(f"cuMemAlloc_v2 failed with {code}")
    data = bytes(range(251)) * (int(size) // 251 + 1)
    blocks[name] = (at, int(size), data[: int(size)])
    call("cuMemcpyHtoD_v2", at, blocks[name][2], ctypes.c_size_t(int(size)))


def alloc_locked(name: str, size: str) -> None:
    """Keeps the interpreter's lock meanwhile."""
    alloc(name, size, ctypes.PyDLL("libcuda.so.1"))


def alloc_holding(name: str, size: str) -> None:
    """Keeps a lock meanwhile, as torch does the one of its allocator."""
    alloc(name, size, lock=allocator)


def callback() -> None:
    """Has the device call a function that needs that lock, and the interpreter's."""

    def run(_: object) -> None:
        with allocator:
            pass

    callbacks.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(run))
    call("cuLaunchHostFunc", None, callbacks[-1], None)


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def serve(path: str) -> None:
    server = socketserver.ThreadingUnixStreamServer(path, Health)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()


def later(word: str, *arguments: str) -> None:
    """Does something in a thread, for which `joined` waits."""

    def run() -> None:
        try:
            call("cuCtxSetCurrent", context)
            actions[word](*arguments)
        except OSError as error:
            failures.append(error)

    threads.append(threading.Thread(target=run))
    threads[-1].start()


def joined() -> None:
    threads.pop().join()
    if failures:
        raise failures.pop()


def check(name: str) -> None:
    at, size, data = blocks[name]
    found = ctypes.create_string_buffer(size)
    call("cuMemcpyDtoH_v2", found, at, ctypes.c_size_t(size))
    if found.raw != data:
        raise OSError("other data")


def torch(which: str, initialized: str) -> None:
    """Puts something like torch where the agent finds it; notes when its cache is emptied."""
    module = types.ModuleType("torch")
    module.cuda = types.SimpleNamespace()
    sys.modules["torch"] = module
    module.cuda.is_initialized = lambda: initialized == "yes"

    def empty_cache() -> None:
        if which == "slow":
            while not ended:
                time.sleep(0.01)
            time.sleep(0.3)
            print("trimmed", flush=True)
        if which == "locking":
            allocator.acquire()
            allocator.release()
        trims.append(True)
        if which == "sharing":
            call("cuMemExportToShareableHandle", ctypes.byref(ctypes.c_int()), shared, 1, ctypes.c_uint64(0))
        if which == "failing":
            raise RuntimeError("no")

    module.cuda.empty_cache = empty_cache
    properties = (ctypes.c_uint64 * 4)(1 | 1 << 32, 1)  # Pinned memory of device 0, for file descriptors.
    shared = ctypes.c_uint64()
    call("cuMemCreate", ctypes.byref(shared), ctypes.c_size_t(2 << 20), properties, ctypes.c_uint64(0))


def hold() -> None:
    """Keeps the interpreter's lock while the C library waits for a byte. Nobody else gets it from the answer on."""
    interval, library = sys.getswitchinterval(), ctypes.PyDLL(None)
    sys.setswitchinterval(1000)
    library.write(1, b"holding\n", ctypes.c_size_t(8))
    library.read(0, ctypes.create_string_buffer(1), ctypes.c_size_t(1))
    sys.setswitchinterval(interval)


def fork() -> None:
    """Forks a child that ends as programs do. It is killed before it could wait for another process's call to torch."""
    child = os.fork()
    if child == 0:
        signal.alarm(8)
        sys.exit()
    if status := os.waitpid(child, 0)[1]:
        raise OSError(f"the child ended with {status}")


actions = {
    "start": start,
    "alloc": alloc,
    "alloc-locked": alloc_locked,
    "alloc-holding": alloc_holding,
    "callback": callback,
    "serve": serve,
    "later": later,
    "joined": joined,
    "check": check,
    "torch": torch,
    "hold": hold,
    "fork": fork,
}


def main() -> None:
    for line in filter(str.strip, sys.stdin):
        word, *arguments = line.split()
        if word == "trims":
            print(len(trims), flush=True)
        else:
            try:
                actions[word](*arguments)
                print("ok", flush=True)
            except OSError as error:
                print(f"error {error}", flush=True)


main()
ended.append(True)
