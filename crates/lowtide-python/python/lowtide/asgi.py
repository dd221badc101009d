"""Servers free memory while they serve nobody: `Idle`, a middleware for any ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from ._devices.choose import device_of, tell_of_none
from ._idle.idle import Idle as Switch, Work, idle, is_on
from ._runtime.torch import torch
from ._runtime.waiting import in_thread

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Idle:
    """Frees memory when the server has served nobody for a while: `app = Idle(app, after="5m")`, or
    `app.add_middleware(lowtide.asgi.Idle, after="5m", to="512 MiB")` in Starlette and FastAPI.

    Each request, each WebSocket and the start of the application is a task of `lowtide.idle(after,
    to=to)`. Paths in `ignore` are none: they neither wait for a wake nor keep memory.
    """

    def __init__(
        self,
        app: App,
        after: float | str | None = "5m",
        *,
        to: str | int | None = None,
        device: object = None,
        ignore: Iterable[str] = (),
    ) -> None:
        self._app, self._device = app, device
        self._ignored = {ignore} if isinstance(ignore, str) else set(ignore)
        # A server may be made before it imports torch, or before it forks: the thread begins later.
        self._make = partial(idle, after, device=device, to=to)
        self._looks = is_on(after, to)
        device_of(device)  # Refused now rather than by each request.
        self._idle: Switch | None = None
        self._missed = False

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serves one request, one WebSocket, or the lifespan of the server."""
        path = scope.get("path", "")
        below = path.removeprefix(scope.get("root_path", "").rstrip("/"))
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif path in self._ignored or below in self._ignored:
            await self._app(scope, receive, send)
        else:
            work = await self._begin()
            try:
                await self._app(scope, receive, send)
            finally:
                self._end(work)

    async def _live(self, scope: Message, receive: Receive, send: Send) -> None:
        """Runs the application's lifespan with the start as a task. Serves one that has none, too."""
        start = ExitStack()
        has_begun = False

        async def receives() -> Message:
            nonlocal has_begun
            has_begun, message = True, await receive()
            if message["type"] == "lifespan.startup":
                start.callback(self._end, await self._begin())
            elif self._idle is not None:
                ending, self._idle = self._idle, None
                await in_thread(ending.close)
            return message

        async def sends(message: Message) -> None:
            start.close()
            await send(message)

        try:
            with start:
                await self._app(scope, receives, sends)
        except Exception:
            # What is raised before the first event only says that the application has no lifespan.
            if has_begun:
                raise
        if not has_begun:
            for event in ("startup", "shutdown"):
                await receives()
                await sends({"type": f"lifespan.{event}.complete"})

    def _found(self) -> Switch | None:
        if self._looks and self._idle is None and device_of(self._device) is not None:
            self._idle = self._make()
        return self._idle

    async def _begin(self) -> Work | None:
        """Begins a task when everything is back, or returns `None` if it is off or there is no device."""
        found = self._found()
        return None if found is None else await found.work().__aenter__()

    def _end(self, work: Work | None) -> None:
        """Ends a task, and waits for nothing. One that has imported torch counts from here."""
        found = self._found() if work is None else None
        ended = found.work() if found is not None else work
        if ended is not None:
            ended.leave()
        elif self._looks:
            # The first task may import torch later on. A torch without a device gets none.
            self._looks, has_missed, self._missed = torch() is None, self._missed, True
            if has_missed or not self._looks:
                tell_of_none("lowtide.asgi.Idle")
