"""PyTorch processes that share CUDA tensors, without and with the agent, with sleeps at random in between.

    python3 sharing.py --lowtide ./lowtide --results sharing.json [--turns 50]

Parts: torch's queue both ways, a DataLoader whose workers return tensors of the device, a trainer that gives its weights
to a rollout process again and again, and the death of either side; each with plain memory and with expandable segments.
Exits 0 only if every part printed the same marks with the agent as without, and somebody slept in between (with plain
memory; expandable segments that were shared keep their process awake).
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time

from command_line import end, parser_of

MIB = 1 << 20


def say(*words: object) -> None:
    """Prints a line whole: several threads do."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def mark(*words: object) -> None:
    say("mark", *words)


def slept(pids: list[int], seed: int) -> None:
    """Puts the processes to sleep at random moments, until the program ends."""
    dice, lowtide = random.Random(seed), os.environ.get("SHARING_LOWTIDE")

    def loop() -> None:
        while True:
            time.sleep(dice.uniform(0.05, 0.4))
            done = subprocess.run([lowtide, "sleep", str(dice.choice(pids))], capture_output=True, check=False)
            say("sleep", done.returncode)

    if lowtide:
        threading.Thread(target=loop, daemon=True).start()


def total(tensor) -> int:  # noqa: ANN001
    return int(tensor.view(-1).to(dtype=__import__("torch").int64).sum().item())


def spawned(work, *arguments: object):  # noqa: ANN001, ANN201
    """Starts a process with two queues; returns it and the queues."""
    import torch.multiprocessing as multiprocessing

    spawn = multiprocessing.get_context("spawn")
    inbox, outbox = spawn.Queue(), spawn.Queue()
    child = spawn.Process(target=work, args=(inbox, outbox, *arguments))
    child.start()
    return child, inbox, outbox


def answer_queue(inbox, outbox) -> None:  # noqa: ANN001
    import torch

    while (got := inbox.get()) is not None:
        sums = [total(one) for one in got]
        for one in got:
            one.add_(1)
        torch.cuda.synchronize()
        outbox.put((sums, torch.full((3 * MIB,), len(sums), dtype=torch.uint8, device="cuda")))
        del got, one
        gc.collect()
        torch.cuda.ipc_collect()


def queue(turns: int) -> None:
    import torch

    child, inbox, outbox = spawned(answer_queue)
    slept([os.getpid(), child.pid], 1)
    dice = torch.Generator(device="cuda").manual_seed(7)
    for turn in range(turns):
        sizes = [1000, 5 * MIB, 64 * MIB]
        made = [torch.randint(0, 100, (size,), dtype=torch.uint8, device="cuda", generator=dice) for size in sizes]
        made.append(made[2][MIB : 3 * MIB])
        before = [total(one) for one in made]
        inbox.put(made)
        sums, back = outbox.get()
        after = [total(one) for one in made]
        mark("queue", turn, sums == before, [b - a for a, b in zip(before, after, strict=True)], total(back))
        del made, back
    inbox.put(None)
    child.join()
    mark("queue ends", child.exitcode)


class Rows:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int):  # noqa: ANN204
        import torch

        return torch.full((MIB,), index, dtype=torch.uint8, device="cuda")


def loader(turns: int) -> None:
    import torch

    slept([os.getpid()], 2)
    for turn in range(max(1, turns // 10)):
        rows = torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context="spawn")
        mark("loader", turn, [total(batch) for batch in rows])


def roll_out(inbox, outbox) -> None:  # noqa: ANN001
    import torch

    own = torch.zeros(512 * MIB // 2, dtype=torch.bfloat16, device="cuda")
    outbox.put("ready")
    while (got := inbox.get()) is not None:
        rebuild, arguments = got
        given = rebuild(*arguments)
        own.copy_(given)
        torch.cuda.synchronize()
        del given
        gc.collect()
        torch.cuda.ipc_collect()
        outbox.put(float(own.float().sum().item()))


def weights(turns: int) -> None:
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    child, inbox, outbox = spawned(roll_out)
    outbox.get()
    slept([os.getpid(), child.pid], 3)
    own = torch.zeros(512 * MIB // 2, dtype=torch.bfloat16, device="cuda")
    for turn in range(turns):
        own.fill_(turn % 7)
        own[turn] = 3
        torch.cuda.synchronize()
        inbox.put(reduce_tensor(own))
        theirs = outbox.get()
        mark("weights", turn, theirs == float(own.float().sum().item()))
    inbox.put(None)
    child.join()
    mark("weights end", child.exitcode)


def hold(inbox, outbox, gives: bool) -> None:  # noqa: ANN001, FBT001
    import torch

    kept = torch.full((32 * MIB,), 5, dtype=torch.uint8, device="cuda") if gives else inbox.get()
    outbox.put(kept if gives else total(kept))
    time.sleep(600)


def death(_turns: int) -> None:
    import torch

    giver, inbox, outbox = spawned(hold, True)
    got = outbox.get()
    mark("of a live process", total(got))
    os.kill(giver.pid, signal.SIGKILL)
    giver.join()
    mark("of a dead process", total(got))
    del got
    own = torch.full((32 * MIB,), 6, dtype=torch.uint8, device="cuda")
    taker, inbox, outbox = spawned(hold, False)
    inbox.put(own)
    mark("taken", outbox.get())
    os.kill(taker.pid, signal.SIGKILL)
    taker.join()
    if lowtide := os.environ.get("SHARING_LOWTIDE"):
        time.sleep(1)
        done = subprocess.run([lowtide, "sleep", str(os.getpid())], capture_output=True, text=True, check=False)
        say("sleep", done.returncode)
    mark("after the taker's death", total(own))


PARTS = {"queue": queue, "loader": loader, "weights": weights, "death": death}


def run(part: str, options: argparse.Namespace, allocator: str, lowtide: str | None) -> tuple[list[str], int, str]:
    command = [sys.executable, __file__, "--part", part, "--turns", str(options.turns)]
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": allocator}
    if lowtide:
        command = [lowtide, "run", "--", *command]
        environment["SHARING_LOWTIDE"] = lowtide
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    lines = done.stdout.splitlines()
    marks = [line for line in lines if line.startswith("mark")] + [f"exit {done.returncode}"]
    return marks, sum(line.startswith("sleep 0") for line in lines), done.stderr


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--results", help="where the results go, as JSON")
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=list(PARTS), help="parts")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        PARTS[options.part](options.turns)
        return
    results, failed = [], []
    for part in options.only:
        for allocator in ("", "expandable_segments:True"):
            began = time.monotonic()
            plain, _, plain_errors = run(part, options, allocator, None)
            ours, sleeps, errors = run(part, options, allocator, os.path.realpath(options.lowtide))
            same = plain == ours
            # Torch keeps expandable segments that it once shared, and they keep the process awake.
            name = f"{part} {allocator}".strip()
            if not same or (sleeps == 0 and not allocator):
                failed.append(name)
            took = round(time.monotonic() - began)
            print(f"{name}: {len(plain)} marks, {'the same' if same else 'others'} with the agent, {sleeps} sleeps, {took} s", flush=True)
            if not same:
                pairs = [pair for pair in zip(plain, ours, strict=False) if pair[0] != pair[1]][:3]
                print(pairs, plain_errors[-600:], errors[-1500:], sep="\n", flush=True)
            results.append({"part": name, "marks": len(plain), "same": same, "sleeps": sleeps})
    end(failed, options.results, results)


if __name__ == "__main__":
    main()
