"""Sleep and wake of this program: its tags (`lowtide.tag`), or all of it by its agent (`lowtide run`); and
backups ahead of time, which copy tagged memory to the host while the program runs, so that a sleep finds
little to copy."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

from .. import _native
from .._native import AgentStatus, Receipt

if TYPE_CHECKING:
    from typing_extensions import Self

# The thread of backups calls the driver, which must not happen once the process exits.
atexit.register(_native.tags_ahead_end)


def status() -> AgentStatus:
    """Returns what this program has on its devices: what can sleep, what stays, what keeps it awake.

    Raises AgentError if the program was not started with `lowtide run`, or has not used CUDA yet.
    """
    return _native.agent_status()


def sleep(*tags: str) -> list[Receipt]:
    """Moves device memory of this program to the host. Addresses, graphs and tensors stay valid.

    With names: the memory of these tags (`lowtide.tag`), until `lowtide.wake`. Nothing may use it
    meanwhile. Returns a receipt for each device. Raises TagError for an unknown name, and if a scope of a
    tag is open.

    Without a name: the memory of all tags, if the program has any. Otherwise the agent moves all memory of
    the program, until its next use of the device. Returns a receipt for each context; none if the program
    sleeps already. Raises AgentError if it was not started with `lowtide run`, or cannot sleep now, for
    example because work is running.
    """
    if tags or _native.tags():
        return _native.tags_sleep(list(tags))
    return _native.agent_sleep()


def suspend() -> dict[str, Any] | None:
    """Takes this program off its devices altogether, with its context, until its next use of a device.

    It sleeps first, so that the driver has little to copy. Returns the verdict, the steps with their
    times, and the devices' numbers before and after; None if the program is suspended already. Raises
    AgentError if it cannot be suspended now. `wake()` brings it back, too.
    """
    return _native.agent_suspend()


def wake(*tags: str) -> int:
    """Brings device memory of this program back. Returns the bytes that came back; 0 if it was awake.

    With names: the memory of these tags, every page verified. Without a name: all tags, if the program has
    any, and otherwise all memory that the agent has moved; the program's next use of the device does the
    same. Raises TagError or AgentError if there is no room on the device; everything stays asleep then.
    """
    if tags or _native.tags():
        return _native.tags_wake(list(tags))
    return _native.agent_wake()


def ahead(share: int = 25) -> Ahead:
    """Backs up tags of policy "offload" while the program runs, until `close()`.

    A thread for each device works for `share` percent of its time, 1 to 100, and takes no more than that share
    of the link to the host. A page that has not changed since its backup is not copied by the next sleep. The
    host memory is what that sleep would take; it is taken earlier, and never more than this machine can spare.

    There is one for the process: a second call takes the place of the first. Tags that are made later are backed
    up, too. Raises ValueError for another share, and TagError in a forked child.
    """
    return Ahead(share)


class Ahead:
    """Backups that are made ahead of sleeps. `close()`, or the end of a `with` block, ends them."""

    def __init__(self, share: int) -> None:
        self.share = share
        """The percentage of its time for which each thread works."""
        self._number = _native.tags_ahead(share)

    @property
    def state(self) -> dict[str, str]:
        """What happens on each device that has tags: "working"; "done" if all pages that rest are backed up at
        the moment; "no room" if host memory or a little device memory is missing for more; or "failed" and why.
        Empty if no tag was made yet, and after the end."""
        return _native.tags_ahead_state(self._number) or {}

    @property
    def is_done(self) -> bool:
        """Whether all pages that rest are backed up, on every device. Pages that change later are backed up
        later."""
        words = set(self.state.values())
        return words == {"done"}

    @property
    def is_closed(self) -> bool:
        """Whether it has ended: by `close()`, or because `lowtide.ahead` was called again."""
        return _native.tags_ahead_state(self._number) is None

    def close(self) -> None:
        """Ends the threads; waits for a step in progress. Backups stay. A second call does nothing."""
        _native.tags_ahead_end(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        states = [f"{device} {word}" for device, word in self.state.items()]
        now = "closed" if self.is_closed else ", ".join(states) or "no tags yet"
        return f"<lowtide.Ahead {self.share} %: {now}>"
