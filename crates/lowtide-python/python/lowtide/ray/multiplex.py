"""Many models in one Serve replica, by bytes: `@lowtide.ray.multiplexed(budget="40 GiB")`.

Ray's own `serve.multiplexed` counts models, and unloads by calling `__del__`, also while a request uses the model.
Here the least recently used model leaves until the next one fits, never one in use, and what has left is measured.
A model with `sleep()` and `wake_up()` sleeps instead, and comes back without a load.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Generator
from typing import Any

from .._native import parse_bytes
from .._runtime.log import logger
from .own import own_bytes

NEAR = 0.9
"""So much of a model's bytes must have left. The rest is what libraries keep."""


class Entry:
    """A model, its size, and the requests that use it."""

    def __init__(self, model: Any, bytes_: int) -> None:
        self.model, self.bytes = model, bytes_
        self.users = 0
        self.is_asleep = False


class Models:
    """The models of one replica, the least recently used one first."""

    def __init__(
        self, budget: int, load: Callable[[str], Any], size: Callable[[Any], int] | None
    ) -> None:
        self.budget = budget
        self._load, self._size = load, size
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._turn = asyncio.Lock()
        """One model comes or leaves at a time, so that what it takes can be measured."""
        self._left = asyncio.Event()
        self.kept_bytes = 0
        """What models have left behind although they were unloaded."""

    @property
    def on_device(self) -> dict[str, int]:
        """The models that are on the device, with their bytes."""
        return {name: one.bytes for name, one in self._entries.items() if not one.is_asleep}

    async def take(self, name: str) -> Entry:
        """Returns a model that is on the device, in use from now on; `give_back` ends the use."""
        entry = self._entries.get(name)
        if entry is None or entry.is_asleep:
            async with self._turn:
                entry = self._entries.get(name)
                if entry is None:
                    entry = await self._loaded(name)
                elif entry.is_asleep:
                    await self._make_room(entry.bytes, name)
                    await _called(entry.model.wake_up)
                    entry.is_asleep = False
                entry.users += 1
        else:
            entry.users += 1
        self._entries.move_to_end(name)
        return entry

    def give_back(self, entry: Entry) -> None:
        """Ends a use of a model."""
        entry.users -= 1
        self._left.set()

    async def _loaded(self, name: str) -> Entry:
        # Of a model that is not known yet, the largest one tells how much it may be.
        await self._make_room(self._sizes.get(name, max(self._sizes.values(), default=0)), name)
        before = own_bytes()
        model = await _called(self._load, name)
        entry = Entry(model, self._measured(model, before))
        self._sizes[name] = entry.bytes
        self._entries[name] = entry
        try:
            if entry.bytes + self.kept_bytes > self.budget:
                has = f"{entry.bytes >> 20} MiB, and {self.kept_bytes >> 20} MiB were left behind by others"
                raise MemoryError(
                    f"model {name!r} has {has}: more than the budget of {self.budget >> 20} MiB"
                )
            entry.users += 1
            await self._make_room(0, name)
            entry.users -= 1
        except BaseException:
            del model
            await self._unload(name)
            raise
        _tell_serve(list(self._entries))
        return entry

    def _measured(self, model: Any, before: int | None) -> int:
        if self._size is not None:
            return self._size(model)
        after = own_bytes()
        if before is None or after is None:
            raise RuntimeError(
                "how much memory a model has cannot be measured here: start the replica under lowtide"
                " (lowtide.ray.runtime_env), or give multiplexed a size="
            )
        return max(after - before, 0)

    async def _make_room(self, bytes_: int, for_: str) -> None:
        """Has models leave until so much fits. Waits for the end of requests where all are in use."""
        while sum(self.on_device.values()) + self.kept_bytes + bytes_ > self.budget:
            idle = [
                name for name in self.on_device if not self._entries[name].users and name != for_
            ]
            if idle:
                await self._unload(idle[0])
                continue
            if not any(one.users for name, one in self._entries.items() if name != for_):
                return  # Nobody can leave: the load itself will tell.
            self._left.clear()
            await self._left.wait()

    async def _unload(self, name: str) -> None:
        entry = self._entries[name]
        before = own_bytes()
        if hasattr(entry.model, "sleep") and hasattr(entry.model, "wake_up"):
            # Before it leaves: who wants it meanwhile waits for the turn.
            entry.is_asleep = True
            try:
                await _called(entry.model.sleep)
            except BaseException:
                entry.is_asleep = False
                raise
        else:
            del self._entries[name]
            close = getattr(entry.model, "close", None)
            if close is not None:
                await _called(close)
            entry.model = None
            await asyncio.to_thread(_collect)
            _tell_serve(list(self._entries))
        after = own_bytes()
        if before is not None and after is not None and before - after < NEAR * entry.bytes:
            kept = entry.bytes - max(before - after, 0)
            # One that stayed awake counts as what it is.
            self.kept_bytes += 0 if entry.is_asleep else kept
            entry.is_asleep = False
            said = f"{kept >> 20} MiB of {entry.bytes >> 20} MiB are still on the device"
            logger().warning(
                "model %s has left, and %s; lowtide.why() names the holders", name, said
            )


