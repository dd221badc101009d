"""Group sleeps while actors, workers, a raylet and a node are killed: all or none, and every survivor right."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any

import lowtide.ray
import pytest
from card import Holder
from nodes import Fleet

ray = pytest.importorskip("ray", reason="Ray is not installed: `pip install ray[serve]`")
MIB = 1 << 20


def start(node: int, seed: int) -> Any:
    options = {
        "num_cpus": 0,
        "resources": {f"node{node}": 1},
        "runtime_env": lowtide.ray.runtime_env(),
    }
    return ray.remote(Holder).options(**options).remote(16, seed)


def test_all_or_none_while_anybody_is_killed(fleet: Fleet, is_long: bool) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    # The driver's own node has to live.
    places = [0, 1, 2, 0, 1, 2]
    actors = [start(place, at) for at, place in enumerate(places)]
    kills = [
        "none",
        "actor",
        "worker",
        "node actor",
        *(["worker", "actor", "none"] * 4 if is_long else []),
    ]
    chance.shuffle(kills)
    for kill in [*kills, "raylet", "node"]:
        pids = ray.get([actor.pid.remote() for actor in actors], timeout=120)
        at = chance.randrange(6) if kill not in ("raylet", "node") else places.index(max(places))
        assert places[at] != 0 or kill not in ("raylet", "node")
        group = lowtide.ray.Group(actors, wait="10s")
        wait_s = chance.random()
        thread = threading.Thread(
            target=_kill, args=(fleet, kill, actors[at], pids[at], places[at], wait_s)
        )
        thread.start()
        try:
            receipt = group.sleep()
            assert [one.state for one in receipt.members] == ["asleep"] * 6
        except lowtide.ray.GroupError as error:
            receipt = error.receipt
            assert kill not in ("none", "node actor"), receipt
            # Each that had slept was brought back, unless nobody can reach it.
            still = [one for one in receipt.undone if one.state not in ("awake", "dead", "unknown")]
            assert not still, receipt
        thread.join()
        for number, actor in enumerate(actors):
            lost = kill in ("raylet", "node") and places[number] == places[at]
            if lost or (kill in ("actor", "worker") and number == at):
                assert _ends(actor), f"{kill} has not ended actor {number}"
                proof = lowtide.ray.ended(actor, wait="30s")
                # Of a machine without a node, nobody can say.
                assert proof.verdict in ("released", "unverified") and not proof.holders, proof
            else:
                assert ray.get(actor.check.remote(), timeout=120) == 16 * MIB, (kill, number)
        if kill in ("raylet", "node"):
            gone = places[at]
            places = [new if place == gone else place for place in places for new in [(gone - 1)]]
        actors = [
            actor if _lives(actor) else start(places[number], number)
            for number, actor in enumerate(actors)
        ]


def _kill(fleet: Fleet, what: str, actor: Any, pid: int, node: int, wait_s: float) -> None:
    time.sleep(wait_s)
    if what == "actor":
        ray.kill(actor)
    elif what == "worker":
        os.kill(pid, signal.SIGKILL)
    elif what == "node actor":
        ray.kill(lowtide.ray.cluster.node_actor(fleet.id_of(node)))
    elif what == "raylet":
        raylet = fleet.handles[node].all_processes["raylet"][0].process
        raylet.kill()
        # One that nobody waits for leaves its workers for half a minute.
        raylet.wait()
    elif what == "node":
        fleet.cluster.remove_node(fleet.handles[node], allow_graceful=False)


def _ends(actor: Any) -> bool:
    """Waits until an actor does not answer any more. Until then it answers right."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            assert ray.get(actor.check.remote(), timeout=120) == 16 * MIB
        except ray.exceptions.RayActorError:
            return True
        time.sleep(0.1)
    return False


def _lives(actor: Any) -> bool:
    return lowtide.ray.cluster.members([actor])[0].state == "ALIVE"
