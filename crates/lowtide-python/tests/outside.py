"""The asking side of `lowtide why PID`, and programs to ask."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import lowtide

PACKAGE = Path(os.path.realpath(lowtide.__file__)).parent
SCRIPT = (PACKAGE / "_outside" / "script.py").read_text()

PROGRAM = """
import atexit, gc, os, sys, threading
import torch
cache, more = [torch.ones(1 << 18)], [torch.ones(1 << 19)]
print("ready", flush=True)
for line in sys.stdin:
    exec(eval(line))
    print("ok", flush=True)
print("ended", flush=True)
"""
"""It executes the lines that it reads, in its own names."""


class Program:
    """A program that can be told to execute something, as the ways into it do."""

    def __init__(self, folder: Path, text: str = PROGRAM, **more: str) -> None:
        self.path = folder / "question"
        environment = {**os.environ, **more}
        self.child = subprocess.Popen(
            [sys.executable, "-u", "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def does(self, text: str) -> None:
        """Has the program execute a text, and waits for that."""
        assert self.child.stdin is not None
        self.child.stdin.write(repr(text) + "\n")
        self.child.stdin.flush()
        assert self.line() == "ok", text

    def is_asked(self) -> None:
        """Has the program execute the script, as an agent would."""
        self.does(f"exec({f'{SCRIPT}{chr(10)}ask({os.fsencode(self.path)!r})'!r}, {{}})")

    def listen(self) -> socket.socket:
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen()
        listener.settimeout(60)
        return listener

    def ask(self, **request: Any) -> dict[str, Any]:
        """Asks, and returns the answer."""
        with self.listen() as listener:
            self.is_asked()
            connection, _ = listener.accept()
            return converse(connection, self.child.pid, **request)

    def value(self, expression: str) -> Any:
        """Returns the value of an expression in the program."""
        assert self.child.stdin is not None
        text = f"print(__import__('json').dumps({expression}), flush=True)"
        self.child.stdin.write(repr(text) + "\n")
        self.child.stdin.flush()
        found = json.loads(self.line())
        assert self.line() == "ok"
        return found

    def end(self) -> int:
        """Has the program end, and returns how."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        assert self.line() == "ended"
        return self.child.wait(60)


def request_of(pid: int, **more: Any) -> dict[str, Any]:
    """Returns a request as the command makes it."""
    request: dict[str, Any] = {
        "home": "_lowtide_guest",
        "version": lowtide.__version__,
        "package": str(PACKAGE),
        "pid": pid,
        "command": "python",
        "device": None,
        "limit_s": 60.0,
        "waits": False,
        "sure": True,
        "cut": None,
        "of": None,
    }
    return {**request, **more}


def converse(connection: socket.socket, pid: int, **request: Any) -> dict[str, Any]:
    """Plays the asking side of a conversation."""
    with connection, connection.makefile("rwb") as stream:
        connection.settimeout(60)
        assert stream.readline() == b"\n"
        stream.write(json.dumps(request_of(pid, **request)).encode() + b"\n")
        stream.flush()
        answer: dict[str, Any] = json.loads(stream.readline())
        assert answer["python"] == sys.version.split()[0]
        return answer
