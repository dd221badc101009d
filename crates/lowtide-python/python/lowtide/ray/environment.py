"""How a worker of Ray gets its agent, and what the worker itself checks.

Ray starts a worker by `exec PYTHON default_worker.py …` in a shell, and PYTHON may be any text: here a command
that becomes `lowtide run OPTIONS -- PYTHON`. A worker that does not start at all would leave its actor waiting
for ever, so that a node where `lowtide` is missing or refuses starts the worker without it and hands the reason
on. Then a hook that Ray calls in each worker raises with that reason, and Ray ends the actor with its text.
"""

from __future__ import annotations

import ctypes
import os
import shlex
from collections.abc import Mapping
from typing import Any

MARK = "__LOWTIDE_RAY_WORKER"
"""The PID of the worker, in the environment of the worker and of all that it starts."""
REFUSED = "__LOWTIDE_RAY_REFUSED"
THEN = "__LOWTIDE_RAY_THEN"
"""The hook that somebody else has set; it is called after ours."""
HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
"""The variable by which Ray hands a hook to its workers. As a key of `runtime_env` it works for jobs only."""
CHECK = "lowtide.ray.check"


def flags(options: Mapping[str, object]) -> list[str]:
    """Returns options as arguments of `lowtide run`. Raises ValueError for what cannot be one."""
    words = []
    for name, value in options.items():
        if not name.isidentifier():
            raise ValueError(f"{name!r} is no option of `lowtide run`")
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if isinstance(value, (list, tuple)):
            words.append(",".join(map(str, value)))
        elif isinstance(value, (str, int, float)) and value is not True:
            words.append(str(value))
        elif value is not True:
            raise ValueError(f"{name}={value!r}: write a text, a number or a list")
    return words


def command(options: Mapping[str, object], python: str, program: str = "lowtide") -> str:
    """Returns a command for `py_executable`: `lowtide run` with these options, then this Python."""
    run = shlex.join([program, "run", *flags(options)])
    # `$$` stays the number of this shell, whatever it becomes. A first run tells whether the second would start.
    script = (
        f"export {MARK}=$$; "
        f'if why=$({run} -- true 2>&1); then exec {run} -- {python} "$@"; fi; '
        f'export {REFUSED}="${{why:-nothing was said}}"; exec {python} "$@"'
    )
    return f"sh -c {shlex.quote(script)} lowtide"


def runtime_env(
    *,
    share: bool = False,
    idle: str | None = None,
    run: Mapping[str, object] | None = None,
    program: str = "lowtide",
    **fields: Any,
) -> dict[str, Any]:
    """Returns a `runtime_env` whose actors and tasks run under `lowtide run`; no plug-in is needed.

    `share=True` and `idle="30s"` are the options of `lowtide run`; `run={"priority": "batch"}` has others. The
    other arguments are fields of Ray's own: `env_vars`, `working_dir`, a `py_executable`. With pip, uv or conda
    use the plug-in, because Ray would take only one of both; ValueError says so.

    `program` is `lowtide` on each node. Where it is missing, refuses, or has another version than the package,
    the worker ends, and its actor fails with the reason.
    """
    for other in ("pip", "uv", "conda", "container", "image_uri"):
        if other in fields:
            raise ValueError(
                f"Ray takes either py_executable or the Python that {other} makes: load the plug-in on each node"
                f' (RAY_RUNTIME_ENV_PLUGINS) and write runtime_env={{"lowtide": {{…}}, "{other}": …}}'
            )
    options = {"share": share, "idle": idle, **(run or {})}
    variables = dict(fields.pop("env_vars", {}))
    hook = fields.pop("worker_process_setup_hook", None)
    if hook is not None and not isinstance(hook, str):
        raise ValueError(
            'worker_process_setup_hook must be the name of a function here: "package.module.function"'
        )
    python = fields.pop("py_executable", "python")
    return {
        **fields,
        "py_executable": command(options, python, program),
        "env_vars": with_check(variables, hook),
    }


def with_check(variables: Mapping[str, str], hook: str | None = None) -> dict[str, str]:
    """Returns variables of a worker that have Ray call `check` in it, and after it the hook that was set."""
    then = hook or variables.get(HOOK) or variables.get(THEN)
    return {**variables, HOOK: CHECK, **({THEN: then} if then and then != CHECK else {})}


def check() -> None:
    """Checks that this worker has its agent, of this package's version. Raises RuntimeError with the reason if not.

    Ray calls it at the start of each worker that `runtime_env` or the plug-in has set up.
    """
    reason = missing()
    if reason is not None:
        node = os.uname().nodename
        raise RuntimeError(f"this worker has no agent of lowtide, on node {node}: {reason}")
    then = os.environ.get(THEN)
    if then:
        from ray._private.runtime_env.setup_hook import load_and_execute_setup_hook

        error = load_and_execute_setup_hook(then)
        if error is not None:
            raise RuntimeError(error)


def missing() -> str | None:
    """Returns why this process has no agent of this version, or None if it has one."""
    from .. import __version__

    refused = os.environ.get(REFUSED)
    if refused:
        return refused.strip()
    agent = getattr(ctypes.CDLL(None), "lowtide_agent_version", None)
    if agent is None:
        return (
            "it was not started by `lowtide run`: the node has not loaded the plug-in, or something has"
            " replaced py_executable or LD_PRELOAD"
        )
    agent.restype = ctypes.c_char_p
    found = agent().decode()
    if found != __version__:
        return f"its agent is of version {found}, and its Python package of {__version__}; install both together"
    return None
