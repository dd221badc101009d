"""Draws docs/top.svg: `lowtide top --once` of a real run on the driver's double, and the processor time that it takes.

    python3 bench/top_picture.py --built target/debug --svg docs/top.svg
    python3 bench/top_picture.py --built target/release --minute 200

Four programs under the agent fall asleep and wake while `top` looks. With --minute, `top` runs in a terminal for a minute
beside so many programs under the agent, and the processor time of its process is printed.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import time
from html import escape
from pathlib import Path

from metrics_day import ROOT, Machine, Program

MIB = 1 << 20
#: The programs that the double's NVML lists; those beyond have a device each that `top` does not see, and their agents.
DOUBLE_MOST = 60
#: Bands by their signs, as `top` draws them without colours.
COLOURS = {"█": "#2e9e5b", "▓": "#c9a227", "▒": "#3b73c4", "░": "#a455b5", ":": "#888", "?": "#d33"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--built", type=Path, default=ROOT / "target/debug")
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--minute", type=int, metavar="PROGRAMS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(options.built.resolve(), Path(folder))
        count = options.minute or 4
        machine.variables["LOWTIDE_DOUBLE"] = (
            f"total={1 + min(count, DOUBLE_MOST) // 20}GiB,context=24MiB,reserved=32MiB"
        )
        state, programs = machine.variables["LOWTIDE_DOUBLE_STATE"], []
        for number in range(count):
            own = "" if number < DOUBLE_MOST else str(number)
            machine.variables["LOWTIDE_DOUBLE_STATE"] = state + own
            programs.append(Program(machine))
        machine.variables["LOWTIDE_DOUBLE_STATE"] = state
        for number, program in enumerate(programs[:4]):
            program.tell(f"alloc 1 {(60 + 45 * number) * MIB}")
        if options.minute:
            print(f"{minute(machine):.2f} s of processor time in a minute with {count} programs")
        if options.svg:
            options.svg.write_text(svg(picture(machine, programs)))
        for program in programs:
            program.kill()


def minute(machine: Machine) -> float:
    """Returns the processor time of `top`, its start included, that redraws a terminal for a minute."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
        os.execve(
            machine.built / "lowtide", ["lowtide", "top"], machine.variables | {"TERM": "xterm"}
        )
    end, shown = time.monotonic() + 60, b""
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            shown += os.read(terminal, 1 << 16)
    os.kill(pid, signal.SIGKILL)
    used = os.wait4(pid, 0)[2]
    assert b"awake" in shown, shown[-2000:].decode(errors="replace")
    return used.ru_utime + used.ru_stime


def picture(machine: Machine, programs: list[Program]) -> str:
    """Returns what `top` shows at the end of a while in which programs sleep and wake."""

    def turns() -> None:
        for verb, number in [("sleep", 3), ("sleep", 2), ("wake", 3), ("sleep", 1), ("wake", 2)]:
            threading.Event().wait(4)
            programs[number].ask(verb)

    thread = threading.Thread(target=turns)
    thread.start()
    text = top(machine, "72", "0.33")
    thread.join()
    return text


def top(machine: Machine, looks: str, every: str) -> str:
    command = [str(machine.built / "lowtide"), "top", "--once", looks, "--every", every]
    variables = machine.variables | {"COLUMNS": "80"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    return done.stdout.replace(os.fspath(machine.folder), "…")


def svg(text: str) -> str:
    lines = text.splitlines()
    size = f'width="{80 * 8.4 + 24:.0f}" height="{len(lines) * 17 + 24}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="14">\n'
    )
    parts = [head, '<rect width="100%" height="100%" rx="6" fill="#16181d"/>\n']
    for row, line in enumerate(lines):
        y = 24 + 17 * row
        plain = "".join(
            " " if sign in COLOURS and is_band(line, at) else sign for at, sign in enumerate(line)
        )
        parts.append(
            f'<text x="12" y="{y}" fill="#ddd" xml:space="preserve">{escape(plain)}</text>\n'
        )
        at = 0
        while at < len(line):
            end = at
            while end < len(line) and line[end] == line[at] and is_band(line, end):
                end += 1
            if end > at and line[at] in COLOURS:
                x, width = 12 + 8.4 * at, 8.4 * (end - at)
                rect = f'<rect x="{x:.1f}" y="{y - 13}" width="{width:.1f}" height="17" fill="{COLOURS[line[at]]}"/>\n'
                parts.append(rect)
            at = max(end, at + 1)
    return "".join([*parts, "</svg>\n"])


def is_band(line: str, at: int) -> bool:
    """Whether a sign is part of a band: colons and question marks are also in text."""
    alone = line[at] in ":?" and not (
        line[at + 1 : at + 2] == " " and line[at - 1 : at] in ("", " ")
    )
    return line[at] in COLOURS and (not alone or not any(sign.isalnum() for sign in line))


if __name__ == "__main__":
    main()
