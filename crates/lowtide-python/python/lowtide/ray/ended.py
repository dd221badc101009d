"""Proof after an end: the driver of the node says that the memory is gone, or the process that has it is named.

A killed worker's child in a session of its own keeps its device memory, and Ray's clean-up does not reach it. It
carries the mark of its worker, by which the node's actor finds it among the processes that the driver lists.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._native import parse_seconds
from .cluster import Member, members, nodes, on_nodes, reason_of

PAUSE_S = 0.1


@dataclass(frozen=True)
class Holder:
    """A process that has device memory of what has ended."""

    node: str
    pid: int
    start_ticks: int
    """Its start since the boot: the number alone may be another process's soon."""
    device: str
    bytes: int | None
    command: str
    is_sure: bool
    """Whether it carries the mark of the worker. Otherwise its parent is gone and it is of this node's Ray, which
    is all that can be said of workers that were not started under lowtide."""

    def end(self) -> bool:
        """Kills it, if it is still this process. Returns whether it is gone."""
        answer = on_nodes("end", {self.node: (self.pid, self.start_ticks)})[self.node]
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    def __str__(self) -> str:
        has = "memory" if self.bytes is None else f"{self.bytes >> 20} MiB"
        return f"process {self.pid} has {has} on {self.device}: {self.command}"


@dataclass(frozen=True)
class Ended:
    """What is left of an actor or a node. `verdict` is `released`, `pinned` (`holders` have the memory), or
    `unverified` (nobody can say, `why`)."""

    name: str
    verdict: str
    holders: list[Holder]
    why: str
    took_s: float

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.verdict} after {self.took_s:.2f} s"
            + (f": {self.why}" if self.why else "")
        ]
        return "\n".join([*lines, *(f"  {holder}" for holder in self.holders)])


def ended(what: Any, *, wait: float | str = 10.0, end: bool = False) -> Ended:
    """Waits until what has ended has no device memory any more, by the driver of its node.

    `what` is an actor, or the id of a node. Where processes still have memory after `wait`, they are named;
    `end=True` kills those that are surely the actor's, by PID and start, and looks again. Raises ValueError if
    the actor lives.
    """
    began, wait_s = time.perf_counter(), parse_seconds(wait)
    if isinstance(what, str):
        return _settle(f"node {what[:8]}", lambda: _left_of_node(what), wait_s, end, began)
    while True:
        (member,) = members([what])
        if member.state != "ALIVE":
            break
        # A kill is on its way to the table.
        if time.perf_counter() - began > wait_s:
            raise ValueError(f"{member.title} lives: ray.kill ends it")
        time.sleep(PAUSE_S)
    return _settle(member.title, lambda: _left_of_actor(member), wait_s, end, began)


def _settle(
    name: str, look: Callable[[], tuple[list[Holder], str]], wait_s: float, end: bool, began: float
) -> Ended:
    until = time.perf_counter() + wait_s
    while True:
        holders, why = look()
        if not holders and not why:
            return Ended(name, "released", [], "", time.perf_counter() - began)
        if end:
            end = False
            for holder in holders:
                if holder.is_sure:
                    holder.end()
            continue
        if time.perf_counter() > until:
            verdict = "pinned" if holders else "unverified"
            return Ended(name, verdict, holders, why, time.perf_counter() - began)
        time.sleep(PAUSE_S)


def _left_of_actor(member: Member) -> tuple[list[Holder], str]:
    if not member.pid:
        return [], ""  # It never had a process.
    return _asked(_nodes_at(member.node), member.pid)


def _left_of_node(node: str) -> tuple[list[Holder], str]:
    return _asked(_nodes_at(node), None)


def _nodes_at(node: str) -> list[str]:
    """Returns the nodes that can look: this one, or others of its machine if it has ended."""
    import ray

    living = nodes()
    if node in living:
        return [node]
    all_nodes = {one["NodeID"]: one["NodeManagerHostname"] for one in ray.nodes()}
    host = all_nodes.get(node)
    return [one for one, known in living.items() if host and known["NodeManagerHostname"] == host]


def _asked(where: list[str], worker: int | None) -> tuple[list[Holder], str]:
    if not where:
        return [], "its node has ended, and no other node of its machine can look"
    answers = on_nodes("left", {node: (worker,) for node in where})
    holders, whys = [], []
    for node, answer in answers.items():
        if isinstance(answer, Exception):
            whys.append(reason_of(answer))
        else:
            holders += [Holder(node, **one) for one in answer["holders"]]
            whys.append(answer["why"])
    same = {(one.pid, one.start_ticks, one.device): one for one in holders}
    # Nodes of one machine have the same devices: one that knows is enough.
    return list(same.values()), "" if "" in whys else "; ".join(whys)
