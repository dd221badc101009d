"""`python -m lowtide.ray` where Ray or a cluster is missing; it is tried with both in fleet/test_view.py."""

from __future__ import annotations

import socket
import sys
from types import ModuleType

import pytest
from lowtide.ray.__main__ import main


@pytest.mark.parametrize("question", ["status", "top"])
def test_without_ray_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], question: str
) -> None:
    # A folder of this name in the working directory, which is no Ray.
    for absent in (None, ModuleType("ray")):
        monkeypatch.setitem(sys.modules, "ray", absent)
        assert main([question]) == 3
        said = capsys.readouterr()
        assert said.out == "" and f'`{sys.executable} -m pip install "lowtide[ray]"`' in said.err


def test_without_a_cluster_it_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def refuse(address: str, **_options: object) -> None:
        asked.append(address)
        # As Ray says it where a token is missing.
        text = "failed:\nTraceback:\n  File x\nray.exceptions.AuthError: no token\n\nIt never ran."
        raise ConnectionError("failed to connect") from RuntimeError(text)

    ray = ModuleType("ray")
    monkeypatch.setattr(ray, "init", refuse, raising=False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert main(["status"]) == 3
    said = capsys.readouterr().err
    assert "no cluster of Ray answers on this machine: ray.exceptions.AuthError: no token;" in said
    assert "`ray start --head` starts one" in said
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert main(["status"]) == 3
    # Nobody listens there: Ray would try for minutes, and is not asked.
    assert f"no cluster of Ray answers at {address}" in capsys.readouterr().err
    assert asked == ["auto"]
