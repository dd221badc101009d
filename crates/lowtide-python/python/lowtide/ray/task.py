"""Tasks that keep their worker: `@lowtide.ray.task(to="1 GiB")`.

Ray ends the worker of a GPU task after each call (`max_calls=1`), because memory would stay. Here the worker
stays as long as a release after the call is proved by the driver's number; otherwise it ends as before.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from typing import Any

from .._native import parse_bytes
from .._runtime.log import logger
from .own import settle

NEVER = 1 << 30
"""So many calls end a worker: Ray's own count, which is filled where a worker has to end."""


def task(*, to: str | int, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Makes a function a Ray task whose worker is kept: `@lowtide.ray.task(to="1 GiB", num_gpus=1)`.

    After each call, also a failed one, memory is released until the process has at most `to` on each device,
    its context included. If the driver's number does not confirm it, the worker ends after the result was
    handed over, as with `max_calls=1`. The other arguments are options of `ray.remote`.

    The result must not hold device memory. Raises TypeError for a generator or a coroutine function.
    """
    parse_bytes(to)

    def decorate(function: Callable[..., Any]) -> Any:
        import ray

        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise TypeError(
                f"{function.__qualname__} must return once: a generator keeps memory between values"
            )

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                # The variables of its frames would stay until Ray has sent it.
                traceback.clear_frames(error.__traceback__)
                raise
            finally:
                del args, kwargs
                _keep_or_end(function.__qualname__, to)

        return ray.remote(max_calls=NEVER, **options)(call)

    return decorate


def _keep_or_end(name: str, to: str | int) -> None:
    verdict = settle(to)
    if verdict != "released":
        logger().warning(
            "the worker of task %s ends after this call: %s, not at most %s", name, verdict, to
        )
        _end_after_this_call()


def _end_after_this_call() -> None:
    """Has Ray end this worker once the result was sent, by its own way: the count of `max_calls` is full."""
    import ray._private.worker

    counts = ray._private.worker.global_worker.function_actor_manager._num_task_executions
    for function in counts:
        counts[function] = NEVER - 1
