"""The actor of each node, where the members of a group are, and calls that end although a node is lost.

Whether an actor or a node lives is Ray's word alone, read from its tables. One call a node asks for all members
there, so that the rounds of messages do not grow with the members.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from .. import __version__
from .node import Node

LOOK_S = 0.5
"""How often it is looked whether a node that has not answered still lives."""
UP = "ALIVE"
ERROR = re.compile(r"[\w.]+(Error|Exception): ")


@dataclass(frozen=True)
class Member:
    """An actor as Ray's table has it: the process, and the node where it is."""

    actor_id: str
    title: str
    node: str
    pid: int
    state: str
    began_ms: int


@dataclass(frozen=True)
class MemberReceipt:
    """What a group's call has done to one actor, and with which proof."""

    actor: str
    """The class, the name if it has one, and the beginning of the actor's id."""
    node: str
    pid: int
    state: str
    """awake; asleep (it wakes at its next use of the device); dead; unknown (nobody there has answered)."""
    why: str = ""
    """Why it is not what was asked for; empty if it is."""
    receipts: list[dict[str, Any]] = field(default_factory=list)
    """The agents' receipts, one for each device: `device`, `verdict`, `freed_bytes`, …"""
    status: list[dict[str, Any]] = field(default_factory=list)
    """What each of its processes has on the devices afterwards."""
    took_s: float = 0.0
    """The time on its node."""
    is_moved: bool = False
    """Whether memory of it has moved, or may have."""

    def __str__(self) -> str:
        freed = sum(one.get("freed_bytes") or 0 for one in self.receipts) >> 20
        verdicts = sorted({f"{one['device']} {one['verdict']}" for one in self.receipts})
        did = f", {freed} MiB freed ({', '.join(verdicts)})" if verdicts else ""
        why = f": {self.why}" if self.why else ""
        return f"{self.actor} on node {self.node[:8]}, process {self.pid}: {self.state}{did}{why}"


def nodes() -> dict[str, dict[str, Any]]:
    """Returns the nodes that live, by id."""
    import ray

    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def node_actor(node: str) -> Any:
    """Returns the actor of a node, which is made where there is none. It is pinned and outlives the driver."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options = ray.remote(Node).options(
        name=f"lowtide-{__version__}-{node}",
        namespace="lowtide",
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_concurrency=16,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    return options.remote()


def members(actors: Iterable[Any], wait_s: float = 0.0) -> list[Member]:
    """Returns where actors are now. Waits for those that are being started."""
    actors, until = list(actors), time.monotonic() + wait_s
    with ThreadPoolExecutor(max(min(len(actors), 16), 1)) as threads:
        while True:
            found = list(threads.map(_member, actors))
            if all(one.state in (UP, "DEAD") for one in found) or time.monotonic() >= until:
                return found
            time.sleep(LOOK_S / 5)


def _member(actor: Any) -> Member:
    import ray._private.state

    actor_id = actor._actor_id.hex()
    row = ray._private.state.actors(actor_id)
    if not row:
        return Member(actor_id, f"actor {actor_id[:8]}", "", 0, "unknown to Ray", 0)
    called = " ".join(word for word in (row["ActorClassName"], row["Name"]) if word)
    node = row["Address"]["NodeID"]
    return Member(
        actor_id, f"{called} {actor_id[:8]}", node, row["Pid"], row["State"], row["StartTime"]
    )


def on_nodes(method: str, calls: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Calls a method of the actors of several nodes at once. Returns each answer, or an exception in its place.

    It ends for each node: with an answer, with the end of the node by Ray's word, or when its actor has died
    twice. What the node did before an actor died stays done.
    """
    import ray
    from ray.exceptions import ActorDiedError, RayActorError, RayError, RayTaskError

    answers: dict[str, Any] = {}
    asked = {getattr(node_actor(node), method).remote(*call): node for node, call in calls.items()}
    again = set(calls)
    while asked:
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=LOOK_S)
        living = nodes() if len(ready) < len(asked) else {}
        for ref in [ref for ref in asked if ref in ready or asked[ref] not in living]:
            node = asked.pop(ref)
            try:
                answers[node] = ray.get(ref, timeout=0 if ref not in ready else None)
            except RayTaskError as error:
                answers[node] = RuntimeError(str(error.cause))
            except (RayActorError, ActorDiedError) as error:
                if node not in again or node not in nodes():
                    answers[node] = error
                else:
                    again.discard(node)
                    asked[getattr(node_actor(node), method).remote(*calls[node])] = node
            except RayError:
                answers[node] = RuntimeError(f"node {node[:8]} has ended, by Ray's word")
    return answers


def ask_members(
    found: Iterable[Member], question: str, wait_s: float, to_bytes: int | None = None
) -> dict[str, MemberReceipt]:
    """Asks the agents of members, one call a node. Returns a receipt for each, by actor id."""
    by_node: dict[str, list[Member]] = {}
    receipts: dict[str, MemberReceipt] = {}
    for one in found:
        if one.state == UP:
            by_node.setdefault(one.node, []).append(one)
            continue
        state = "dead" if one.state == "DEAD" else "unknown"
        receipts[one.actor_id] = MemberReceipt(
            one.title, one.node, one.pid, state, f"the actor is {one.state}"
        )
    calls = {
        node: (question, [one.pid for one in mine], wait_s, to_bytes)
        for node, mine in by_node.items()
    }
    answers = on_nodes("ask", calls)
    for node, mine in by_node.items():
        answer = answers[node]
        for at, one in enumerate(mine):
            if isinstance(answer, Exception):
                why = f"nobody on its node answers: {reason_of(answer)}"
                receipt = MemberReceipt(one.title, node, one.pid, "unknown", why, is_moved=True)
            else:
                receipt = _receipt(one, answer[at])
            receipts[one.actor_id] = receipt
    return receipts


def _receipt(member: Member, outcome: dict[str, Any]) -> MemberReceipt:
    answers = outcome.get("answers", [])
    given = [one["answer"] for one in answers if isinstance(one.get("answer"), dict)]
    return MemberReceipt(
        member.title,
        member.node,
        member.pid,
        outcome["state"],
        outcome["why"],
        [receipt for one in given for receipt in one.get("receipts", [])],
        [one["status"] for one in answers if one.get("status")],
        outcome["took_s"],
        any(one["answer"] == "slept" or one.get("bytes") for one in given),
    )


def reason_of(error: Exception) -> str:
    """Returns why something failed, on one line: Ray's texts have it in the middle, as the end of a traceback."""
    lines = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()
    return ([line for line in lines if ERROR.match(line)] or lines)[-1]
