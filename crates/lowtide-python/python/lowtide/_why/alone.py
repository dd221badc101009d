"""One examination at a time: two that look at each other would name each other's variables.

An examination holds objects of the program while it names them. Another thread that asks meanwhile
waits, and so does a fork: a child would inherit references that nobody can drop. A signal handler
or a finaliser may ask in the middle of an examination of the same thread. It does not wait, and is
told that it is not alone (`Question.nested`).

Nobody waits for ever: whoever holds the lock may run the program's code (a finaliser), and that may
wait for whoever waits here.
"""

from __future__ import annotations

import os
import threading
from _thread import get_ident

WAIT_S = 30.0
"""How long another examination is waited for."""


class _Examining:
    """A context in which no other thread examines the heap."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entered: dict[int, list[bool]] = {}
        self._is_alone_at_fork: list[bool] = []

    def __enter__(self) -> None:
        is_ours = self._lock.acquire(timeout=WAIT_S)
        self._entered.setdefault(get_ident(), []).append(is_ours)

    def __exit__(self, *_: object) -> None:
        here = self._entered[get_ident()]
        is_ours = here.pop()
        if not here:
            del self._entered[get_ident()]
        if is_ours:
            self._lock.release()

    @property
    def is_alone(self) -> bool:
        """Whether no other examination is under way."""
        return sum(len(entered) for entered in list(self._entered.values())) <= 1

    def before_fork(self) -> None:
        """Waits for other threads, so that a child inherits none of their references."""
        self._is_alone_at_fork.append(self._lock.acquire(timeout=WAIT_S))

    def after_fork(self) -> None:
        """Lets other threads go on."""
        if self._is_alone_at_fork.pop():
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Lets the child ask. A thread that held the lock does not exist here."""
        if self._is_alone_at_fork.pop():
            self._lock.release()
        else:
            self._lock = threading.RLock()
        here = self._entered.pop(get_ident(), None)
        self._entered.clear()
        if here is not None:
            self._entered[get_ident()] = here


EXAMINING = _Examining()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=EXAMINING.before_fork,
        after_in_parent=EXAMINING.after_fork,
        after_in_child=EXAMINING.after_fork_in_child,
    )
