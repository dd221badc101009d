"""What a shutdown plans without a walk over the heap is what it plans with one, on random engines.

Seeds are printed: LOWTIDE_SEED=… runs one of them again.
"""

from __future__ import annotations

import functools
import os
import random
from collections import OrderedDict, deque
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from lowtide._release import plan as _plan

SEED = int(os.environ.get("LOWTIDE_SEED", "0"))
ENGINES = 60 if os.environ.get("LOWTIDE_LONG") == "1" else 20
SEEDS = range(SEED, SEED + (1 if "LOWTIDE_SEED" in os.environ else ENGINES))


Tensor: Any = torch.Tensor


class Plain:
    pass


def _same(one: object) -> object:
    return one


class Engine:
    """Tensors in objects of many kinds that refer to each other at random. Others hold some of them, or none."""

    def __init__(self, dice: random.Random) -> None:
        parts: list[Any] = [torch.zeros(dice.randrange(1, 500)) for _ in range(3)]
        has_shared_memory = dice.random() < 0.4
        for _ in range(dice.randrange(3, 25)):
            parts.append(_made(dice, parts, has_shared_memory))
        for part in dice.sample(parts, dice.randrange(1, 5)):
            setattr(self, f"part{dice.randrange(20)}", part)
        if dice.random() < 0.3:
            self.itself = self


def _made(dice: random.Random, parts: list[Any], has_shared_memory: bool) -> Any:
    one, other = dice.choice(parts), dice.choice(parts)
    tensor = dice.choice([part for part in parts if isinstance(part, torch.Tensor)])
    plain = Plain()
    plain.one, plain.other = one, plain if dice.random() < 0.3 else other  # type: ignore[attr-defined]
    model = torch.nn.Linear(dice.randrange(1, 9), 4)
    model.beside = one  # type: ignore[assignment]
    kinds: list[Any] = [
        lambda: torch.zeros(dice.randrange(1, 500)),
        lambda: [one, other],
        lambda: {"k": one, 2: other},
        lambda: (one, other),
        lambda: deque([one, other]),
        lambda: OrderedDict(first=one, second=other),
        lambda: SimpleNamespace(one=one, other=other),
        lambda: functools.partial(print, one, key=other),
        lambda: lambda: (one, other),
        lambda: plain,
        lambda: model,
        lambda: torch.nn.Sequential(model, torch.nn.ReLU()),
    ]
    if has_shared_memory:
        array = torch.from_numpy(numpy.zeros(50, "f4"))
        # The first question would make it an object.
        array.untyped_storage()
        kinds += [
            lambda: tensor[:1],
            lambda: tensor.detach(),
            lambda: tensor.clone().requires_grad_() * 2,
            lambda: array,
        ]
    return dice.choice(kinds)()


def _elsewhere(dice: random.Random, engine: Engine) -> list[object]:
    """Returns what others have of an engine: nothing, or parts of its parts."""
    found = []
    for _ in range(dice.choice((0, 0, 1, 2))):
        at: Any = dice.choice([one for one in vars(engine).values() if one is not engine])
        for _ in range(dice.randrange(3)):
            inside = list(at.values()) if isinstance(at, dict) else at
            inside = list(vars(at).values()) if type(at) is Plain else inside
            at = dice.choice(inside) if isinstance(inside, (list, tuple, deque)) and inside else at
        is_plain = isinstance(at, torch.Tensor) and not at.requires_grad
        way = dice.choice(("itself", "itself", "array", "storage")) if is_plain else "itself"
        found.append({"array": Tensor.numpy, "storage": Tensor.untyped_storage}.get(way, _same)(at))
    return found


def _planned(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, *, may_be_quick: bool
) -> tuple[bool, object]:
    """Returns whether the heap was not walked, and what would be dropped and freed."""
    own, ways = _plan.plan_shutdown, [False]

    def noting(*given: Any) -> Any:
        found = own(*given[:-1], may_be_quick and given[-1])
        ways.append(found.is_alone)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(_plan, "plan_shutdown", noting)
        made = _plan.plan(engine)
    # Their names come from a variable in one way, from a path in the other.
    steps = sorted((step.path[len(made.name) :], step.bytes or 0) for step in made.steps)
    tensors, stays = (
        # A question may make a storage an object.
        {id(one) for one in _plan.alive(known) if isinstance(one, torch.Tensor)}
        for known in (made.tensors, made.stays)
    )
    return ways[-1], (steps, made.freed_bytes, tensors, stays, made.in_vain)


def test_both_ways_plan_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = []
    for seed in SEEDS:
        print(f"LOWTIDE_SEED={seed}")
        dice = random.Random(seed)
        engine = Engine(dice)
        others = _elsewhere(dice, engine)
        _, plan = _planned(engine, monkeypatch, may_be_quick=False)
        is_quick, quickly = _planned(engine, monkeypatch, may_be_quick=True)
        assert quickly == plan, f"{others=}"
        quick.append(is_quick)
        del engine, others, plan, quickly
    assert len(SEEDS) == 1 or 0 < sum(quick) < len(quick), "both ways were tried"
