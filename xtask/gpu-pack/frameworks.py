"""Runs programs of several frameworks without and with the agent, and puts each to sleep once (`programs.py` does it at
random moments).

    python3 frameworks.py --lowtide ./lowtide --results frameworks.json [NAME ...]

Each program does the same work twice: alone, and under `lowtide run`, where it is put to sleep between two steps. Both
must print the same digests; this script notes how much device memory it has awake and asleep. With `--turns N` each program runs once more under `lowtide run --idle 500ms`, works every
two seconds, and must be asleep before each turn; the programs of all frameworks share the device then.
Exits 0 only if all results are the same and every program slept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from command_line import ask, end, parser_of, used

LIMIT_S = 240
STEPS = 3
EVERY_S = 2.0
MIB = 1 << 20

# A program yields the bytes of a result after each step; it holds memory from step to step.
Steps = Iterator[bytes]


def torch_steps(with_graph: bool = False, is_compiled: bool = False) -> Steps:
    import torch

    torch.manual_seed(15)
    kept = [torch.randint(-(1 << 40), 1 << 40, (4 * MIB,), device="cuda") for _ in range(8)]
    weight = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    value = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
    turn = lambda one: torch.nn.functional.gelu(one @ weight) / 32 + one.sum() * 0
    if is_compiled:
        turn = torch.compile(turn)
    graph = None
    if with_graph:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            turn(value)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = turn(value)
    while True:
        for number, block in enumerate(kept):
            block.add_(number + 1)
        if graph is not None:
            graph.replay()
            value.copy_(result.nan_to_num().clamp(-4, 4))
        else:
            value = turn(value).nan_to_num().clamp(-4, 4)
        # Comes and goes, so that the allocator has something to do.
        extra = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda").fill_(7)
        sums = [int(block.sum()) for block in kept] + [int(extra.sum(dtype=torch.int64))]
        del extra
        yield repr(sums).encode() + value.float().cpu().numpy().tobytes()


def triton_steps() -> Steps:
    import torch
    import triton
    import triton_kernels_of_test as kernels  # written beside this script: triton reads sources of files

    value = torch.arange(8 * MIB, device="cuda", dtype=torch.int64)
    while True:
        kernels.step[(triton.cdiv(value.numel(), 1024),)](value, value.numel(), BLOCK=1024)
        yield value[:: 64 * 1024].cpu().numpy().tobytes() + repr(int(value.sum())).encode()


TRITON = """
import triton
import triton.language as tl

