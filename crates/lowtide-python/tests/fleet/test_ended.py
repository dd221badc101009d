"""Proof after an end: orphans with device memory are found by their node's driver, named and ended."""

from __future__ import annotations

import os
import signal
from typing import Any

import lowtide.ray
import pytest
from card import Holder
from nodes import Fleet

ray = pytest.importorskip("ray", reason="Ray is not installed: `pip install ray[serve]`")
MIB = 1 << 20


def start(node: int, env: dict[str, Any] | None) -> Any:
    options = {"num_cpus": 0, "resources": {f"node{node}": 1}, "runtime_env": env}
    actor = ray.remote(Holder).options(**options).remote(8, node)
    assert ray.get(actor.check.remote(), timeout=60) == 8 * MIB
    return actor


def test_an_actor_that_has_ended_has_nothing(fleet: Fleet) -> None:
    actor = start(0, lowtide.ray.runtime_env())
    with pytest.raises(ValueError, match="lives"):
        lowtide.ray.ended(actor, wait="200ms")
    ray.kill(actor)
    proof = lowtide.ray.ended(actor)
    assert proof.verdict == "released" and proof.holders == [], proof


@pytest.mark.parametrize("under", ["lowtide", "nothing"])
def test_an_orphan_is_named_and_ended(fleet: Fleet, under: str) -> None:
    actor = start(1, lowtide.ray.runtime_env() if under == "lowtide" else None)
    neighbour = start(1, None)
    child, pid = ray.get([actor.start_child.remote(8), actor.pid.remote()])
    other = ray.get(neighbour.start_child.remote(8))
    os.kill(pid, signal.SIGKILL)
    proof = lowtide.ray.ended(actor, wait="5s")
    assert proof.verdict == "pinned" and [holder.pid for holder in proof.holders] == [child], proof
    (holder,) = proof.holders
    assert holder.bytes == (8 + 1) * MIB and "card.Card" in holder.command
    # Without the mark, nobody can say whose it was: it is named, and only ended by its own name.
    assert holder.is_sure == (under == "lowtide")
    again = lowtide.ray.ended(actor, wait="500ms", end=True)
    assert again.verdict == ("released" if holder.is_sure else "pinned"), again
    assert holder.end() and lowtide.ray.ended(actor).verdict == "released"
    # Another number's start is not this process's.
    assert holder.end() and os.path.exists(f"/proc/{other}")
    assert ray.get(neighbour.check.remote()) == 8 * MIB
    ray.kill(neighbour)
    os.kill(other, signal.SIGKILL)


def test_what_the_driver_does_not_tell_is_not_proved(fleet: Fleet) -> None:
    blind = fleet.add_with({**fleet.environments[2], "LOWTIDE_NVML_LIBRARY": "/nowhere.so"})
    actor = start(blind, None)
    ray.kill(actor)
    proof = lowtide.ray.ended(actor, wait="5s")
    assert proof.verdict == "unverified" and "NVML" in proof.why, proof


def test_what_a_lost_node_has_left_is_seen_by_another_of_its_machine(fleet: Fleet) -> None:
    lost = fleet.add()
    actor = start(lost, lowtide.ray.runtime_env())
    child, pid = ray.get([actor.start_child.remote(8), actor.pid.remote()])
    node = fleet.id_of(lost)
    # A worker that sees its node die ends its children. This one cannot.
    os.kill(pid, signal.SIGKILL)
    fleet.cluster.remove_node(fleet.handles[lost], allow_graceful=False)
    fleet.add_with(fleet.environments[lost])
    proof = lowtide.ray.ended(node, wait="30s")
    assert proof.verdict == "pinned" and child in [holder.pid for holder in proof.holders], proof
    for holder in proof.holders:
        assert holder.end()
    assert lowtide.ray.ended(node).verdict == "released"
