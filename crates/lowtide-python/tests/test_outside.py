"""Questions from outside, as a program answers them: what it says, and what stays in it."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from outside import PROGRAM, Program

STATE = (
    "[atexit._ncallbacks(), len(sys.path), len(sys.meta_path), len(sys.path_hooks),"
    " len(gc.callbacks), threading.active_count(), len(threading._active),"
    " sum(one.startswith('lowtide') for one in sys.modules),"
    " sorted(one for one in sys.modules if one.startswith('_lowtide_guest') and one.count('.') == 0)]"
)
TABLES = "[getattr(re, one).cache_info().currsize for one in ('_compile_repl', '_compile_template') if hasattr(re, one)] + [len(re._cache)]"
FORKS = "import os; forks = []; os.register_at_fork = lambda **more: forks.append(more)"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    yield program
    program.child.kill()
    program.child.wait()


def settled(program: Program) -> None:
    """Waits until no thread answers any more."""
    while program.value("len(__import__('sys')._current_frames())") > 1:
        time.sleep(0.01)


def test_a_program_that_does_not_know_lowtide_says_what_holds_its_memory(program: Program) -> None:
    answer = program.ask()
    assert answer["answer"] == "why" and answer["installation"] == "private", answer
    assert answer["why"]["device"] == "cpu" and answer["why"]["held_bytes"] == 3 << 20
    assert "more[0]" in answer["text"] and "cache[0]" in answer["text"], answer["text"]
    assert answer["longest_stop_s"] > 0 and len(answer["name"]) == 6
    assert program.end() == 0


def test_nothing_stays_but_one_module_and_its_call_at_exit(program: Program) -> None:
    program.does(FORKS)
    calls, *before = program.value(STATE)
    for _ in range(3):
        assert program.ask()["answer"] == "why"
    settled(program)
    *after, homes = program.value(STATE)
    assert after == [calls + 1, *before[:-1]] and homes == ["_lowtide_guest"]
    assert program.value("len(forks)") == 0
    # The cuts of the last answer are texts and numbers.
    program.does("del more[:]; gc.collect()")
    assert program.ask()["why"]["held_bytes"] == 1 << 20


def test_a_program_without_threads_is_left_without_them(tmp_path: Path) -> None:
    """Before Python 3.13, the thread that imports `threading` becomes its main one."""
    program = Program(
        tmp_path, PROGRAM.replace(", threading\nimport torch\n", "\n").replace("torch.ones", "")
    )
    answers = [program.ask() for _ in range(2)]
    assert program.end() == 0
    if sys.version_info < (3, 13):
        assert all("threading" in answer["reason"] for answer in answers), answers
    else:
        assert [answer["answer"] for answer in answers] == ["why", "why"], answers


def test_questions_leave_the_tables_of_the_standard_library_to_the_program(
    program: Program,
) -> None:
    program.does("import re")
    assert program.ask()["answer"] == "why"
    before = program.value(TABLES)
    for _ in range(4):
        assert program.ask()["answer"] == "why"
    assert program.value(TABLES) == before


def test_a_cut_is_found_again_and_applied_once(program: Program) -> None:
    first = program.ask()["name"]
    name = program.ask()["name"]
    refused = program.ask(cut="1", of=first)
    assert refused["answer"] == "refused" and "nothing was done" in refused["reason"]
    assert "no cut 9" in program.ask(cut="9", of=name)["reason"]
    proposed = program.ask(cut="1", of=name, sure=False)
    assert proposed["answer"] == "confirm" and "more" in proposed["question"], proposed
    assert program.value("len(more)") == 1
    done = program.ask(cut="1", of=name)
    assert done["answer"] == "cut" and done["freed_bytes"] == 2 << 20, done
    assert program.ask(cut="1", of=name)["freed_bytes"] == 0
    assert program.ask()["why"]["held_bytes"] == 1 << 20


def test_its_own_installation_answers_where_it_is_of_the_same_version(tmp_path: Path) -> None:
    program = Program(tmp_path, "import lowtide\n" + PROGRAM)
    answer = program.ask()
    assert answer["installation"] == "own" and answer["why"]["held_bytes"] == 3 << 20
    program.does("lowtide.__version__ = '0.0.1'")
    answer = program.ask()
    assert answer["installation"] == "private" and answer["why"]["held_bytes"] == 3 << 20
    assert program.value("lowtide.why().held_bytes") == 3 << 20
    assert program.end() == 0


def test_who_comes_late_goes_on_at_once(program: Program) -> None:
    # Nobody has ever listened, and somebody has died.
    program.is_asked()
    program.listen().close()
    program.is_asked()
    with program.listen() as listener:
        program.is_asked()
        connection, _ = listener.accept()
        connection.close()
    # Killed while it is answered.
    with program.listen() as listener:
        program.is_asked()
        connection, _ = listener.accept()
        connection.recv(1 << 12)
        connection.sendall(b'{"home": ')
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()
    settled(program)
    assert program.ask()["answer"] == "why"


def test_a_long_question_has_to_be_meant_and_ends_at_its_limit(program: Program) -> None:
    program.does("many = [[] for _ in range(2_000_000)]")
    large = program.ask(sure=False)
    assert large["answer"] == "confirm" and "stand still" in large["question"], large
    late = program.ask(limit_s=0.01)
    assert late["answer"] == "refused" and "limit" in late["reason"], late
    program.does("del many[:]")
    assert program.ask(sure=False)["answer"] == "why"


def test_a_forked_child_answers_for_itself(program: Program) -> None:
    assert program.ask()["answer"] == "why"
    program.does(
        "home = sys.modules['_lowtide_guest']; home.at_work.acquire(); child = os.fork()\n"
        "if child: sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    program.does("del more[:]")
    assert program.ask()["why"]["held_bytes"] == 1 << 20


def test_an_end_waits_for_the_answer_that_is_under_way(program: Program) -> None:
    program.does("home = None")
    assert program.ask()["answer"] == "why"
    program.does(
        "import _thread, time; home = sys.modules['_lowtide_guest']\n"
        "def slow():\n"
        "    with home.at_work: time.sleep(0.3); print('answered', flush=True)\n"
        "_thread.start_new_thread(slow, ()); time.sleep(0.05)"
    )
    assert program.child.stdin is not None
    program.child.stdin.close()
    assert [program.line(), program.line()] == ["ended", "answered"]
    assert program.child.wait(60) == 0
