"""Runs `top` in a terminal, presses s and y once it shows a program, waits for the end of the sleep, and presses q.

    top_in_terminal.py PID COMMAND...
    top_in_terminal.py told COMMAND...
    top_in_terminal.py gone COMMAND...

Ends with 0 if the question named the PID, the sleep's receipt was shown, no colour was drawn, and the terminal is as it was.
With `told`, the signal that ends programs takes the place of the keys. With `gone`, the terminal goes away from a program that ignores the signal for that: ends with 0 if the program ends.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

LIMIT_S = 120


def shown(drawn):
    """What the terminal shows: it is sent the cells that changed, each after a move or the one before."""
    cells, row, column = {}, 1, 1
    for move, _, sign in re.findall(
        r"\x1b\[(\d+;\d+)H|(\x1b[^a-zA-Z]*[a-zA-Z])|(.)", drawn.decode(errors="replace")
    ):
        if move:
            row, column = map(int, move.split(";"))
        elif sign:
            cells[row, column] = sign
            column += 1
    return "\n".join(
        "".join(cells.get((row, column), " ") for column in range(1, 81)) for row in range(1, 25)
    )


def main():
    number, command = sys.argv[1], sys.argv[2:]
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        if number == "gone":
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.execvp(command[0], command)
    before = termios.tcgetattr(terminal)
    drawn, deadline = b"", time.monotonic() + LIMIT_S

    def until(*words):
        nonlocal drawn
        while not all(word in shown(drawn) for word in words):
            if not select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
                sys.exit(f"nothing with {words} was drawn:\n{shown(drawn)}")
            drawn += os.read(terminal, 4096)

    if number == "gone":
        until("PROGRAM")
        os.close(terminal)
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                sys.exit("it does not end")
            time.sleep(0.05)
        return
    if number == "told":
        until("PROGRAM")
        os.kill(pid, signal.SIGTERM)
    else:
        until(number, "awake")
        os.write(terminal, b"s")
        until("lowtide sleep " + number, "any other key does not")
        os.write(terminal, b"y")
        until("released")
        os.write(terminal, b"q")
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:
            break
        if not part:
            break
        drawn += part
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    coloured = re.findall(rb"\x1b\[(?:[34][0-7]|[34]8;[0-9;]+)m", drawn)
    left = b"\x1b[?1049l" in drawn and termios.tcgetattr(terminal) == before
    print(code, coloured[:3], left)
    sys.exit(code or bool(coloured) or not left)


main()
