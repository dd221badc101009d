"""The text that a program executes for `lowtide why PID`. A call of `ask` with a path is added to it.

It is executed by a thread that has better things to do. So it only connects to the socket of the process that
asks, and leaves the rest to a thread of its own. Where nobody listens any more, nothing happens: a thread that
executes this late, or after the asking process has died, goes on at once.

What stays in the program is one module under a private name, with the package below it, and its one call at
exit: an interpreter that ends kills threads where they ask for its lock, which in the middle of native code ends
the process with an error. So the end waits for an answer that is under way, and after it has begun there is none.
"""

from __future__ import annotations

import _socket
import _thread
import sys
from typing import Any

LIMIT_S = 2.0
"""How long the asking process may take to read or to write."""
EXIT_LIMIT_S = 10.0
LINE_MOST = 1 << 16
NO_SIGNAL = 0x4000
"""MSG_NOSIGNAL: a program may die of SIGPIPE."""


def ask(path: bytes) -> None:
    """Connects to the asking process, and answers it in a thread."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(LIMIT_S)
    start = _thread.start_new_thread
    try:
        connection.connect(path)
        if isinstance(start, type(len)):
            start(serve, (connection,))
        else:
            serve(connection)  # gevent's threads are none.
    except (OSError, RuntimeError):
        connection.close()


def serve(connection: _socket.socket) -> None:
    """Says that it has the interpreter's lock, reads a request, and answers it."""
    import json

    try:
        connection.sendall(b"\n", NO_SIGNAL)
        line = b""
        while not line.endswith(b"\n") and len(line) < LINE_MOST:
            part = connection.recv(4096)
            if not part:
                return
            line += part
        answer = answered(json.loads(line))
        answer["python"] = sys.version.split()[0]
        text = json.dumps(answer, ensure_ascii=False)
        connection.sendall(text.encode("utf-8", "replace") + b"\n", NO_SIGNAL)
    except BaseException:  # noqa: BLE001, S110  There is nobody to tell.
        pass
    finally:
        connection.close()


def answered(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer, one at a time."""
    import os

    free = " without the interpreter's lock" if "t" in getattr(sys, "abiflags", "") else ""
    if free or sys.version_info < (3, 10):
        reason = f"it has Python {sys.version.split()[0]}{free}; lowtide needs an ordinary Python 3.10 or newer"
        return {"answer": "refused", "reason": reason}
    threading = sys.modules.get("threading")
    if threading is None and sys.version_info < (3, 13):
        # Imported here, it would take this thread for the main one.
        return {
            "answer": "refused",
            "reason": "it has not imported threading, as every framework does",
        }
    home = home_of(request["home"])
    if home.pid != os.getpid():
        # A child that was forked has the locks as they were, and none of the threads.
        home.pid, home.at_work = os.getpid(), _thread.allocate_lock()
    if not home.at_work.acquire(False):
        return {"answer": "refused", "reason": "it is answering an earlier question; ask again"}
    try:
        if threading is not None and not threading.main_thread().is_alive():
            return {"answer": "refused", "reason": "it is ending"}
        return loaded(home, request).answer(request)  # type: ignore[no-any-return]
    except Exception as error:  # noqa: BLE001
        return {"answer": "refused", "reason": f"{type(error).__name__}: {error}"}
    finally:
        home.at_work.release()


def home_of(name: str) -> Any:
    """Returns the module under the private name, which is made once."""
    import atexit
    import os
    import types

    home: Any = sys.modules.get(name)
    if home is None:
        home = types.ModuleType(name)
        home.pid, home.at_work = os.getpid(), _thread.allocate_lock()

        def end() -> None:
            if home.pid == os.getpid():
                home.at_work.acquire(timeout=EXIT_LIMIT_S)

        home.end = end
        sys.modules[name] = home
        atexit.register(end)
    return home


def loaded(home: Any, request: dict[str, Any]) -> Any:
    """Returns the module that answers: that of the program's own installation if it has imported the same
    version, else of the package that the request names."""
    from importlib import import_module

    own = sys.modules.get("lowtide")
    if own is not None and vars(own).get("__version__") == request["version"]:
        return import_module("lowtide._outside.answer")
    home.__path__ = [request["package"]]
    return import_module(home.__name__ + "._outside.answer")
