"""Groups of actors: sleep, wake and pause on all or on none, with a receipt for each.

Plan, ask, undo: where the actors are is read once, each node is asked once, at the same time, and where one actor
refuses or is dead, those that did as asked are brought back. `None` of them then means: each is awake, or asleep
and wakes at its next use of the device by the rules of waiting. The receipts tell which.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .._native import parse_bytes, parse_seconds
from . import sleepable
from .cluster import UP, Member, MemberReceipt, ask_members, members, node_actor

Gated = Callable[[Any, float], bool]
GRACE_S = 5.0
"""How much longer than its own limit a call in an actor may take."""
LOOK_S = 0.02
UNDO_S = 1.0
"""How long it is tried to bring an actor back; its next use of the device does it, too."""


@dataclass(frozen=True)
class GroupReceipt:
    """What a call has done to a group, by actor."""

    name: str
    is_done: bool
    """Whether every actor is as asked for. After a sleep, wake or pause that is not done, none was left so."""
    members: list[MemberReceipt]
    undone: list[MemberReceipt]
    """The actors that had done as asked and were brought back, as they are now."""
    took_s: float
    slowest_s: float
    """The time of the slowest actor on its node; the rest of `took_s` is Ray's."""

    @property
    def dead(self) -> list[str]:
        """The actors that have ended or do not answer."""
        return [one.actor for one in self.members if one.state in ("dead", "unknown")]

    def __str__(self) -> str:
        all_or_none = "all" if self.is_done else "not all" if self.name == "release" else "none"
        lines = [f"{self.name}: {all_or_none} of {len(self.members)}, {self.took_s:.3f} s"]
        lines += [f"  {one}" for one in self.members]
        lines += [f"  brought back: {one}" for one in self.undone]
        return "\n".join(lines)


class GroupError(RuntimeError):
    """Raised if a call was not done on all actors. `receipt` names those that refused, and the dead."""

    def __init__(self, receipt: GroupReceipt) -> None:
        super().__init__(str(receipt))
        self.receipt = receipt


