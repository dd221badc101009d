"""What is asked and done on a node, in the process of the node's actor: agents, processes, the driver's numbers.

A member of a group is a worker and all that it has started, as far as that has an agent: an engine's processes
inherit both the agent and the mark of their worker. Nothing is kept here; the actor may die and be made anew.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..__main__ import find_program
from .environment import MARK

PAUSE_S = 0.05
UNATTRIBUTED_MOST = 64 << 20
"""What the driver keeps for no process at all times."""
NO_AGENT = (
    "it has no agent: start it with lowtide.ray.runtime_env() or with the plug-in on its node"
)


class Node:
    """The actor of a node. Its calls run in threads, so that a long sleep does not hold up a question."""

    def ask(
        self, question: str, workers: list[int], wait_s: float, to_bytes: int | None = None
    ) -> list[dict[str, Any]]:
        """Asks all agents of these workers at once. Returns an outcome for each worker."""
        began, until = time.perf_counter(), time.monotonic() + wait_s
        programs: dict[int, list[dict[str, Any]]] = {worker: [] for worker in workers}
        for program in _programs():
            programs.get(_worker_of(program["pid"]) or 0, []).append(program)
        words = [question] if to_bytes is None else [question, "--to", f"{to_bytes}B"]
        with ThreadPoolExecutor(max(len(workers), 1)) as threads:
            outcomes = [
                threads.submit(_of_worker, worker, programs[worker], words, until, began)
                for worker in workers
            ]
            return [outcome.result() for outcome in outcomes]

    def look(self) -> dict[str, Any]:
        """Returns what this node's programs have on its devices: `status` and `ps` of the command line."""
        return {"hostname": os.uname().nodename, "programs": _programs(), **_told("ps")[0]}

    def top(self) -> dict[str, Any]:
        """Returns the same with the bands of each device: `top` of the command line."""
        return _told("top", "--once")[0]

    def left(self, worker: int | None) -> dict[str, Any]:
        """Returns the processes on this node's devices that a worker has left; without one, those that any
        worker has left which has ended. `why` says why that is not certain, if so."""
        listed = _told("ps")[0]
        why = "; ".join(filter(None, [*listed["problems"], listed["reason"]]))
        found = []
        for device in listed["devices"]:
            if device["unattributed_bytes"] > UNATTRIBUTED_MOST:
                mib = device["unattributed_bytes"] >> 20
                why = why or f"the driver reports {mib} MiB of {device['uuid']} for no process"
            for process in device["processes"]:
                pid, start = process["pid"], start_ticks(process["pid"])
                is_sure = pid == worker or _worker_of(pid) == worker is not None
                if start is None or not (is_sure or _is_left(pid)):
                    continue
                one = {"pid": pid, "start_ticks": start, "device": device["uuid"]}
                more = {"bytes": process["bytes"], "command": _command(pid), "is_sure": is_sure}
                found.append({**one, **more})
        return {"why": why, "holders": found}

    def end(self, pid: int, start: int) -> bool:
        """Kills a process if it is still the one that began then. Returns whether it is gone."""
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            # Looked at after it was opened: from then on the number is no other's.
            if start_ticks(pid) == start:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            return True
        finally:
            os.close(handle)
        until = time.monotonic() + 10
        while start_ticks(pid) == start:
            if time.monotonic() > until:
                return False
            time.sleep(PAUSE_S)
        return True


def _worker_of(pid: int) -> int | None:
    """Returns the worker whose mark a process carries."""
    mark = _environment(pid).get(MARK, "")
    return int(mark) if mark.isdigit() else None


def _is_left(pid: int) -> bool:
    """Returns whether a process was started by a worker of Ray that has ended, or by a node that has."""
    worker = _worker_of(pid)
    raylet = _environment(pid).get("RAY_RAYLET_PID", "")
    if raylet.isdigit() and start_ticks(int(raylet)) is None:
        return True
    if worker is not None:
        return start_ticks(worker) is None
    if not raylet.isdigit():
        return False
    while pid > 1:
        if pid == int(raylet):
            return False
        _, _, rest = _read(pid, "stat").rpartition(")")
        pid = int(rest.split()[1]) if rest else 0
    return True


