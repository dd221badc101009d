"""Models by bytes: the least recently used one leaves, never one in use, and what leaves is measured."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import lowtide.ray
import pytest
from lowtide.ray import multiplex

MIB = 1 << 20


class Device:
    """Counts what models have."""

    def __init__(self) -> None:
        self.bytes = 0
        self.most = 0

    def take(self, bytes_: int) -> None:
        self.bytes += bytes_
        self.most = max(self.most, self.bytes)


class Model:
    def __init__(self, device: Device, name: str, mib: int) -> None:
        self.device, self.name, self.mib, self.is_open = device, name, mib, True
        device.take(mib * MIB)

    def close(self) -> None:
        self.device.take(-self.mib * MIB)
        self.is_open = False


class Sleeper(Model):
    async def sleep(self) -> None:
        # Requests come while it leaves.
        self.is_open = False
        await asyncio.sleep(0.002)
        self.close()

    async def wake_up(self) -> None:
        self.device.take(self.mib * MIB)
        self.is_open = True


class Replica:
    def __init__(self, cls: type[Model] = Model) -> None:
        self.device, self.cls, self.loads = Device(), cls, 0

    @lowtide.ray.multiplexed(budget="40 MiB")
    async def get_model(self, name: str) -> Model:
        self.loads += 1
        await asyncio.sleep(0)
        return self.cls(self.device, name, int(name.rpartition("-")[2]))

    @property
    def models(self) -> multiplex.Models:
        return type(self).get_model.models(self)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has replicas measured by the device that they count on."""
    replica: list[Replica] = []
    monkeypatch.setattr(multiplex, "own_bytes", lambda: replica[0].device.bytes)

    def of(cls: type[Model] = Model) -> Replica:
        replica.insert(0, Replica(cls))
        return replica[0]

    return of


async def use(replica: Replica, *names: str) -> None:
    for name in names:
        async with replica.get_model(name) as model:
            assert model.is_open and model.name == name


@pytest.mark.parametrize("cls", [Model, Sleeper])
def test_the_least_recently_used_leaves_by_bytes(measured: Any, cls: type[Model]) -> None:
    replica = measured(cls)
    asyncio.run(use(replica, "a-10", "b-10", "c-10", "a-10", "d-20"))
    assert list(replica.models.on_device) == ["c-10", "a-10", "d-20"]
    asyncio.run(use(replica, "b-10"))
    # One that sleeps comes back without a load.
    assert replica.loads == (4 if cls is Sleeper else 5)
    # One load may go over: nobody knew how much the first model of 20 MiB would be.
    assert replica.device.most <= 50 * MIB


@pytest.mark.parametrize("cls", [Model, Sleeper])
def test_no_model_leaves_while_a_request_uses_it(measured: Any, cls: type[Model]) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance, replica = random.Random(seed), measured(cls)

    async def request(name: str, by_await: bool) -> None:
        await asyncio.sleep(chance.random())
        if by_await:
            model = await replica.get_model(name)
            await asyncio.sleep(chance.random() / 500)
            assert model.is_open and model.name == name
        else:
            async with replica.get_model(name) as model:
                await asyncio.sleep(chance.random() / 500)
                assert model.is_open and model.name == name

    async def all_of_them() -> None:
        names = ["a-10", "b-10", "c-15", "d-20", "e-30", "f-5"]
        wanted = [request(chance.choice(names), chance.random() < 0.5) for _ in range(150)]
        await asyncio.wait_for(asyncio.gather(*wanted), 120)

    asyncio.run(all_of_them())
    assert replica.device.most <= 40 * MIB + 30 * MIB, (
        "at most one load over, of a model whose size was not known"
    )
    assert sum(replica.models.on_device.values()) == replica.device.bytes <= 40 * MIB


def test_a_model_over_the_budget_is_refused_and_gone(measured: Any) -> None:
    replica = measured()
    with pytest.raises(MemoryError, match="budget of 40 MiB"):
        asyncio.run(use(replica, "a-50"))
    assert replica.device.bytes == 0 and replica.models.on_device == {}
    asyncio.run(use(replica, "b-40"))


def test_what_stays_behind_counts_and_is_told(
    measured: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Leak(Model):
        def close(self) -> None:
            self.device.take(-self.mib * MIB // 2)

    replica = measured(Leak)
    asyncio.run(use(replica, "a-20", "b-20", "c-20"))
    assert "10 MiB of 20 MiB are still on the device" in caplog.text
    assert replica.models.kept_bytes == 20 * MIB and list(replica.models.on_device) == ["c-20"]


def test_where_nothing_can_be_measured_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiplex, "own_bytes", lambda: None)
    with pytest.raises(RuntimeError, match="size="):
        asyncio.run(use(Replica(), "a-10"))
