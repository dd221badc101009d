"""The measured process: runs the models in the way that `stages.py` asks for.

It reports each step as a line of JSON on its standard output and waits for an answer, so that the other
side can read the driver's number at that moment. On the host one process imports
everything and forks for each way, because importing takes longer than the work; on a GPU each way
has a process of its own from the start, because a context does not survive a fork.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

# What libraries print is not for the other side.
_voice = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import stages_models as models
import torch

Told = dict[str, Any]


def say(what: str, **more: Any) -> None:
    """Tells where we are, and waits until it has been read."""
    _voice.write(json.dumps({"at": what, "process": os.getpid(), **more}) + "\n")
    sys.stdin.readline()


def evaluate_in_stages(run: models.Run) -> list[Told]:
    """As a program with lowtide is written: nothing is deleted, every variable stays."""
    import lowtide

    told: list[Told] = []
    for spec in models.SPECS:
        say(spec.name)
        began = time.perf_counter()
        with lowtide.stage(spec.name, device=run.device) as stage:
            model = stage.own(models.load(spec, run))
            about = {"class": type(model).__name__, "weights_bytes": models.weights_bytes(model)}
            for number in range(2):
                inputs = models.batch(spec, run, number)
                with torch.inference_mode():
                    outputs = spec.ask(model, inputs)
            result = models.digest(outputs)
            ended = time.perf_counter()
        cleaned = time.perf_counter()
        say("after")
        receipt = stage.receipt
        assert receipt is not None
        told.append(
            {
                **figures(spec, about, result, began, ended, cleaned),
                "verdict": receipt.verdict,
                "line": receipt.line(),
                "holders": [[one.path, one.holds, one.bytes] for one in receipt.holders],
                "receipt": receipt.to_dict(),
            }
        )
        if receipt.verdict != "released":
            told[-1]["why"] = str(lowtide.why(device=run.device))
    told[-1]["report"] = stage.stages.report().to_dict()
    return told


def evaluate_with_del(run: models.Run) -> list[Told]:
    """As most programs are written: the model is deleted, and that is all."""
    told: list[Told] = []
    for spec in models.SPECS:
        say(spec.name)
        began = time.perf_counter()
        model = models.load(spec, run)
        about = {"class": type(model).__name__, "weights_bytes": models.weights_bytes(model)}
        for number in range(2):
            inputs = models.batch(spec, run, number)
            with torch.inference_mode():
                outputs = spec.ask(model, inputs)
        result = models.digest(outputs)
        ended = time.perf_counter()
        del model
        cleaned = time.perf_counter()
        say("after")
        told.append(figures(spec, about, result, began, ended, cleaned))
    return told


def evaluate_alone(run: models.Run, which: int) -> list[Told]:
    """One model, with the process to itself."""
    spec = models.SPECS[which]
    say(spec.name)
    began = time.perf_counter()
    model = models.load(spec, run)
    about = {"class": type(model).__name__, "weights_bytes": models.weights_bytes(model)}
    for number in range(2):
        inputs = models.batch(spec, run, number)
        with torch.inference_mode():
            outputs = spec.ask(model, inputs)
    result = models.digest(outputs)
    ended = time.perf_counter()
    say("after")
    return [figures(spec, about, result, began, ended, ended)]


def floor(run: models.Run) -> list[Told]:
    """What a process has on the device for being there: one product of two small matrices."""
    say("floor")
    square = torch.ones(512, 512, device=run.device, dtype=run.dtype)
    (square @ square).sum().item()
    del square
    if run.device != "cpu":
        torch.cuda.synchronize()
        say("after")
        return []
    # On the host our own look at the heap takes of the memory that is measured, as on no GPU: how
    # much is found out with a stage that has next to nothing in it.
    import lowtide

    say("look")
    with lowtide.stage("look", device="cpu") as stage:
        stage.own(torch.nn.Linear(8, 8))
    say("after")
    return []


def figures(
    spec: models.Spec, about: Told, result: float, began: float, ended: float, cleaned: float
) -> Told:
    return {
        "name": spec.name,
        **about,
        "result": result,
        "work_s": ended - began,
        "clean_s": cleaned - ended,
    }


def go(way: str, run: models.Run) -> None:
    """One way, from its first word to its last."""
    ways: dict[str, Callable[[], list[Told]]] = {
        "stage": lambda: evaluate_in_stages(run),
        "del": lambda: evaluate_with_del(run),
        "floor": lambda: floor(run),
        **{f"alone {n}": lambda n=n: evaluate_alone(run, n) for n in range(len(models.SPECS))},
    }
    say("begin")
    told = ways[way]()
    reserved = None if run.device == "cpu" else torch.cuda.max_memory_reserved()
    say("end", told=told, reserved_bytes=reserved)


def serve(run: models.Run) -> None:
    """A fork for each line."""
    while way := sys.stdin.readline().strip():
        child = os.fork()
        if child == 0:
            status = 1
            try:
                go(way, run)
                status = 0
            finally:
                if status:
                    sys.excepthook(*sys.exc_info())
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        _voice.write(json.dumps({"at": "gone", "status": status}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", help="which way, or serve")
    parser.add_argument("run", type=json.loads, help="device, size, seed … as JSON")
    asked = parser.parse_args()
    run = models.Run(**asked.run)
    if run.device == "cpu":
        torch.set_num_threads(1)  # Where others work too, threads wait for each other.
    if asked.way == "uuid":
        uuid = str(torch.cuda.get_device_properties(run.device).uuid)
        say("uuid", uuid=uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
    elif asked.way == "serve":
        serve(run)
    else:
        go(asked.way, run)


if __name__ == "__main__":
    main()