def _programs() -> list[dict[str, Any]]:
    """Returns the programs of this user that `lowtide run` has started, with what their agents say."""
    return [line for line in _told("status") if "pid" in line]


def _of_worker(
    worker: int, programs: list[dict[str, Any]], words: list[str], until: float, began: float
) -> dict[str, Any]:
    # Those without an agent yet have made no CUDA call: nothing of theirs is on a device.
    with_agent = [program["pid"] for program in programs if program["agent"] is not None]
    with ThreadPoolExecutor(max(len(with_agent), 1)) as threads:
        answers = list(threads.map(lambda pid: _of_process(pid, words, until), with_agent))
    if start_ticks(worker) is None:
        outcome: dict[str, Any] = {"state": "dead", "why": f"process {worker} has ended"}
    elif not programs:
        outcome = {"state": "awake", "why": NO_AGENT}
    else:
        asleep = [one["status"]["is_asleep"] for one in answers if one["status"]]
        state = "asleep" if asleep and all(asleep) else "awake"
        outcome = {"state": state, "why": "; ".join(filter(None, (one["why"] for one in answers)))}
    return {**outcome, "answers": answers, "took_s": time.perf_counter() - began}


def _of_process(pid: int, words: list[str], until: float) -> dict[str, Any]:
    """Asks an agent, again while work is running or no room is there. The state is asked for afterwards."""
    question, *options = words
    while True:
        why, answer = "", None
        if question != "status":
            answer = _told(question, str(pid), *options)[0]
            why = _refusal(answer)
        status = _told("status", str(pid))[0]
        if start_ticks(pid) is None or status.get("agent") is None:
            return {"pid": pid, "why": "", "answer": None, "status": None}
        if question in ("sleep", "wake"):
            stays = "awake" if question == "sleep" else "asleep"
            is_so = status["is_asleep"] == (question == "sleep")
            why = "" if is_so else why or f"it stayed {stays}"
        if not why or time.monotonic() >= until:
            named = f"process {pid}: {why}" if why else ""
            return {"pid": pid, "why": named, "answer": answer, "status": status}
        time.sleep(PAUSE_S)


def _refusal(answer: dict[str, Any]) -> str:
    """Returns why an answer is not what was asked for, or nothing."""
    match answer:
        case {"answer": "refused", "reason": reason}:
            return str(reason)
        case {"answer": "no-room", "holders": holders, "needed_bytes": needed, "free_bytes": free}:
            return f"no room: {needed >> 20} MiB needed, {free >> 20} MiB free; used by {holders}"
        case {"receipts": receipts}:
            wrong = [one for one in receipts if one["verdict"] not in ("released", "no-effect")]
            return ", ".join(f"{one['verdict']} ({'; '.join(one['advice'])})" for one in wrong)
    return ""


def start_ticks(pid: int) -> int | None:
    """Returns when a process began, in clock ticks since the boot; None if it has ended."""
    _, _, rest = _read(pid, "stat").rpartition(")")
    fields = rest.split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else None


def _environment(pid: int) -> dict[str, str]:
    return dict(one.partition("=")[::2] for one in _read(pid, "environ").split("\0"))


def _command(pid: int) -> str:
    return _read(pid, "cmdline").replace("\0", " ").strip()[:200]


def _read(pid: int, file: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="replace")
    return ""


def _told(*words: str) -> list[dict[str, Any]]:
    """Returns what the command line prints as JSON, one or more objects. Raises RuntimeError if it does not run."""
    try:
        done = subprocess.run(
            [find_program() or "lowtide", *words, "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as failure:
        raise RuntimeError(f"`lowtide` does not run on this node: {failure}") from None
    text, found = done.stdout.strip(), []
    while text:
        one, end = json.JSONDecoder().raw_decode(text)
        found.append(one)
        text = text[end:].lstrip()
    said = done.stderr.strip() or f"it ended with {done.returncode}"
    return found or [{"answer": "refused", "reason": said}]
