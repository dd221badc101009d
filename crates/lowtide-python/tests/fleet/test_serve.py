"""More models than the budget in a replica of Serve: every answer right, and never more than the budget."""

from __future__ import annotations

import random
from typing import Any

import lowtide.ray
import pytest
from card import Card
from nodes import Fleet

ray = pytest.importorskip("ray", reason="Ray is not installed: `pip install ray[serve]`")
serve = pytest.importorskip("ray.serve", reason="Serve is not installed: `pip install ray[serve]`")
MIB = 1 << 20


class Model:
    """Device memory that says whose it is."""

    def __init__(self, name: str) -> None:
        self.card = Card(16, int(name))

    def close(self) -> None:
        self.card.free()


class Sleeper(Model):
    """A model that leaves and comes back with its data."""

    def sleep(self) -> None:
        self.held = [self.card.read(block) for block in range(2)]
        self.card.free()

    def wake_up(self) -> None:
        self.card = Card(16, self.card._seed)
        assert self.held == [self.card.read(block) for block in range(2)]


class Replica:
    def __init__(self, cls: type[Model]) -> None:
        self.cls, self.loads, self.most = cls, 0, 0

    @lowtide.ray.multiplexed(budget="56 MiB")
    async def get_model(self, name: str) -> Model:
        self.loads += 1
        return self.cls(name)

    async def __call__(self) -> tuple[int, int, int]:
        model = await self.get_model(serve.get_multiplexed_model_id())
        kept = type(self).get_model.models(self)
        self.most = max(self.most, sum(kept.on_device.values()) + kept.kept_bytes)
        return model.card.check(), self.loads, self.most


@pytest.mark.parametrize("cls", [Model, Sleeper])
def test_more_models_than_the_budget_answer_right(fleet: Fleet, cls: type[Model]) -> None:
    env = lowtide.ray.runtime_env()
    options: dict[str, Any] = {"num_cpus": 0, "resources": {"node0": 1}, "runtime_env": env}
    made = serve.deployment(Replica).options(ray_actor_options=options, max_ongoing_requests=8)
    serve.start(proxy_location="Disabled")
    handle = serve.run(made.bind(cls), name="models", route_prefix=None)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    names = [str(number) for number in range(6)]
    asked = [handle.options(multiplexed_model_id=chance.choice(names)).remote() for _ in range(80)]
    answers = [answer.result(timeout_s=120) for answer in asked]
    assert all(read == 16 * MIB for read, _, _ in answers)
    # A context came with the first model, and is counted as its.
    assert max(most for _, _, most in answers) <= 56 * MIB
    loads = max(loads for _, loads, _ in answers)
    assert loads == 6 if cls is Sleeper else loads > 6
    serve.shutdown()
