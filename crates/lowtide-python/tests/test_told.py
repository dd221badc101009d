"""What people are told where nothing can be freed, and which words are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from kernel import MIB, weights

NOTHING = "nothing can be freed here: "


def said(program: str, **variables: str) -> str:
    """What a program without a device writes to standard error."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("LOWTIDE_")
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment | variables | {"CUDA_VISIBLE_DEVICES": ""},
        cwd=Path(__file__).parent,
        check=True,
        timeout=120,
    )
    return done.stderr


def test_idle_without_a_device_says_once_why_and_what_works() -> None:
    told = said("import lowtide, torch\nfor _ in range(3):\n    lowtide.idle('1h').close()")
    assert told.count(NOTHING) == 1
    for words in ("lowtide.idle()", "no such device", "LOWTIDE_DEVICE=cpu", "lowtide.Worker"):
        assert words in told
    assert "torch is not imported" in said("import lowtide; lowtide.idle('1h')")
    assert said("import lowtide; lowtide.idle('off'); lowtide.idle('1h', device='host')") == ""


def test_the_variable_without_a_device_says_so_too() -> None:
    look = "lowtide._idle.ambient.LOOK_S = 0.01\nlowtide._idle.ambient.start('{}').thread.join({})"
    wait = f"import lowtide, lowtide._idle.ambient{{}}\n{look}"
    told = said(wait.format(", torch", "5m", 0.5))
    assert told.count(NOTHING) == 1 and "LOWTIDE_FREE_ON_IDLE=5m" in told
    told = said(wait.format("", "20ms", 0.5))
    assert told.count(NOTHING) == 1 and "torch is not imported" in told
    assert said(wait.format("", "1h", 0.2)) == "", "torch may still come"


def test_a_worker_without_a_device_says_what_ends_it() -> None:
    start = "import lowtide, workers\nfor _ in range(2):\n    with lowtide.Worker(workers.load_reranker, 'a') as w: w.start()"
    told = said(start)
    assert told.count(NOTHING) == 1 and "close()" in told
    assert said(start, LOWTIDE_DEVICE="cpu") == ""


STAGES = """
import torch, lowtide
class Model(torch.nn.Linear):
    pass
for name in "ab":
    with lowtide.stage(name):
        model = Model(2048, 2048)
        result = model(torch.ones(1, 2048)){}
"""


def test_a_stage_that_fails_says_so_where_no_logging_is_set_up() -> None:
    told = said(STAGES.format(""), LOWTIDE_DEVICE="cpu")
    assert told.count("stage a on cpu: pinned") == told.count("stage b on cpu: pinned") == 1
    assert "result.detach_()" in told
    assert said(STAGES.format(".detach()"), LOWTIDE_DEVICE="cpu") == ""
    assert said(STAGES.format(""), LOWTIDE_DEVICE="cpu", LOWTIDE_LOG="off") == ""


def test_log_lines_are_objects_where_that_is_asked_for() -> None:
    hostile = STAGES.format("").replace('"ab"', r'["x\n\x1b[2J", "a", "b"]')
    told = said(hostile, LOWTIDE_DEVICE="cpu", LOWTIDE_LOG="debug", LOWTIDE_LOG_FORMAT="json")
    lines = [json.loads(line) for line in told.splitlines()]
    assert all(list(line) == ["timestamp", "level", "fields", "target"] for line in lines)
    warned = [line for line in lines if line["level"] == "WARNING"]
    assert len(warned) == 3 and all("pinned" in line["fields"]["message"] for line in warned)
    assert any("rung" in line["fields"] for line in lines), "numbers are keys"


def test_cuts_that_free_only_together_say_so() -> None:
    several = "[model(torch.ones(1, 2048)) for _ in range(3)]"
    told = said(
        STAGES.format("").replace("model(torch.ones(1, 2048))", several), LOWTIDE_DEVICE="cpu"
    )
    assert "cut 1: lets" in told and "go together with cuts 2 and 3" in told, told


def test_stages_and_tasks_without_a_device_say_so_once() -> None:
    told = said(STAGES.format("") + "list(lowtide.tasks('ab'))")
    assert told.count(NOTHING) == 1 and "stages and tasks" in told and "no such device" in told


def test_a_level_that_nobody_knows_is_told_once() -> None:
    told = said(STAGES.format(".detach()"), LOWTIDE_DEVICE="cpu", LOWTIDE_LOG="nonsense")
    assert told.count("LOWTIDE_LOG=nonsense names no level") == 1 and "info" in told
    for level in ("lowtide_pool=trace", "lowtide=warn", "error,lowtide_pool=trace"):
        assert said(STAGES.format(".detach()"), LOWTIDE_DEVICE="cpu", LOWTIDE_LOG=level) == ""


def test_under_the_agent_the_variable_is_the_agents_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from lowtide._idle import ambient

    class Status:
        idle_s: float | None = 300.0

    class Device:
        kind = "cuda"

    device: Any = Device()
    assert not ambient._is_agents(device), "there is no agent in this process"
    monkeypatch.setattr(ambient, "agent_status", Status)
    assert ambient._is_agents(device)
    Device.kind = "cpu"
    assert not ambient._is_agents(device), "the agent frees no host memory"
    Device.kind, Status.idle_s = "cuda", None
    assert not ambient._is_agents(device)


@pytest.mark.parametrize("after", [0, 0.0, 1e-9, "0s", "0ms"])
def test_no_time_at_all_is_refused(after: Any) -> None:
    with pytest.raises(ValueError, match='"task" releases at the end of each task'):
        lowtide.idle(after, device="cpu")


def test_before_the_first_task_nothing_is_released() -> None:
    with lowtide.idle("10ms", device="cpu") as switch:
        time.sleep(0.2)
        assert switch.tick() is None and switch.last is None


def test_a_variable_that_says_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWTIDE_FREE_ON_IDLE", "rubbish")
    with pytest.raises(ValueError, match="^LOWTIDE_FREE_ON_IDLE: .*rubbish"):
        lowtide.idle("5m", device="cpu")


def test_a_device_that_is_missing_beside_host_memory_is_no_contradiction() -> None:
    (line,) = [line for line in lowtide.release(device="xpu:0").advice if "torch" in line]
    assert "has no such device here" in line and line.count("LOWTIDE_DEVICE") == 1
    assert "LOWTIDE_DEVICE is cpu" not in line, line


def test_host_memory_has_two_names() -> None:
    assert lowtide.empty_device_cache("host").device == "cpu"
    assert lowtide.why(device="host").device == lowtide.why(device="cpu").device
    lowtide.idle("1h", device="HOST").close()
    assert lowtide.release(device="host").device == "cpu"


def test_a_first_clean_task_is_released(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lowtide")
    for _task in lowtide.tasks(["first", "second"], device="cpu"):
        torch.zeros(1000)
    verdicts = [record.__dict__["lowtide_verdict"] for record in caplog.records]
    assert verdicts == ["released", "released"]


@pytest.mark.usefixtures("clean")
def test_a_task_that_keeps_memory_ends_with_what_to_type(caplog: pytest.LogCaptureFixture) -> None:
    kept = []
    for task in lowtide.tasks(["first", "second"], device="cpu"):
        kept.append(weights(64 * MIB) if task == "second" else None)
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "a task keeps memory. What holds it: `lowtide.why()`;" in record.getMessage()
    assert "Rust" not in record.getMessage()
