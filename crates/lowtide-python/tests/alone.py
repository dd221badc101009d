"""Programs that run in a process of their own: what they do cannot be undone, or may crash.

torch takes seconds to import. A program that uses it runs in a fork of a process that has imported it
and lowtide, and has its own `__main__`. To end an interpreter with torch takes a second, so the program
ends at once, except where the end is what is tested.

A test that imports much more than torch runs in a fork, too: every question and every collection of
the tests after it would go through those objects.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import traceback
import types
from collections.abc import Callable
from typing import IO, Any, NamedTuple

LIMIT_S = 120
"""How long a program may take, ten times what the slowest takes. One that hangs prints where, and ends."""
LEAST_S = 10
"""How long it may take at the least, after others of the same interpreter have hung."""
END_AT_ONCE = """
import os, sys
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""
"""The last lines of a program that does not wait for threads and runs nothing at its exit."""
ASK = """
import gc
from lowtide._why.memory.listed import memory_of
gc.collect()
memory_of("cpu")
"""
"""Has the programs begin without garbage, and as those that have released before: the first release makes a
walk that others need not."""


class Ended(NamedTuple):
    """How a program ended, and what it printed."""

    status: int
    output: str
    errors: str


def alone(code: str) -> str:
    """Runs a program in a fresh interpreter. Returns what it prints; fails unless it ends well."""
    return _well(ended([sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)]))


def ended(command: list[str], **options: Any) -> Ended:
    """Runs a command to its end. At the limit it is killed, with all that it has started."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            # Files, because who inherits a pipe keeps it open.
            stderr=errors,
            start_new_session=True,
            **options,
        )
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.write(errors.fileno(), f"had not ended after {LIMIT_S} s\n".encode())
        finally:
            _kill_session(process.pid)
        return Ended(process.wait(), _read(output), _read(errors))


def alone_with_torch(code: str) -> str:
    """As `alone`, in a fork of an interpreter that has torch and numpy. It ends at once."""
    return _well(_with_torch().run(textwrap.dedent(code) + END_AT_ONCE))


def ended_with_torch(code: str) -> Ended:
    """Runs a program in a fork of an interpreter that has torch and numpy, to the interpreter's end."""
    return _with_torch().run(textwrap.dedent(code))


def in_a_fork(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test in a fork of this process. Nothing that it imports is there afterwards."""

    @functools.wraps(test)
    def forked(*args: Any, **kwargs: Any) -> None:
        import torch

        if torch.cuda.is_initialized():  # It does not survive a fork.
            return test(*args, **kwargs)
        with tempfile.TemporaryFile("w+") as told:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    # A lock that a thread of the parent held is never released here.
                    _end_after(LIMIT_S, told)
                    torch.set_num_threads(1)  # Threads of the parent are not here.
                    test(*args, **kwargs)
                    status = 0
                except BaseException:  # noqa: BLE001 (the fork must not go on as its parent)
                    traceback.print_exc(file=told)
                    told.flush()
                finally:
                    os._exit(status)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            told.seek(0)
            assert status == 0, f"exit {status}\n{told.read()}"

    return forked


def _well(how: Ended) -> str:
    assert how.status == 0, f"exit {how.status}\n{how.output}{how.errors[-3000:]}"
    return how.output


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _kill_session(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _end_after(seconds: int, file: IO[Any]) -> None:
    """Ends this process after so many seconds, with the stacks of its threads in a file.

    By a signal. `faulthandler.dump_traceback_later` has a thread, which a fork does not inherit: to call
    it again there, or to end there, waits for that thread for ever.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    faulthandler.register(signal.SIGALRM, file=file, chain=True)
    signal.alarm(seconds)


@functools.cache
def _with_torch() -> Warm:
    # The modules of lowtide, too, which it would import at its first call.
    warm = Warm("numpy", "torch", "lowtide._why.why", "lowtide._rungs.all", prepare=ASK)
    atexit.register(warm.close)
    return warm


class Warm:
    """An interpreter that has imported modules and run a program to prepare itself. Each other program
    runs in a fork of it. For one thread."""

    def __init__(
        self, *modules: str, environment: dict[str, str] | None = None, prepare: str = ""
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", __file__, prepare, *modules],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, *arguments: str) -> Ended:
        """Runs a program to its end, with these arguments."""
        assert self._process.stdin and self._process.stdout
        # It answers: each of its programs has a limit, and so have its own imports.
        self._process.stdin.write(json.dumps([code, arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the interpreter has ended: {self._process.wait()}"
        return Ended(*json.loads(line))

    def close(self) -> None:
        """Ends the interpreter. Who was forked meanwhile may keep its input open, so it is killed."""
        self._process.kill()
        self._process.wait()


def _next_program() -> str | None:
    """Forks for each program that is asked for. Returns it in the fork, and None at the end."""
    limit_s = LIMIT_S
    for line in sys.stdin:
        code, arguments = json.loads(line)
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            child = os.fork()
            if child == 0:
                os.setsid()
                with open(os.devnull, "rb") as nothing:
                    os.dup2(nothing.fileno(), 0)
                os.dup2(output.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                _end_after(limit_s, sys.stderr)
                sys.argv[1:] = arguments
                return str(code)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            _kill_session(child)
            if status == -signal.SIGALRM:
                # What makes one hang may make each hang.
                limit_s = max(LEAST_S, limit_s // 2)
            told = [_read(output), _read(errors)]
        print(json.dumps([status, *told]), flush=True)
    return None


def _become(code: str) -> None:
    """Makes this process that program: a `__main__` that has nothing of this file."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(code, "<string>", "exec", dont_inherit=True), vars(main))


if __name__ == "__main__":
    _end_after(LIMIT_S, sys.stderr)
    for name in sys.argv[2:]:
        importlib.import_module(name)
    exec(sys.argv[1], {})
    signal.alarm(0)
    program = _next_program()
    if program is not None:
        _become(program)