class _Use:
    """A model for a request: `await` keeps it until the request's task ends, `async with` until the block does."""

    def __init__(self, models: Models, name: str) -> None:
        self._models, self._name = models, name
        self._entry: Entry | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        return self._until_the_task_ends().__await__()

    async def _until_the_task_ends(self) -> Any:
        entry = await self._models.take(self._name)
        task = asyncio.current_task()
        assert task is not None, "an await has a task"
        task.add_done_callback(lambda _task: self._models.give_back(entry))
        return entry.model

    async def __aenter__(self) -> Any:
        self._entry = await self._models.take(self._name)
        return self._entry.model

    async def __aexit__(self, *_exception: object) -> None:
        if self._entry is not None:
            self._models.give_back(self._entry)


def multiplexed(
    *, budget: str | int, size: Callable[[Any], int] | None = None
) -> Callable[[Callable[..., Any]], Any]:
    """Makes a method that loads a model by its id into one that keeps models within a budget of bytes.

        @serve.deployment
        class Models:
            @lowtide.ray.multiplexed(budget="40 GiB")
            async def get_model(self, model_id: str): ...

            async def __call__(self, request):
                model = await self.get_model(serve.get_multiplexed_model_id())

    The model is in use until the request ends, or until the end of `async with self.get_model(…) as model`.
    `size(model)` says its bytes; otherwise they are measured around the load. Raises MemoryError for a model
    that is larger than the budget.
    """
    budget_bytes = parse_bytes(budget)

    def decorate(load: Callable[..., Any]) -> Any:
        kept = f"_lowtide_models_{load.__name__}"

        @functools.wraps(load)
        def get(self: Any, model_id: str) -> _Use:
            return _Use(models(self), model_id)

        def models(self: Any) -> Models:
            found: Models | None = self.__dict__.get(kept)
            if found is None:
                found = Models(budget_bytes, functools.partial(load, self), size)
                self.__dict__[kept] = found
            return found

        get.models = models  # type: ignore[attr-defined]
        return get

    return decorate


async def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function, in a thread unless it is a coroutine's: the replica serves meanwhile."""
    if inspect.iscoroutinefunction(getattr(function, "func", function)):
        return await function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def _collect() -> None:
    from .._release.release import empty_device_cache

    gc.collect()
    empty_device_cache(collect=False)


def _tell_serve(names: list[str]) -> None:
    """Tells Serve which models are here, so that it sends requests for them here. Nothing outside a replica."""
    if "ray.serve" not in sys.modules:
        return
    from ray.serve._private.common import RequestRoutingInfo
    from ray.serve.context import _get_global_client, _get_internal_replica_context

    context = _get_internal_replica_context()
    if context is not None:
        here = RequestRoutingInfo(replica_id=context.replica_id, multiplexed_model_ids=names)
        _get_global_client().record_request_routing_info(here)
