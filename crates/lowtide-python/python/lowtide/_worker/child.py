"""The side of a worker that runs in the child process: it loads an object and answers calls.

Messages are pickled by value. Tensors of a GPU are copied, too: shared memory would end with the child.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LOAD, CALL = "load", "call"
DONE, RAISED = "done", "raised"
LOOK_S = 0.5
"""How often a process looks whether another is still there."""


def serve(pipe: Connection[Any, Any]) -> None:
    """Answers until the pipe is closed."""
    # A session of its own: Ctrl-C is for the parent, and the end of the worker is the end of every
    # process that it has started.
    os.setsid()
    _end_with_parent()
    # Who is forked here would keep the pipe open after this process has died, and the parent waiting.
    os.register_at_fork(after_in_child=pipe.close)
    loaded: Any = None
    while True:
        try:
            request = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        answer, made = answer_to(request, loaded)
        if made is not None:
            loaded = made[0]
        del request, made
        try:
            pipe.send_bytes(answer)
        except OSError:
            return
        del answer


def answer_to(request: bytes, loaded: Any) -> tuple[bytes, list[Any] | None]:
    """Returns the answer to a request, and the object in a list if the request was to load it."""
    try:
        kind, what, args, kwargs = pickle.loads(request)
        if kind == LOAD:
            return pickled(DONE, None), [what(*args, **kwargs)]
        function: Callable[..., Any] = loaded if what is None else getattr(loaded, what)
        return pickled(DONE, function(*args, **kwargs)), None
    except BaseException as raised:  # noqa: BLE001  The parent raises it.
        return failed(raised), None


def failed(raised: BaseException) -> bytes:
    """Returns the answer that says which exception was raised."""
    import traceback

    text = "".join(traceback.format_exception(type(raised), raised, raised.__traceback__))
    # Its frames have ended, and would keep their variables.
    raised.__traceback__ = None
    sent: bytes | None = None
    # The parent is not to exit because a worker would.
    if isinstance(raised, Exception):
        try:
            sent = pickle.dumps(raised, pickle.HIGHEST_PROTOCOL)
            pickle.loads(sent)
        except Exception:  # noqa: BLE001  Not every exception can be made from its arguments.
            sent = None
    return pickled(RAISED, sent, text)


def pickled(kind: str, value: Any, text: str = "") -> bytes:
    """Returns an answer as bytes."""
    return pickle.dumps((kind, value, text), pickle.HIGHEST_PROTOCOL)


def _end_with_parent() -> None:
    """Ends this process, and those that it has started, when the parent ends, however that happens."""
    import multiprocessing
    import signal
    import threading

    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        # Who was forked by the parent may keep its end open to which `join` listens.
        while os.getppid() == parent.pid:
            parent.join(LOOK_S)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="lowtide-parent", daemon=True).start()
