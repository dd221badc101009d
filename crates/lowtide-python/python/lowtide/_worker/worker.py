"""`Worker`: an object in a child process, which a release may end.

While a process lives, it keeps its context, loaded modules and workspaces on the device, and what a
framework has leaked. Ending the process returns all of it, which is safe only if the process is
disposable. A worker is: the function that builds its object is known, and is called again at the next
use. A release with a target ends idle workers where the context would be reset (R27, R28).
"""

from __future__ import annotations

import os
import pickle
import threading
from _thread import get_ident
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from .._devices.choose import device_of, tell_of_none
from .._native import ProcessTree
from .._rungs import registry
from .._runtime import has_exit_begun
from .._runtime.log import logger
from .child import CALL, DONE, LOAD, LOOK_S, serve

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from typing_extensions import Self

END_S = 10.0
"""How long a process may take to end by itself before it is killed."""
KILL_S = 5.0
RUNS, ENDED, GONE = "runs", "ended", "gone"
"""The states of a process: ENDED until it was waited for, then GONE."""
NO_GUARD = (
    'If the program has no `if __name__ == "__main__":`, Python runs it again in the child: put one'
    " around what uses workers"
)


class WorkerError(RuntimeError):
    """Raised if the process of a worker ended before it answered. The next use starts it anew."""


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker, as text: the cause of the exception that is raised."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Worker:
    """An object in a child process: `worker = lowtide.Worker(load, "model")`.

    `load(*args, **kwargs)` is called in the child, at the first use. `worker(x)` calls the object and
    `worker.method(x)` its method; arguments and results are pickled. Calls of several threads come one
    after another. An exception is raised here with the child's traceback as its cause.

    A release with a target (`release(to=…)`, `idle(to=…)`) ends the process while no call is under way.
    The next use starts it anew, and says so in the log. So does a use after it has died.

    `load` has to be importable: a function of a module. The end of this process ends the worker, too.
    """

    def __init__(self, load: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        if not callable(load):
            raise TypeError(f"load must be callable, not {type(load).__name__}")
        self._name = str(getattr(load, "__qualname__", type(load).__name__))
        # Pickled now: what cannot be sent is refused here, and later changes do not matter.
        self._load = _pickled(
            (LOAD, load, args, kwargs),
            f"{self._name} and its arguments",
            "load has to be a function or class of a module, not a lambda or a local function",
        )
        self._lock = threading.Lock()
        self._caller = 0
        """The thread that has the lock."""
        self._child: Child | None = None
        self._ended_by = ""
        self._starts = 0
        registry.workers.add(self, self._name)

    @property
    def pid(self) -> int | None:
        """The number of its process, or `None` if none runs."""
        child = self._child
        return child.pid if child is not None and child.is_alive() else None

    @property
    def starts(self) -> int:
        """How often its process was started."""
        return self._starts

    def start(self) -> Self:
        """Starts the process and loads the object now. Does nothing if it runs."""
        with self._turn():
            self._running()
        return self

    def call(self, method: str | None, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the object, also one whose name the worker has itself; with `None`, the
        object. `worker.method(x)` is `worker.call("method", x)`."""
        if has_exit_begun():
            return None
        if not (method is None or isinstance(method, str)):
            raise TypeError(f"method must be a name or None, not {type(method).__name__}")
        request = _pickled(
            (CALL, method, args, kwargs),
            f"the arguments of {method or self._name}",
            "what is made in this process, such as a lock or a lambda, stays here",
        )
        with self._turn():
            return self._ask(self._running(), request)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(None, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return partial(self.call, name)

    def close(self) -> None:
        """Ends the process, after the call that is under way. A later use starts it anew."""
        if has_exit_begun():
            return
        with self._turn():
            self._end("close")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Waits until no other thread talks to the process. Raises RuntimeError if this thread does: a
        finaliser or a signal handler may call in the middle of a call, which would wait for itself."""
        if self._caller == get_ident() and self._lock.locked():
            raise RuntimeError(f"a call of worker {self._name} is under way in this thread")
        with self._lock:
            self._caller = get_ident()
            try:
                yield
            finally:
                self._caller = 0

    def _end_if_idle(self, by: str) -> bool:
        """Ends the process unless a call is under way. Returns whether there was one to end."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._end(by)
        finally:
            self._lock.release()

    def _is_idle(self) -> bool:
        return self.pid is not None and not self._lock.locked()

    def _running(self) -> Child:
        """Returns the process; starts it if none runs."""
        child = self._child
        if child is not None and child.is_alive():
            return child
        died = None if child is None else child.how_it_ended()
        self._end("it died")
        if died is not None:
            logger().warning("worker %s is started anew: its process %s", self._name, died)
        elif self._starts > 0:
            logger().info("worker %s is started anew: ended by %s", self._name, self._ended_by)
        self._refuse_at_exit()
        if device_of(None) is None:
            tell_of_none(
                "lowtide.Worker", "no release ends a worker: its `close()` frees its memory"
            )
        self._child = child = Child(self._name)
        self._starts += 1
        # Those that it did not see have to look themselves.
        self._refuse_at_exit()
        try:
            self._ask(child, self._load)
        except BaseException:
            self._end("a load that failed")
            raise
        return child

    def _refuse_at_exit(self) -> None:
        if _is_exiting:
            self._end("the end of the program", kill=True)
            raise WorkerError(f"worker {self._name} is not started: the program ends")

    def _ask(self, child: Child, request: bytes) -> Any:
        try:
            answer = child.ask(request)
        except (EOFError, OSError) as broken:
            has_loaded = request is not self._load
            words = f"the process of worker {self._name} {child.how_it_ended()}"
            self._end("it died", kill=True)
            if not has_loaded:
                raise WorkerError(f"{words} before it had loaded. {NO_GUARD}") from broken
            raise WorkerError(f"{words} during a call; the next use starts it anew") from broken
        except BaseException:
            # Its answer would be taken for that of the next call.
            self._end("an interrupt", kill=True)
            raise
        kind, value, text = pickle.loads(answer)
        if kind == DONE:
            return value
        raised = pickle.loads(value) if value is not None else WorkerError(text.splitlines()[-1])
        raise raised from WorkerTraceback(text)

    def _end(self, by: str, *, kill: bool = False) -> bool:
        child, self._child = self._child, None
        if child is None:
            return False
        self._ended_by = by
        child.end(kill=kill)
        return True

    def _forget(self) -> None:
        """Forgets the process, in a forked child: it belongs to the parent."""
        self._lock = threading.Lock()
        self._caller = 0
        child, self._child = self._child, None
        if child is not None:
            child.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        child = self.__dict__.get("_child")
        if child is not None and not has_exit_begun():
            child.end()

    def __reduce__(self) -> Any:
        raise TypeError("a Worker cannot be pickled: its process belongs to this one")

    def __repr__(self) -> str:
        pid = self.pid
        return f"<Worker {self._name}, {'not running' if pid is None else f'pid {pid}'}>"


class Child:
    """The process of a worker, with the pipe to it. Spawned, because CUDA does not survive a fork."""

    def __init__(self, name: str) -> None:
        import multiprocessing

        _end_at_exit()
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._pipe: Connection[Any, Any] = ours
        self._process: SpawnProcess = context.Process(
            target=serve, args=(theirs,), name=f"lowtide-worker {name}"
        )
        try:
            self._process.start()
        finally:
            theirs.close()
        self.pid: int = self._process.pid or 0
        self._is_over = False

    def is_alive(self) -> bool:
        """Returns whether the process runs."""
        return not self._is_over and not self._has_ended(0.0)

    def ask(self, request: bytes) -> bytes:
        """Sends a request and waits for the answer. Raises EOFError or OSError if the process ends."""
        self._pipe.send_bytes(request)
        # Processes that it has started may keep the pipe open after its end.
        while not self._pipe.poll(LOOK_S):
            if not self.is_alive() and not self._pipe.poll(0):
                raise EOFError("the process has ended")
        return self._pipe.recv_bytes()

    def how_it_ended(self) -> str:
        """Returns how a process ended that does not answer any more, as text."""
        self._has_ended(KILL_S)
        self.end(kill=True)
        code = self._process.exitcode or 0
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def end(self, *, kill: bool = False) -> None:
        """Ends the process and those that it has started, and waits for them.

        Without `kill` it may end by itself first. Raises RuntimeError if one of them cannot be ended.
        """
        if self._is_over:
            return
        # Found now: those in sessions of their own have no way back to it after its end.
        started: ProcessTree | None = None
        with suppress(OSError):  # The kernel does not tell them everywhere.
            started = ProcessTree(self.pid)
        self._pipe.close()
        if not kill and not self._has_ended(END_S):
            logger().warning("a worker did not end by itself in %g s and is killed", END_S)
        # Its session is its own. Until it is waited for, its number is no other's.
        if self._state() != GONE:
            _kill_group(self.pid)
        if not self._has_ended(KILL_S):
            raise RuntimeError(f"process {self.pid} was killed and has not ended")
        self._is_over = True
        self._process.join()
        left = started.kill(KILL_S) if started is not None else []
        if left:
            raise RuntimeError(f"processes {left} of a worker were killed and have not ended")

    def forget(self) -> None:
        """Closes the pipe to a process that is not this one's: it would not notice its parent's end."""
        self._is_over = True
        self._pipe.close()

    def _state(self) -> str:
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            return GONE
        return RUNS if ended is None else ENDED

    def _has_ended(self, within_s: float) -> bool:
        """Waits until the process has ended, and leaves it to be waited for."""
        import time

        until, pause = time.monotonic() + within_s, 0.001
        while self._state() == RUNS:
            if time.monotonic() >= until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return True


def _pickled(message: object, what: str, rule: str) -> bytes:
    """Returns a message as bytes. Raises TypeError if it cannot be sent to another process."""
    try:
        return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"a worker cannot be given {what} ({error}): they are pickled, and {rule}"
        ) from error


def _kill_group(pid: int) -> None:
    import signal

    for kill in (os.killpg, os.kill):
        with suppress(OSError):  # It has not made its session yet, or has ended.
            kill(pid, signal.SIGKILL)


_is_exiting = False
"""Whether the workers have been ended at exit. Nobody would end another one, and multiprocessing would
wait for it for ever."""


@cache
def _end_at_exit() -> None:
    """Ends all workers at exit, before multiprocessing waits for them: what is registered last, runs
    first."""
    import atexit
    import multiprocessing.util  # noqa: F401  Its import registers what waits.

    atexit.register(_end_all)


def _end_all() -> None:
    global _is_exiting
    _is_exiting = True
    for worker in registry.workers.objects():
        child = worker._child
        if child is None:
            continue
        try:
            child.end(kill=worker._lock.locked())
        except RuntimeError as failure:
            logger().error("worker %s: %s", worker._name, failure)


def _forget_all() -> None:
    for worker in registry.workers.objects():
        worker._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
