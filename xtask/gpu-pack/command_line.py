"""The command lines of these scripts, what they ask the program `lowtide` and their own processes, and how they end."""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
from pathlib import Path

LIMIT_S = 300


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


class Told:
    """A process that is told words, one a line, and answers each with a line."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)
        self.pid = self.process.pid

    def tell(self, word: str) -> str:
        """Returns the answer to a word."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.line(word)

    def line(self, word: str = "the start") -> str:
        """Returns the next line that it prints."""
        answers = self.process.stdout
        assert answers is not None
        ready, _, _ = select.select([answers], [], [], LIMIT_S)
        if line := answers.readline() if ready else "":
            return line.strip()
        raise SystemExit(f"no answer to {word!r}: the program ended, or {LIMIT_S} s have passed")

    def end(self) -> int:
        """Has it end by itself, which it does at the end of its input. Returns its exit code."""
        try:
            self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise SystemExit("the program did not end") from None
        return self.process.returncode


def end(failures: list[str], results: object = None, found: object = None) -> None:
    """Writes what was found as JSON, if somebody wants it, prints the failures and ends the script."""
    if results:
        Path(str(results)).write_text(json.dumps(found, indent=1) + "\n")
    for failure in failures:
        print(f"failed: {failure}")
    sys.exit(bool(failures))
