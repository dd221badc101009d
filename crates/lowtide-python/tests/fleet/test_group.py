"""Groups: all or none, and every byte right."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import lowtide.ray
import pytest
from card import Holder, TorchHolder
from lowtide.ray import cluster
from nodes import Fleet

ray = pytest.importorskip("ray", reason="Ray is not installed: `pip install ray[serve]`")
MIB = 1 << 20


def actors_of(count: int, cls: type = Holder, mib: int = 16, **options: Any) -> list[Any]:
    """Starts actors on the nodes in turn."""
    env = lowtide.ray.runtime_env(**options)
    made = [
        ray.remote(cls)
        .options(
            num_cpus=0,
            resources={f"node{at % 3}": 1},
            runtime_env=env,
            name=f"member-{at}-{time.monotonic_ns()}",
        )
        .remote(mib, at)
        for at in range(count)
    ]
    assert ray.get([actor.check.remote() for actor in made], timeout=120) == [mib * MIB] * count
    return made


@pytest.fixture(scope="module")
def six(fleet: Fleet) -> list[Any]:
    return actors_of(6)


@pytest.fixture
def group(six: list[Any]) -> Iterator[lowtide.ray.Group]:
    made = lowtide.ray.Group(six, wait="20s")
    yield made
    # Every byte of those that live, after each test.
    assert ray.get([actor.check.remote() for actor in made.actors], timeout=60) == [16 * MIB] * 6


def states(group: lowtide.ray.Group) -> list[str]:
    return [one.state for one in group.status()]


def test_all_sleep_and_wake_with_a_receipt_for_each(group: lowtide.ray.Group) -> None:
    assert states(group) == ["awake"] * 6
    slept = group.sleep()
    assert slept.is_done and states(group) == ["asleep"] * 6
    for one in slept.members:
        assert [receipt["verdict"] for receipt in one.receipts] == ["released"], slept
        assert sum(receipt["freed_bytes"] for receipt in one.receipts) == 16 * MIB
        assert sum(context["on_device_bytes"] for context in one.status[0]["contexts"]) == 0
    assert 0 < slept.slowest_s < slept.took_s
    # A second sleep finds nothing to do.
    assert group.sleep().is_done
    assert group.wake().is_done and states(group) == ["awake"] * 6
    group.sleep()
    # Each wakes by itself at its next touch, too.
    assert ray.get([actor.check.remote() for actor in group.actors]) == [16 * MIB] * 6
    assert states(group) == ["awake"] * 6


def test_the_processes_that_a_worker_has_started_sleep_with_it(group: lowtide.ray.Group) -> None:
    child = ray.get(group.actors[0].start_child.remote(8))
    try:
        slept = group.sleep()
        assert sum(receipt["freed_bytes"] for receipt in slept.members[0].receipts) == 24 * MIB
        assert group.wake().is_done
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_dead_member_is_named_and_nobody_sleeps(group: lowtide.ray.Group) -> None:
    (dead,) = actors_of(1)
    group = lowtide.ray.Group([*group.actors[:2], dead, *group.actors[3:]])
    ray.kill(dead)
    with pytest.raises(lowtide.ray.GroupError) as raised:
        group.sleep()
    receipt = raised.value.receipt
    assert not receipt.is_done and receipt.dead == [receipt.members[2].actor]
    assert "member-0" in receipt.dead[0] and "none of 6" in str(raised.value)
    assert states(group) == ["awake", "awake", "dead", "awake", "awake", "awake"]


def test_where_one_refuses_the_others_wake_again(group: lowtide.ray.Group) -> None:
    def capture(holder: Any) -> None:
        # Work that does not end keeps a program awake.
        holder.stream = holder.card.begin_capture()

    def end(holder: Any) -> None:
        holder.card.end_capture(holder.stream)

    ray.get(group.actors[4].__ray_call__.remote(capture))
    group = lowtide.ray.Group(group.actors, wait="500ms")
    with pytest.raises(lowtide.ray.GroupError) as raised:
        group.sleep()
    receipt = raised.value.receipt
    assert [bool(one.why) for one in receipt.members] == [False] * 4 + [True, False], receipt
    assert len(receipt.undone) == 5 and states(group) == ["awake"] * 6
    ray.get(group.actors[4].__ray_call__.remote(end))
    assert group.sleep().is_done
    assert ray.get([actor.check.remote() for actor in group.actors]) == [16 * MIB] * 6


def test_a_busy_actor_does_not_hold_up_a_sleep(group: lowtide.ray.Group) -> None:
    resting = group.actors[1].rest.remote(4.0)
    assert group.sleep().is_done
    assert ray.wait([resting], timeout=0)[0] == []
    ray.get(resting)


def test_a_node_is_asked_once_for_all_its_actors(
    group: lowtide.ray.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = cluster.on_nodes

    def counted(method: str, calls: Any) -> Any:
        asked.append(len(calls))
        return ask(method, calls)

    monkeypatch.setattr(cluster, "on_nodes", counted)
    for count in (1, 3, 6):
        lowtide.ray.Group(group.actors[:count]).sleep()
    assert asked == [1, 3, 3]


def test_release_sleeps_only_who_has_more(group: lowtide.ray.Group) -> None:
    assert group.release(to="1 GiB").is_done
    assert states(group) == ["awake"] * 6
    assert group.release(to="8 MiB").is_done
    assert states(group) == ["asleep"] * 6


def test_actors_without_an_agent_are_told_how_to_get_one(fleet: Fleet) -> None:
    actor = ray.remote(Holder).options(num_cpus=0, resources={"node0": 1}).remote(4, 1)
    with pytest.raises(lowtide.ray.GroupError, match="runtime_env"):
        lowtide.ray.Group([actor]).sleep()
    ray.kill(actor)


def test_every_call_has_an_async_form(group: lowtide.ray.Group) -> None:
    async def all_of_them() -> list[str]:
        await group.sleep_async()
        await group.wake_async()
        await group.release_async("1 GiB")
        await group.pause_async()
        await group.resume_async()
        return [one.state for one in await group.status_async()]

    assert asyncio.run(all_of_them()) == ["awake"] * 6


def test_tensors_come_back_equal(fleet: Fleet) -> None:
    pytest.importorskip("torch")
    group = lowtide.ray.Group(actors_of(3, TorchHolder))
    group.sleep()
    assert ray.get([actor.check.remote() for actor in group.actors]) == [16 * MIB] * 3
    for actor in group.actors:
        ray.kill(actor)


class Serial(lowtide.ray.Sleepable):
    """Calls come one after another."""

    def generate(self) -> str:
        with self.work():
            return "text"


class Concurrent(lowtide.ray.Sleepable):
    """Calls share an event loop."""

    def __init__(self) -> None:
        self.begun = 0

    async def generate(self, seconds: float = 0.0) -> str:
        async with self.work():
            self.begun += 1
            await asyncio.sleep(seconds)
            return "text"

    async def count(self) -> int:
        return self.begun


def test_a_pause_lets_work_end_and_none_begin(fleet: Fleet) -> None:
    actor = ray.remote(Concurrent).options(num_cpus=0).remote()
    group = lowtide.ray.Group([actor], wait="10s")
    under_way = actor.generate.remote(1.0)
    while ray.get(actor.count.remote()) == 0:
        time.sleep(0.01)
    group.pause()
    assert ray.wait([under_way], timeout=0.5)[0], "the pause has waited for it"
    later = actor.generate.remote()
    assert ray.wait([later], timeout=0.5)[0] == [] and ray.get(actor.count.remote()) == 1
    group.resume()
    assert ray.get(later, timeout=10) == "text"
    ray.kill(actor)


def test_a_pause_that_one_cannot_join_pauses_nobody(fleet: Fleet) -> None:
    serial, other = [ray.remote(Serial).options(num_cpus=0).remote() for _ in range(2)]
    group = lowtide.ray.Group([serial, other])
    group.pause()
    with pytest.raises(lowtide.ray.Paused, match="resume"):
        ray.get(serial.generate.remote())
    group.resume()
    assert ray.get(serial.generate.remote()) == "text"
    ray.kill(other)
    with pytest.raises(lowtide.ray.GroupError):
        group.pause()
    assert ray.get(serial.generate.remote(), timeout=10) == "text"
    ray.kill(serial)
