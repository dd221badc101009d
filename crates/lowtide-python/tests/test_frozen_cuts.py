"""On a heap that is frozen, as servers have it, a printed statement runs as it stands and frees."""

from __future__ import annotations

import asyncio
import codecs
import contextvars
import gc
from collections.abc import Callable
from typing import Any

import lowtide
import pytest
import torch
from alone import in_a_fork
from torch.multiprocessing.reductions import StorageWeakRef

SIZE = 24 << 20
kept: dict[str, Any] = {}


def large() -> torch.Tensor:
    return torch.ones(SIZE // 4)


def a_waiting_task(tensor: torch.Tensor) -> None:
    """Found by its name, or over its loop."""
    loop = kept["loop"] = asyncio.new_event_loop()

    async def wait(held: torch.Tensor) -> None:
        await asyncio.sleep(1000)

    loop.create_task(wait(tensor))
    loop.run_until_complete(asyncio.sleep(0))


def a_task_that_nobody_wakes(tensor: torch.Tensor) -> None:
    loop = kept["loop"] = asyncio.new_event_loop()

    async def wait(held: torch.Tensor) -> None:
        await loop.create_future()

    kept["tasks"] = {loop.create_task(wait(tensor))}
    loop.run_until_complete(asyncio.sleep(0))


def copied_contexts(tensor: torch.Tensor) -> None:
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable")
    kept["contexts"] = [contextvars.copy_context(), contextvars.copy_context()]
    for context in kept["contexts"]:
        context.run(variable.set, tensor)


def a_codec(tensor: torch.Tensor) -> None:
    def search(name: str, table: torch.Tensor = tensor) -> None:
        return None

    codecs.register(search)


def a_cycle_behind_a_name(tensor: torch.Tensor) -> None:
    kept["cycle"] = {"tensor": tensor}
    kept["cycle"]["itself"] = kept["cycle"]


@pytest.mark.parametrize(
    "leak",
    [a_waiting_task, a_task_that_nobody_wakes, copied_contexts, a_codec, a_cycle_behind_a_name],
)
@in_a_fork
def test_a_cut_on_a_frozen_heap_runs_as_it_stands_and_frees(
    leak: Callable[[torch.Tensor], None],
) -> None:
    tensor = large()
    storage = StorageWeakRef(tensor.untyped_storage())
    leak(tensor)
    del tensor
    gc.collect()
    gc.freeze()
    (held,) = [one for one in lowtide.why(device="cpu").held if one.bytes == SIZE]
    cut = held.cuts[0]
    if cut.code is None:
        cut.apply()
    else:
        exec(cut.code, globals())
    assert storage.expired(), held
