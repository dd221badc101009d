"""`python -m lowtide.ray status`: the view of the cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import lowtide.ray
import pytest
from card import Holder
from lowtide.ray import __main__ as view
from nodes import Fleet

ray = pytest.importorskip("ray", reason="Ray is not installed: `pip install ray[serve]`")


def status(fleet: Fleet, *words: str) -> str:
    command = [
        sys.executable,
        "-m",
        "lowtide.ray",
        "status",
        "--address",
        fleet.cluster.address,
        *words,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_node_shows_its_own_programs(fleet: Fleet) -> None:
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
    by_node = {line["node"]: line for line in map(json.loads, status(fleet, "--json").splitlines())}
    assert set(by_node) == {fleet.id_of(at) for at in range(3)}
    listed = [[one["pid"] for one in by_node[fleet.id_of(at)]["programs"]] for at in range(3)]
    assert listed == [[pids[0]], [pids[1]], []]
    text = status(fleet)
    assert (
        f"process {pids[0]}, 1 MiB, asleep" in text and f"process {pids[1]}, 9 MiB, awake" in text
    )
    assert f"process {pids[2]}, 9 MiB, not started by `lowtide run`" in text
    # It is looked at again after a node and its actor are gone.
    fleet.cluster.remove_node(fleet.handles[2], allow_graceful=False)
    assert fleet.id_of(1)[:8] in status(fleet)
    for actor in actors:
        ray.kill(actor)


def test_without_a_cluster_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(ray, "init", refuse)
    assert view.main(["status"]) == 3
    assert "there is no cluster to look at: nobody answers" in capsys.readouterr().err
