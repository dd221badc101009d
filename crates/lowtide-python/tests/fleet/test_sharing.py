"""Actors that together need more than their card has take turns, and every byte is right."""

from __future__ import annotations

import time
from typing import Any

import lowtide.ray
import pytest
from card import Holder
from nodes import Fleet

ray = pytest.importorskip("ray", reason="Ray is not installed: `pip install ray[serve]`")
MIB = 1 << 20


@pytest.fixture(scope="module")
def card(fleet: Fleet) -> str:
    """A node whose card has room for one of the actors of these tests."""
    return f"node{fleet.add('160MiB')}"


def start(card: str, mib: int, seed: int, **options: Any) -> Any:
    env = lowtide.ray.runtime_env(share=True)
    placed = ray.remote(Holder).options(num_cpus=0, resources={card: 1}, runtime_env=env)
    return placed.remote(mib, seed, **options)


def test_actors_that_do_not_fit_answer_right(card: str) -> None:
    # The last one waits for its turn with the interpreter's lock held, and is not taken for dead.
    actors = [start(card, 80, seed, holds_lock=seed == 2) for seed in range(3)]
    for _ in range(4):
        asked = [actor.check.remote() for actor in actors]
        assert ray.get(asked, timeout=120) == [80 * MIB] * 3
    (found,) = {one.node for one in lowtide.ray.Group(actors).status()}
    states = [one.state for one in lowtide.ray.Group(actors).status()]
    assert states.count("asleep") >= 2, (found, states)
    for actor in actors:
        ray.kill(actor)


@pytest.mark.parametrize("way", ["share", "group"])
def test_rollout_and_trainer_alternate_on_one_card(card: str, way: str, is_long: bool) -> None:
    rollout, trainer = start(card, 80, 1), start(card, 80, 2)
    turns = [lowtide.ray.Group([rollout]), lowtide.ray.Group([trainer])]
    began = time.perf_counter()
    rounds = 50 if is_long else 8
    for step in range(rounds):
        for at, actor in enumerate((rollout, trainer)):
            if way == "group":
                turns[1 - at].sleep()
                turns[at].wake()
            assert ray.get(actor.check.remote(), timeout=120) == 80 * MIB
            ray.get(actor.write.remote(1000 * step + at))
    took_s = time.perf_counter() - began
    print(f"{way}: {rounds} rounds, {took_s / rounds:.3f} s each")
    for actor in (rollout, trainer):
        ray.kill(actor)
        assert lowtide.ray.ended(actor).verdict == "released"
