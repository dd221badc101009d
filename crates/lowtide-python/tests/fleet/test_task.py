"""Tasks that keep their worker as long as a release after each call is proved."""

from __future__ import annotations

import json
import os
from typing import Any

import lowtide.ray
import pytest
from card import Card
from nodes import Fleet

ray = pytest.importorskip("ray", reason="Ray is not installed: `pip install ray[serve]`")
kept: list[Any] = []


def compute(mib: float, seed: int, keep: bool = False, fail: bool = False) -> int:
    """Uses device memory, checks every byte, and returns it unless told to keep it."""
    card = Card(mib, seed)
    card.check()
    if keep:
        kept.append(card)
    else:
        card.free()
    if fail:
        raise ValueError("on purpose")
    return os.getpid()


def task_of(**options: Any) -> Any:
    env = lowtide.ray.runtime_env()
    return lowtide.ray.task(
        to="4 MiB", num_cpus=1, resources={"node0": 100}, runtime_env=env, **options
    )(compute)


def test_a_worker_is_kept_while_its_memory_is_free(fleet: Fleet) -> None:
    task = task_of()
    assert len({ray.get(task.remote(8, seed)) for seed in range(20)}) == 1
    with pytest.raises(ValueError, match="on purpose"):
        ray.get(task.remote(8, 1, fail=True))
    assert len({ray.get(task.remote(8, seed)) for seed in range(5)}) == 1


def test_a_worker_that_keeps_memory_ends_after_its_result(fleet: Fleet) -> None:
    task = task_of(max_retries=0)
    pids = [ray.get(task.remote(8, seed, keep=True)) for seed in range(4)]
    assert len(set(pids)) == 4
    assert all(not os.path.exists(f"/proc/{pid}") for pid in pids[:-1])


def test_a_function_that_does_not_return_once_is_refused() -> None:
    def values() -> Any:
        yield 1

    with pytest.raises(TypeError, match="generator"):
        lowtide.ray.task(to="1 GiB")(values)
    with pytest.raises(ValueError, match="size"):
        lowtide.ray.task(to="much")


def test_kept_workers_do_not_grow(fleet: Fleet, is_long: bool) -> None:
    def after(count: int) -> tuple[int, int]:
        """Runs tasks one by one. Returns the process, and its host memory in KiB."""
        pid = next(
            reversed(
                [
                    ray.get(task.remote(8 if seed % 500 == 0 else 1 / 16, seed))
                    for seed in range(count)
                ]
            )
        )
        with open(f"/proc/{pid}/status") as status:
            (line,) = [line for line in status if line.startswith("VmRSS")]
        return pid, int(line.split()[1])

    task, count = task_of(), 10_000 if is_long else 200
    first = after(count // 10)
    last = after(count)
    print(f"{count} tasks: {first[1]} KiB, then {last[1]} KiB")
    assert first[0] == last[0], "one worker did all of them"
    assert last[1] < first[1] + (16 << 10)
    (device,) = json.loads(fleet.lowtide(0, "ps", "--json"))["devices"]
    assert {process["pid"]: process["bytes"] for process in device["processes"]}[last[0]] == 1 << 20
