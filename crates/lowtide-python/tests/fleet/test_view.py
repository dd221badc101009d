"""The view of the cluster: `python -m lowtide.ray status`, `lowtide ps --ray` and `top --ray`; metrics of each node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import lowtide.ray
import pytest
from card import Holder
from nodes import BUILT, Fleet

ray = pytest.importorskip("ray", reason="Ray is not installed: `pip install ray[serve]`")


def said(fleet: Fleet, *command: str) -> str:
    """Runs a command that asks the cluster, with this Python on the search path."""
    environment = {
        **os.environ,
        "RAY_ADDRESS": fleet.cluster.address,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("way", ["package", "program"])
def test_every_node_shows_its_own_programs(fleet: Fleet, way: str) -> None:
    env = lowtide.ray.runtime_env()
    actors = [
        ray.remote(Holder)
        .options(num_cpus=0, resources={f"node{at}": 1}, runtime_env=env)
        .remote(8, at)
        for at in (0, 1)
    ]
    actors.append(ray.remote(Holder).options(num_cpus=0, resources={"node1": 1}).remote(8, 3))
    pids = ray.get([actor.pid.remote() for actor in actors], timeout=60)
    lowtide.ray.Group(actors[:1]).sleep()
    program = str(BUILT / "lowtide")
    status = (
        [sys.executable, "-m", "lowtide.ray", "status"]
        if way == "package"
        else [program, "ps", "--ray"]
    )
    lines = said(fleet, *status, "--json").splitlines()
    by_node = {line["node"]: line for line in map(json.loads, lines)}
    nodes = [fleet.id_of(at) for at in range(3)]
    assert set(nodes) == set(by_node)
    listed = [[one["pid"] for one in by_node[node]["programs"]] for node in nodes[:2]]
    assert listed == [[pids[0]], [pids[1]]]
    text = said(fleet, *status)
    assert f"node {nodes[0][:8]} {os.uname().nodename}" in text.splitlines()
    assert (
        f"process {pids[0]}, 1 MiB, asleep" in text and f"process {pids[1]}, 9 MiB, awake" in text
    )
    assert f"process {pids[2]}, 9 MiB, not started by `lowtide run`" in text
    look = json.loads(
        said(fleet, program, "top", "--ray", "--once", "2", "--every", "0.1", "--json")
    )
    assert look["problems"] == [] and {device["node"] for device in look["devices"]} == set(by_node)
    seen = [(one["node"], one["pid"], one["state"]) for one in look["programs"]]
    states = zip((nodes[0], nodes[1], nodes[1]), pids, ("asleep", "awake", "no_agent"), strict=True)
    assert sorted(seen) == sorted(states)
    for device in look["devices"]:
        assert sum(device["bands"].values()) == device["total_bytes"] - device["free_bytes"]
    assert f"node {min(by_node)[:8]} cuda:0" in said(fleet, program, "top", "--ray", "--once")
    # Each node's metrics are of its own programs.
    counted = [
        f'lowtide_program_state{{state="{state}"}} 1' in fleet.lowtide(at, "metrics")
        for at in (0, 1)
        for state in ("asleep", "awake", "no_agent")
    ]
    assert counted == [True, False, False, False, True, True]
    for actor in actors:
        ray.kill(actor)


def test_a_lost_node_is_not_in_the_way(fleet: Fleet) -> None:
    status, lost = (str(BUILT / "lowtide"), "ps", "--ray"), fleet.add()
    assert fleet.id_of(lost)[:8] in said(fleet, *status)
    fleet.cluster.remove_node(fleet.handles[lost], allow_graceful=False)
    # Ray learns of it meanwhile.
    assert fleet.id_of(1)[:8] in said(fleet, *status)
    while fleet.id_of(lost) in lowtide.ray.cluster.nodes():
        time.sleep(0.1)
    assert fleet.id_of(lost)[:8] not in said(fleet, *status)
