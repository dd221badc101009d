"""One examination at a time: two that look at each other would name each other's variables.

An examination holds objects of the program while it names them. Another thread that asks meanwhile
waits, and so does a fork: a child would inherit references that nobody can drop. So does the end of
the program. A signal handler or a finaliser may ask in the middle of an examination of the same
thread. It does not wait, and is told that it is not alone (`Question.nested`).

Nobody waits for ever: whoever holds the lock may run the program's code (a finaliser), and that may
wait for whoever waits here.
"""

from __future__ import annotations

import atexit
import os

from .._native import Examining
from .._runtime.guest import IS_GUEST

WAIT_S = 30.0
"""How long another examination is waited for."""

EXAMINING: Examining = Examining(WAIT_S)
"""Every examination is in a context of this one."""


def is_alone() -> bool:
    """Returns whether no other examination is under way."""
    return EXAMINING.count <= 1


if hasattr(os, "register_at_fork") and not IS_GUEST:
    os.register_at_fork(
        before=EXAMINING.before_fork,
        after_in_parent=EXAMINING.after_fork,
        after_in_child=EXAMINING.after_fork_in_child,
    )

# A thread that frees a tensor takes the interpreter's lock in a destructor of torch, and the process is
# aborted if the interpreter has ended. So at the end only the main thread examines anything.
if not IS_GUEST:
    atexit.register(EXAMINING.before_fork)
