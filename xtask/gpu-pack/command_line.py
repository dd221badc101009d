"""The command lines of these scripts, what they ask the program `lowtide`, and how they end."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

LIMIT_S = 240


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser with what every script has."""
    keeps_lines = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(description=description, formatter_class=keeps_lines)
    made.add_argument("--lowtide", default="lowtide", help="the program `lowtide`")
    return made


def ask(lowtide: str, verb: str, *words: object) -> dict[str, object]:
    """Runs `lowtide` without the agent. Returns its answer, or what it says otherwise, and its exit code."""
    command = [lowtide, verb, "--json", *map(str, words)]
    outside = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        command, env=outside, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    answer = json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr.strip()}
    return {**answer, "exit": done.returncode}


def used(lowtide: str, pid: int) -> int | None:
    """Returns what the driver says that a process uses, in bytes."""
    for device in ask(lowtide, "ps").get("devices", []):  # type: ignore[attr-defined]
        for process in device.get("processes", []):
            if process.get("pid") == pid:
                return process.get("bytes")
    return None


def end(failures: list[str]) -> None:
    """Prints the failures and ends the script."""
    for failure in failures:
        print(f"failed: {failure}")
    sys.exit(bool(failures))
