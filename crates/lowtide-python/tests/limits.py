"""Limits for the tests: one that hangs prints the stacks of its threads and fails alone.

A test that hangs ends its process. pytest-xdist reports it as failed, starts another process, and has
it run that test again, eight times. So a test that has ended a process is not begun a second time.

pytest has such a limit, too (`faulthandler_timeout`), which an exception switches off: a teardown after
a failed test may hang for ever then. So may the collection and the end of a session.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 180.0
"""How long the collection and each phase of a test may take, ten times what the slowest takes."""
END_S = 45.0
"""How long the end of a session may take. pytest-xdist kills a process that does not end in 10 s."""
BEGUN = "lowtide_begun"
"""The key by which the processes of a run know the folder with a file for each test under way."""


class Limits:
    """A plug-in for pytest: ends the process if anything in it takes too long."""

    def __init__(self, config: pytest.Config) -> None:
        self._stderr = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)
        self._limit_s = float(os.environ.get("LOWTIDE_TEST_LIMIT_S", LIMIT_S))
        self._has_lost_process = False
        self._made: tempfile.TemporaryDirectory[str] | None = None
        given: str | None = getattr(config, "workerinput", {}).get(BEGUN)
        if given is None:
            self._made = tempfile.TemporaryDirectory(prefix="lowtide-tests-")
        else:
            leave_run_in_forks()
        self._begun = Path(given or self._made.name)  # type: ignore[union-attr]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tells another process of the run the folder."""
        node.workerinput[BEGUN] = str(self._begun)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        """Notes that a process of the run did not end by itself, perhaps after its last test."""
        self._has_lost_process |= error is not None

    @pytest.hookimpl(hookwrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        self._limit()
        yield
        faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._limit()
        yield
        faulthandler.cancel_dump_traceback_later()
        self._file(item).unlink(missing_ok=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._limit()
        if self._file(item).exists():
            pytest.fail("it has ended the process that ran it: see there", pytrace=False)
        self._file(item).touch()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        self._limit()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        self._limit()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        faulthandler.dump_traceback_later(END_S, exit=True, file=self._stderr)
        if self._has_lost_process and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        if self._made is not None:
            self._made.cleanup()

    def _limit(self) -> None:
        faulthandler.dump_traceback_later(self._limit_s, exit=True, file=self._stderr)

    def _file(self, item: pytest.Item) -> Path:
        return self._begun / hashlib.sha256(item.nodeid.encode()).hexdigest()


def leave_run_in_forks() -> None:
    """Has forks of this process close the pipes to the process that started it: it learns from their
    end that this one has ended."""
    pipes = [fd for fd in range(3, 256) if is_pipe(fd)]

    def leave() -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in pipes:
            os.dup2(nothing, fd, inheritable=False)
        os.close(nothing)

    os.register_at_fork(after_in_child=leave)


def is_pipe(fd: int) -> bool:
    """Returns whether a file descriptor is open and a pipe's."""
    with contextlib.suppress(OSError):
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    return False
