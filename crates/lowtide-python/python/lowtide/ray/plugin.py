"""The plug-in of Ray's for runtime environments: `runtime_env={"lowtide": {"share": True, "idle": "30s"}}`.

Each node loads it if its raylet was started with
`RAY_RUNTIME_ENV_PLUGINS='[{"class": "lowtide.ray.Plugin"}]'`. It comes after Ray's own plug-ins and puts
`lowtide run` before the Python that pip, uv, conda or py_executable has chosen.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

from ray._private.runtime_env.plugin import RuntimeEnvPlugin
from ray.exceptions import RuntimeEnvSetupError

from ..__main__ import find_program
from .environment import command, flags, with_check

if TYPE_CHECKING:
    import logging

TRY_S = 30.0


class Plugin(RuntimeEnvPlugin):  # type: ignore[misc]  # Ray has no types.
    """Starts workers under `lowtide run`. The keys are its options: `share`, `idle`, `priority`, …"""

    name = "lowtide"
    priority = 90

    @staticmethod
    def validate(runtime_env_dict: Any) -> None:
        """Refuses what is no option."""
        options(runtime_env_dict)

    async def create(
        self, uri: object, runtime_env: Any, context: Any, logger: logging.Logger
    ) -> float:
        """Tries the options on this node. What refuses them is the reason that the actor or task fails with."""
        import asyncio

        trial = [find_program() or "lowtide", "run", *flags(options(runtime_env)), "--", "true"]
        try:
            done = await asyncio.to_thread(
                subprocess.run, trial, capture_output=True, text=True, timeout=TRY_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as failure:
            raise RuntimeEnvSetupError(f"{trial[0]} does not run on this node: {failure}") from None
        if done.returncode != 0:
            raise RuntimeEnvSetupError(f"lowtide refuses on this node: {done.stderr.strip()}")
        return 0.0

    def modify_context(
        self, uris: object, runtime_env: Any, context: Any, logger: logging.Logger
    ) -> None:
        """Puts `lowtide run` before the Python that was chosen so far."""
        context.py_executable = command(
            options(runtime_env), context.py_executable, find_program() or "lowtide"
        )
        context.env_vars = with_check(context.env_vars)


def options(runtime_env: Any) -> dict[str, object]:
    """Returns the options of a runtime environment. Raises TypeError or ValueError if they are none."""
    found = runtime_env["lowtide"]
    if found is True:
        return {}
    if not isinstance(found, dict):
        raise TypeError(
            f'runtime_env["lowtide"] must be a dict of options of `lowtide run`, not {found!r}'
        )
    flags(found)
    return dict(found)