@triton.jit
def step(at, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(at + place, mask=place < count)
    tl.store(at + place, value * 3 + 1, mask=place < count)
"""


def jax_steps() -> Steps:
    import jax
    import jax.numpy as jnp
    import numpy

    kept = jnp.arange(16 * MIB, dtype=jnp.int32)
    weight = jax.random.normal(jax.random.PRNGKey(15), (1024, 1024), dtype=jnp.float32)

    @jax.jit
    def turn(kept: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        return kept * 3 + 1, jnp.tanh(value @ weight / 32)

    value = jnp.ones((1024, 1024), dtype=jnp.float32)
    while True:
        kept, value = turn(kept, value)
        yield numpy.asarray(kept).tobytes() + numpy.asarray(value).tobytes()


def cupy_steps() -> Steps:
    import cupy

    kept = cupy.arange(16 * MIB, dtype=cupy.int64)
    weight = cupy.random.RandomState(15).standard_normal((512, 512)).astype(cupy.float32)
    value = cupy.ones((512, 512), dtype=cupy.float32)
    while True:
        kept = kept * 3 + 1
        value = cupy.tanh(value + weight)
        yield cupy.asnumpy(kept).tobytes() + cupy.asnumpy(value).tobytes()


PROGRAMS: dict[str, tuple[Callable[[], Steps], dict[str, str]]] = {
    "torch": (torch_steps, {}),
    "torch, expandable segments": (
        torch_steps,
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    "torch, captured graph": (lambda: torch_steps(with_graph=True), {}),
    "torch.compile": (lambda: torch_steps(is_compiled=True), {}),
    "triton": (triton_steps, {}),
    "jax": (jax_steps, {}),
    "cupy": (cupy_steps, {}),
}
# Device memory that a sleeping program may have: its context, code and libraries, and small allocations.
ASLEEP_MOST_MIB = 2048


def work(name: str, count: int, paced: bool) -> None:
    """Does the steps of a program. Prints a digest of all results so far after each."""
    digest = hashlib.sha256()
    steps = PROGRAMS[name][0]()
    for _ in range(count):
        digest.update(next(steps))
        print(digest.hexdigest(), flush=True)
        if paced:
            sys.stdin.readline()


def start(
    options: argparse.Namespace, name: str, prefix: list[str], *more: str
) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, __file__, "--work", name, *more]
    errors = options.results.parent / f"{name.replace(' ', '-').replace(',', '')}.err"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors.open("a")}
    return subprocess.Popen(command, env={**os.environ, **PROGRAMS[name][1]}, text=True, **pipes)


def sleeps_once(options: argparse.Namespace, name: str) -> dict[str, object]:
    """Puts a program to sleep between its second and its third step."""
    alone = start(options, name, []).communicate(timeout=LIMIT_S)[0].split()
    prefix = [options.lowtide, "run", "--"]
    program = start(options, name, prefix, "--paced")
    assert program.stdout is not None and program.stdin is not None
    seen, times = [], {}
    for step in range(STEPS):
        began = time.monotonic()
        if step:
            program.stdin.write("\n")
            program.stdin.flush()
        seen.append(program.stdout.readline().strip())
        times[f"step_{step}_s"] = time.monotonic() - began
        if step == 1:
            awake, began = used(options.lowtide, program.pid), time.monotonic()
            answer = ask(options.lowtide, "sleep", program.pid)
            times["sleep_s"] = time.monotonic() - began
            asleep, status = used(options.lowtide, program.pid), ask(options.lowtide, "status", program.pid)
    program.communicate(input="\n", timeout=60)
    return {
        "same": seen == alone,
        "exit": program.returncode,
        "sleep": answer["exit"],
        "error": answer.get("error", ""),
        "is_asleep": status.get("is_asleep"),
        "awake_mib": None if awake is None else awake / MIB,
        "asleep_mib": None if asleep is None else asleep / MIB,
        "staying": status.get("staying"),
        "receipts": answer.get("receipts"),
        **times,
    }


def idle_turns(options: argparse.Namespace, names: list[str]) -> dict[str, dict[str, object]]:
    """All programs at once, each with work every two seconds."""
    alone = {}
    for name in names:
        program = start(options, name, [], "--count", str(options.turns))
        alone[name] = program.communicate(timeout=LIMIT_S)[0].split()
    prefix = [options.lowtide, "run", "--idle", "500ms", "--"]
    paced = ["--paced", "--count", str(options.turns)]
    programs = {name: start(options, name, prefix, *paced) for name in names}
    found = {name: {"asleep": 0, "right": 0, "awake_by": [], "used": [], "wake_s": []} for name in names}
    for name, program in programs.items():
        assert program.stdout is not None
        found[name]["right"] += program.stdout.readline().strip() == alone[name][0]
    for turn in range(1, options.turns):
        time.sleep(EVERY_S)
        for name, program in programs.items():
            assert program.stdout is not None and program.stdin is not None
            status = ask(options.lowtide, "status", program.pid)
            if status.get("is_asleep"):
                found[name]["asleep"] += 1
            else:
                found[name]["awake_by"].append([turn, status.get("quiet_s"), status.get("obstacles")])
            found[name]["used"].append(used(options.lowtide, program.pid))
            began = time.monotonic()
            try:
                program.stdin.write("\n")
                program.stdin.flush()
                found[name]["right"] += program.stdout.readline().strip() == alone[name][turn]
            except BrokenPipeError:
                pass
            found[name]["wake_s"].append(time.monotonic() - began)
    for name, program in programs.items():
        program.communicate(input="\n", timeout=60)
        found[name]["exit"] = program.returncode
        seen = [number for number in found[name]["used"] if number is not None]
        found[name]["grew_mib"] = (seen[-1] - seen[len(seen) // 10]) / MIB if seen else None
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", help="the programs; all if none is named")
    parser.add_argument("--results", type=Path, default=Path("frameworks.json"))
    parser.add_argument("--turns", type=int, default=0, help="idle turns of torch, jax and cupy")
    parser.add_argument("--only-turns", action="store_true", help="nothing but the idle turns")
    parser.add_argument("--work", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--paced", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(options.work, options.count, options.paced)
    failures: list[str] = []
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        # They start together, and would wait for one another.
        os.environ["LOWTIDE_GIVE_WAY"] = "0"
        (Path(folder) / "triton_kernels_of_test.py").write_text(TRITON)
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        for name in [] if options.only_turns else options.names or PROGRAMS:
            once = found[name] = sleeps_once(options, name)
            print(f"{name}: {json.dumps({**once, 'receipts': None})}", flush=True)
            if not (once["same"] and once["is_asleep"] and once["exit"] == 0):
                failures.append(f"{name}: not asleep between two steps, or other results")
            if (once["asleep_mib"] or 0) > ASLEEP_MOST_MIB:
                failures.append(f"{name}: {once['asleep_mib']} MiB are left asleep")
        if options.turns:
            turns = found["idle"] = idle_turns(options, ["torch", "jax", "cupy"])
            for name, result in turns.items():
                print(f"idle, {name}: {json.dumps({**result, 'used': None})}", flush=True)
                if (result["asleep"], result["right"]) != (options.turns - 1, options.turns):
                    failures.append(f"idle, {name}: not asleep, or not right, each time")
    found["failures"] = failures
    end(failures, options.results, found)


main()
