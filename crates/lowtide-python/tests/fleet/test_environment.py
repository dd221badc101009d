"""How a worker gets its agent, and what it says where there is none."""

from __future__ import annotations

import json
from typing import Any

import lowtide
import pytest
from card import Holder
from nodes import Fleet

ray = pytest.importorskip("ray", reason="Ray is not installed: `pip install ray[serve]`")
from lowtide.ray import environment, runtime_env


def facts(_actor: object) -> dict[str, Any]:
    """What a worker knows of its agent."""
    import ctypes
    import os

    agent = getattr(ctypes.CDLL(None), "lowtide_agent_version", None)
    names = ("LD_PRELOAD", "__LOWTIDE_RAY_WORKER", "LOWTIDE_SHARE", "LOWTIDE_FREE_ON_IDLE", "THEN")
    return {
        "pid": os.getpid(),
        "agent": agent is not None,
        **{name: os.environ.get(name) for name in names},
    }


def started(env: dict[str, Any], on: str = "node0") -> dict[str, Any]:
    """Starts an actor with a runtime environment on a node. Returns its facts."""
    actor = ray.remote(Holder).options(num_cpus=0, resources={on: 1}, runtime_env=env).remote(4, 1)
    try:
        assert ray.get(actor.check.remote(), timeout=60) == 4 << 20
        return dict(ray.get(actor.__ray_call__.remote(facts)))
    finally:
        ray.kill(actor)


def then() -> None:
    """A hook of the user's own."""
    import os

    os.environ["THEN"] = "called"


@pytest.mark.parametrize("way", ["without a plug-in", "by the plug-in"])
def test_a_worker_has_its_agent_and_the_options(fleet: Fleet, way: str) -> None:
    env = (
        runtime_env(share=True, idle="30s")
        if way == "without a plug-in"
        else {"lowtide": {"share": True, "idle": "30s"}}
    )
    found = started(env)
    assert (
        found["agent"] and found["LOWTIDE_SHARE"] == "1" and found["LOWTIDE_FREE_ON_IDLE"] == "30s"
    )
    # The process is the one that Ray has started: its number is the mark.
    assert found["__LOWTIDE_RAY_WORKER"] == str(found["pid"])


@pytest.mark.parametrize("way", ["without a plug-in", "by the plug-in"])
def test_what_the_user_preloads_and_hooks_is_kept(fleet: Fleet, way: str) -> None:
    mine = fleet.environments[0]["LOWTIDE_NVML_LIBRARY"]
    variables = {"LD_PRELOAD": mine}
    hook = {"worker_process_setup_hook": "test_environment.then"}
    env = runtime_env(env_vars=variables, **hook)
    if way == "by the plug-in":
        env = {"lowtide": {}, "env_vars": {**variables, environment.HOOK: "test_environment.then"}}
    found = started(env)
    assert (
        found["agent"] and found["LD_PRELOAD"].startswith(f"{mine}:") and found["THEN"] == "called"
    )


def test_the_plug_in_composes_with_a_python_that_another_one_has_chosen(fleet: Fleet) -> None:
    found = started({"lowtide": {"share": True}, "py_executable": "env CHOSEN=1 python"})
    assert found["agent"] and found["LOWTIDE_SHARE"] == "1"


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (runtime_env(program="/nowhere/lowtide"), "not found"),
        (runtime_env(run={"no_such_option": True}), "--no-such-option"),
        (runtime_env(env_vars={"LOWTIDE_AGENT_LIBRARY": "/nowhere.so"}), "/nowhere.so"),
        ({"lowtide": {"no_such_option": True}}, "--no-such-option"),
        ({"lowtide": 7}, "must be a dict"),
        # A hook without what it looks for: as where a node has not loaded the plug-in.
        ({"env_vars": environment.with_check({})}, "has not loaded the plug-in"),
    ],
)
def test_a_worker_without_its_agent_fails_with_the_reason(
    fleet: Fleet, env: dict[str, Any], said: str
) -> None:
    with pytest.raises(Exception, match="lowtide") as raised:
        started(env)
    assert said in str(raised.value), raised.value
    assert not isinstance(raised.value, ray.exceptions.GetTimeoutError)


def test_an_agent_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Agent:
        restype = None

        def __call__(self) -> bytes:
            return b"0.0.1"

    class Loaded:
        lowtide_agent_version = Agent()

    monkeypatch.setattr(environment.ctypes, "CDLL", lambda _name: Loaded())
    assert f"0.0.1, and its Python package of {lowtide.__version__}" in str(environment.missing())


def test_what_ray_would_take_instead_is_refused_with_the_way_out() -> None:
    for other in ("pip", "uv", "conda"):
        with pytest.raises(ValueError, match="plug-in"):
            runtime_env(**{other: ["numpy"]})
    with pytest.raises(ValueError, match="the name of a function"):
        runtime_env(worker_process_setup_hook=then)
    with pytest.raises(ValueError, match="no option"):
        runtime_env(run={"to be": 1})


def test_no_node_sees_the_programs_of_another(fleet: Fleet) -> None:
    actors = {
        number: ray.remote(Holder)
        .options(num_cpus=0, resources={f"node{number}": 1}, runtime_env=runtime_env(share=True))
        .remote(8, number)
        for number in range(3)
    }
    pids = {number: ray.get(actor.pid.remote(), timeout=60) for number, actor in actors.items()}
    for number, pid in pids.items():
        lines = [
            json.loads(line) for line in fleet.lowtide(number, "status", "--json").splitlines()
        ]
        assert [line["pid"] for line in lines if "pid" in line] == [pid]
        (queue,) = [line["queue"] for line in lines if "queue" in line]
        assert [holder["pid"] for holder in queue["holders"]] == [pid]
        (device,) = json.loads(fleet.lowtide(number, "ps", "--json"))["devices"]
        assert [process["pid"] for process in device["processes"]] == [pid]
    for actor in actors.values():
        assert ray.get(actor.check.remote()) == 8 << 20
        ray.kill(actor)