class Group:
    """Actors that sleep, wake, release and pause together: `lowtide.ray.Group(actors)`.

    The actors run under `lowtide run` (`lowtide.ray.runtime_env`), also with processes of their own. A call
    that is under way in an actor does not hold up a sleep: work on the device does, for up to `wait`.

    Each call returns a GroupReceipt and raises GroupError, with the receipt, if it was not done on all. Each has
    an async form: `sleep_async`, `wake_async`, …
    """

    def __init__(self, actors: Iterable[Any], *, wait: float | str = 60.0) -> None:
        """Makes a group. `wait` limits how long a call waits for work that runs, for room, and for actors that
        are being started."""
        self.actors = list(actors)
        self._wait_s = parse_seconds(wait)
        # Made now, side by side: the first call would wait for a process to start on each node.
        for node in {one.node for one in members(self.actors) if one.state == UP}:
            node_actor(node)

    def sleep(self) -> GroupReceipt:
        """Moves all memory of all actors to the host, or of none."""
        return self._all_or_none("sleep", "wake")

    def wake(self) -> GroupReceipt:
        """Brings the memory of all actors back, or of none: those that woke sleep again."""
        return self._all_or_none("wake", "sleep")

    def release(self, to: str | int | None = None) -> GroupReceipt:
        """Frees memory of each actor until it uses at most `to` on each device ("1 GiB"); it sleeps only if
        that is needed. It is not undone where one refuses: what was freed stays free, and the receipts say so."""
        began = time.perf_counter()
        found = members(self.actors, self._wait_s)
        to_bytes = None if to is None else parse_bytes(to)
        done = ask_members(found, "release", self._wait_s, to_bytes)
        return _told("release", found, done, [], began)

    def status(self) -> list[MemberReceipt]:
        """Returns what each actor has on its devices, and whether it is awake, asleep, dead or unknown."""
        found = members(self.actors)
        asked = ask_members(found, "status", 0.0)
        return [asked[one.actor_id] for one in found]

    def pause(self) -> GroupReceipt:
        """Closes the gate of each actor, around a weight update: work that is under way ends first, and work
        behind a `Sleepable`'s `work()` waits. On all actors, or on none: those that paused are resumed."""
        return self._gates("pause", sleepable.pause_process, sleepable.resume_process)

    def resume(self) -> GroupReceipt:
        """Returns cached memory of each actor to the driver and opens its gate. What was opened stays open."""
        return self._gates("resume", sleepable.resume_process, None)

    async def sleep_async(self) -> GroupReceipt:
        """`sleep`, without holding up the event loop."""
        return await asyncio.to_thread(self.sleep)

    async def wake_async(self) -> GroupReceipt:
        """`wake`, without holding up the event loop."""
        return await asyncio.to_thread(self.wake)

    async def release_async(self, to: str | int | None = None) -> GroupReceipt:
        """`release`, without holding up the event loop."""
        return await asyncio.to_thread(self.release, to)

    async def status_async(self) -> list[MemberReceipt]:
        """`status`, without holding up the event loop."""
        return await asyncio.to_thread(self.status)

    async def pause_async(self) -> GroupReceipt:
        """`pause`, without holding up the event loop."""
        return await asyncio.to_thread(self.pause)

    async def resume_async(self) -> GroupReceipt:
        """`resume`, without holding up the event loop."""
        return await asyncio.to_thread(self.resume)

    def _all_or_none(self, question: str, undo: str) -> GroupReceipt:
        began = time.perf_counter()
        found = members(self.actors, self._wait_s)
        # Nobody is moved if one is known to be dead.
        plan = question if all(one.state == UP for one in found) else "status"
        done = ask_members(found, plan, self._wait_s)
        undone: list[MemberReceipt] = []
        if any(one.why for one in done.values()):
            moved = [one for one in found if done[one.actor_id].is_moved]
            undone = list(ask_members(moved, undo, UNDO_S).values())
        return _told(question, found, done, undone, began)

    def _gates(self, name: str, call: Gated, undo: Gated | None) -> GroupReceipt:
        began = time.perf_counter()
        found = members(self.actors, self._wait_s)
        if undo is not None and any(one.state != UP for one in found):
            return _told(name, found, ask_members(found, "status", 0.0), [], began)
        done = _call_members(self.actors, found, call, self._wait_s)
        undone: dict[str, MemberReceipt] = {}
        if undo is not None and any(one.why for one in done.values()):
            undone = _call_members(self.actors, members(self.actors), undo, self._wait_s)
        return _told(name, found, done, list(undone.values()), began)


def _call_members(
    actors: list[Any], found: list[Member], call: Gated, wait_s: float
) -> dict[str, MemberReceipt]:
    """Calls a function in the processes of actors, between or beside their calls, until it returns True."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError

    began, done = time.perf_counter(), {}
    asked = [
        (one, actor, actor.__ray_call__.remote(call, wait_s))
        for actor, one in zip(actors, found, strict=True)
    ]
    while asked:
        left_s = wait_s - (time.perf_counter() - began)
        refs = [ref for _, _, ref in asked]
        ray.wait(refs, num_returns=len(refs), timeout=max(left_s, 0.0) + GRACE_S)
        again = []
        for one, actor, ref in asked:
            state, why = "awake", ""
            try:
                if not ray.get(ref, timeout=0.0):
                    again.append((one, actor, actor.__ray_call__.remote(call, wait_s)))
            except RayTaskError as error:
                why = str(error.cause)
            except GetTimeoutError:
                ray.cancel(ref)
                state, why = "unknown", "its calls that came before have not ended in time"
            except RayError as error:
                state, why = "dead", str(error).splitlines()[0]
            took_s = time.perf_counter() - began
            done[one.actor_id] = MemberReceipt(
                one.title, one.node, one.pid, state, why, took_s=took_s
            )
        asked = again
        time.sleep(LOOK_S if again else 0.0)
    return done


def _told(
    name: str,
    found: list[Member],
    done: dict[str, MemberReceipt],
    undone: list[MemberReceipt],
    began: float,
) -> GroupReceipt:
    receipts = [done[one.actor_id] for one in found]
    is_done = not any(one.why for one in receipts)
    slowest = max((one.took_s for one in receipts), default=0.0)
    receipt = GroupReceipt(name, is_done, receipts, undone, time.perf_counter() - began, slowest)
    if not is_done:
        raise GroupError(receipt)
    return receipt
