"""SGLang 0.5.23: its own plug-ins, registry and `Scheduler.continue_generation`, plain and adopted.

A scheduler with a model needs a GPU. The method is called on a stand-in for the scheduler, which has the
attributes that the method reads; registry, method, request and enums are SGLang's own. The memory is host
memory (LOWTIDE_DEVICE=cpu): what SGLang itself logs about CUDA is 0 here.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import types
import warnings
from typing import Any

UPDATES = 6
LIMIT_S = 1800


def main() -> None:
    os.environ |= {"LOWTIDE_DEVICE": "cpu"}
    os.environ.pop("LOWTIDE_ADOPT", None)
    warnings.simplefilter("ignore")
    # Once for all children, because it takes long. SGLang starts its plug-ins in each child.
    import sglang.srt.managers.scheduler  # noqa: F401

    assert "lowtide" not in sys.modules
    plain = child({"SGLANG_PLUGINS": "none"})
    unset = child({})
    by_variable = child({"LOWTIDE_ADOPT": "sglang"})
    early = child({}, before=adopt)
    late = child({}, after=adopt)
    states = [one for update in range(UPDATES) for one in (True, (False, update != UPDATES - 1))]
    for one in (plain, unset, by_variable, early, late):
        assert (one["states"], one["intervals"]) == (states, UPDATES), one
    # lowtide is installed and nobody asks: SGLang's own lines, one for each resume that trims.
    assert unset["records"] == plain["records"] and len(plain["records"]) == UPDATES - 1, unset
    assert all("[continue_generation]" in text for _, _, text in plain["records"])
    assert not plain["has_lowtide"]
    for adopted in (by_variable, early, late):
        lines = adopted["records"]
        assert [name for name, *_ in lines] == ["lowtide"] * (UPDATES - 1), lines
        assert all(level == "INFO" and "reserved" in text for _, level, text in lines), lines
    print("SGLang's own line:", plain["records"][0][2])
    print("the line when adopted:", by_variable["records"][0][2])
    print("the trend:", by_variable["trend"])


def adopt() -> None:
    """Adopts SGLang by the one line."""
    import lowtide

    assert lowtide.adopt("sglang").replaced


def resumes(before: Any = None, after: Any = None) -> dict[str, Any]:
    """Starts SGLang's plug-ins, and pauses, updates and resumes. Returns what was logged."""
    records: list[tuple[str, str, str]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append((record.name, record.levelname, record.getMessage()))

    logging.basicConfig(level="INFO", handlers=[Keep()], force=True)
    import torch
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput
    from sglang.srt.managers.scheduler import DisaggregationMode, Scheduler
    from sglang.srt.plugins import load_plugins

    if before is not None:
        before()
    load_plugins()
    if after is not None:
        after()
    scheduler = types.SimpleNamespace(
        disaggregation_mode=DisaggregationMode.NULL,
        disagg_decode_prealloc_queue=None,
        _engine_paused=False,
        _pause_started_at=None,
        _pause_intervals=[],
    )
    records.clear()
    states: list[object] = []
    for update in range(UPDATES):
        Scheduler.pause_generation(scheduler, PauseGenerationReqInput(mode="in_place"))
        states.append(scheduler._engine_paused)
        weights = torch.full((16 << 20,), update, dtype=torch.uint8)
        request = ContinueGenerationReqInput(torch_empty_cache=update != UPDATES - 1)
        Scheduler.continue_generation(scheduler, request)
        states.append((scheduler._engine_paused, request.torch_empty_cache))
        del weights
    trend = None
    if records[0][0] == "lowtide":
        trend = str(sys.modules["lowtide._adopt.sglang"].gate().trend())
    return {
        "records": records,
        "states": states,
        "trend": trend,
        "intervals": len(scheduler._pause_intervals),
        "has_lowtide": "lowtide" in sys.modules,
    }


def child(variables: dict[str, str], **when: Any) -> dict[str, Any]:
    """Runs the resumes in a forked process. Returns what they tell."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def work() -> None:
        os.environ |= variables
        there.send(resumes(**when))

    process = context.Process(target=work)
    process.start()
    there.close()
    try:
        assert here.poll(LIMIT_S), f"a child had not ended after {LIMIT_S} s"
        answer: dict[str, Any] = here.recv()
        process.join(LIMIT_S)
        return answer
    finally:
        process.kill()
        process.join()


if __name__ == "__main__":
    main()
