"""`python -m lowtide.ray status`: what the programs of every node have on its devices.

Connects to the cluster of `RAY_ADDRESS`, or to the one of this machine. A node that has no lowtide, or whose actor
does not answer, is listed with the reason. `lowtide ps --ray` prints this, and `lowtide top --ray` draws `top`: a line
of JSON for each look at all nodes, until standard input ends.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import sys
from typing import Any

from .._native import printable
from .cluster import nodes, on_nodes, reason_of

CONNECT_S = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Prints the view of the cluster. Returns 0, or 3 if there is no cluster."""
    parser = argparse.ArgumentParser(prog="python -m lowtide.ray", description=__doc__)
    parser.add_argument("command", choices=["status", "top"], help="what to do")
    parser.add_argument("--address", default="auto", help="the address of the cluster")
    parser.add_argument(
        "--every", type=float, default=2.0, help="how often `top` looks, in seconds"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each node")
    options = parser.parse_args(arguments)
    address = (
        os.environ.get("RAY_ADDRESS", "auto") if options.address == "auto" else options.address
    )
    try:
        # A folder of this name, as in /tmp, is a package without anything in it.
        from ray import init

        host, _, port = address.rpartition(":")
        if host and "/" not in host and port.isdigit():
            # Ray itself tries for minutes.
            socket.create_connection((host, int(port)), CONNECT_S).close()
        init(address, log_to_driver=False, logging_level="error")
    except ImportError as failure:
        return _refuse(f'{failure}; `{sys.executable} -m pip install "lowtide[ray]"` installs Ray')
    except (OSError, RuntimeError, ValueError) as failure:
        where = "on this machine" if address == "auto" else f"at {address}"
        return _refuse(
            f"no cluster of Ray answers {where}: {reason_of(failure)}; `ray start --head` starts one, and RAY_ADDRESS"
            " names one elsewhere"
        )
    if options.command == "top":
        return _follow(options.every)
    for node, known in look("look").items():
        if options.json:
            print(json.dumps({"node": node, **known}))
        else:
            print("\n".join(_lines(node, known)))
    return 0


def look(method: str) -> dict[str, dict[str, Any]]:
    """Returns what each node that lives says of its devices and programs, or why it does not, by node id."""
    living = nodes()
    answers = on_nodes(method, {node: () for node in living})
    return {
        node: {"reason": reason_of(answer)} if isinstance(answer, Exception) else answer
        for node, answer in answers.items()
    }


def _follow(every_s: float) -> int:
    while True:
        print(json.dumps(look("top")), flush=True)
        if select.select([sys.stdin], [], [], every_s)[0]:
            return 0


def _refuse(reason: str) -> int:
    print(f"lowtide: {printable(reason)}", file=sys.stderr)
    return 3


def _lines(node: str, known: dict[str, Any]) -> list[str]:
    lines = [f"node {node[:8]} {known.get('hostname', '')}".rstrip()]
    if known.get("reason"):
        lines.append(f"  {printable(known['reason'])}")
    states = {program["pid"]: _state(program) for program in known.get("programs", [])}
    for device in known.get("devices", []):
        used, total = device["total_bytes"] - device["free_bytes"], device["total_bytes"]
        lines.append(f"  {device['id'] or device['uuid']}: {_mib(used)} of {_mib(total)} in use")
        for process in device["processes"]:
            pid, command = process["pid"], process.get("command", "")
            state = states.pop(pid, "not started by `lowtide run`")
            lines.append(f"    process {pid}, {_mib(process['bytes'])}, {state}: {command[:80]}")
    lines += [f"  process {pid}: {state}" for pid, state in states.items()]
    return lines


def _state(program: dict[str, Any]) -> str:
    if program["agent"] is None:
        return printable(program["reason"])
    if program["is_suspended"]:
        return "suspended"
    return "asleep" if program["is_asleep"] else "awake"


def _mib(bytes_: int | None) -> str:
    return "unknown" if bytes_ is None else f"{bytes_ >> 20} MiB"


if __name__ == "__main__":
    sys.exit(main())
