"""Runs a command in a terminal of so many columns and prints what it drew.

    in_terminal.py COLUMNS INTERRUPT COMMAND...

With INTERRUPT `yes`, Ctrl-C is typed once the command has drawn twice. Ends with the command's code.
"""
import fcntl
import os
import pty
import struct
import sys
import termios


def main():
    columns, interrupt, command = int(sys.argv[1]), sys.argv[2] == "yes", sys.argv[3:]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.pop("COLUMNS", None)
        # The size is set before the command looks at it.
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        os.execvp(command[0], command)
    drawn = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # Linux says this where the other end is closed
            break
        if not part:
            break
        drawn += part
        if interrupt and drawn.count(b"\x1b[J") >= 2:
            interrupt = False
            os.write(terminal, b"\x03")
    sys.stdout.buffer.write(drawn)
    sys.stdout.flush()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


main()
