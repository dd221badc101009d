"""Issue 14, releases 6: a worker process is disposable, and ending it is the step of R27 that resets a
context. Every test has real processes, and the kernel's number of each."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lowtide
import pytest
from alone import alone
from lowtide._devices.choose import device_of
from lowtide._native import Ladder, memory_of_process
from lowtide._release import releasers as _releasers
from workers import MIB, Handle, Holder, OnGpu, load_reranker, refuses

pytestmark = pytest.mark.usefixtures("clean")

SIZE = 64 * MIB


@pytest.fixture
def worker() -> Iterator[lowtide.Worker]:
    made = lowtide.Worker(Holder, SIZE)
    yield made
    # To close it would wait for a call, and a test that failed may have left one that never ends.
    if made._child is not None:
        made._child.end(kill=True)


def used_by(pid: int | None) -> int:
    """What the kernel says that a process uses: 0 once it is gone."""
    return 0 if pid is None else memory_of_process(pid) or 0


def is_running(pid: int) -> bool:
    """Whether a process runs. One that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it never did"
        time.sleep(0.01)


def idle_release(to: str | int = "1 MiB") -> lowtide.Receipt:
    return lowtide.release(to=to, device="cpu")


def test_an_object_in_a_child_is_called_like_one_here(worker: lowtide.Worker) -> None:
    assert worker.pid is None and worker.starts == 0, "nothing starts before it is used"
    assert worker(41) == 42
    assert worker.pid != os.getpid()
    assert worker.call("pid") == worker.pid, "a name that both have"
    assert worker.counted() == 2 and worker.counted() == 3, "it is one object"
    assert used_by(worker.pid) >= SIZE and worker.starts == 1
    assert "Holder" in repr(worker) and str(worker.pid) in repr(worker)
    pid = worker.pid
    worker.close()
    worker.close()
    assert pid is not None and not is_running(pid) and "not running" in repr(worker)
    assert worker.counted() == 1, "it is started anew"


def test_r27_a_release_ends_an_idle_worker_and_the_kernel_confirms_it(
    worker: lowtide.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lowtide")
    worker.start()
    pid, held = worker.pid, used_by(worker.pid)
    assert pid is not None and held >= SIZE
    before = lowtide.empty_device_cache("cpu").after.in_use_bytes
    assert before is not None
    receipt = idle_release(before - SIZE // 2)
    assert receipt.verdict == "released", "the target is met, with the worker and not without"
    assert not is_running(pid) and used_by(pid) == 0 and worker.pid is None
    step = receipt.rung("context_reset")
    assert step is not None and step.outcome == "done"
    (touched,) = step.touched
    assert str(pid) in touched.what and touched.bytes is not None
    assert abs(touched.bytes - held) < 8 * MIB
    assert step.freed_bytes is not None and abs(step.freed_bytes - held) < 8 * MIB
    assert receipt.freed_bytes is not None and receipt.freed_bytes > SIZE
    assert worker(1) == 2 and worker.starts == 2
    assert any("started anew: ended by a release" in line for line in caplog.messages)


def test_r27_its_memory_is_part_of_the_programs_and_a_line_of_the_ledger(
    worker: lowtide.Worker,
) -> None:
    before = lowtide.empty_device_cache("cpu").after.in_use_bytes
    worker.start()
    receipt = lowtide.empty_device_cache("cpu")
    after = receipt.after.in_use_bytes
    assert before is not None and after is not None
    assert after - before > SIZE - 8 * MIB
    assert "workers" in receipt.detailed()
    assert "context_reset: workers" in receipt.not_run, "this ladder does not reach it"


def test_r27_a_target_that_is_met_leaves_it_alone(worker: lowtide.Worker) -> None:
    worker.start()
    pid = worker.pid
    assert idle_release("900 GiB").verdict == "released"
    assert worker.pid == pid


def test_r28_a_call_under_way_is_never_cut(worker: lowtide.Worker, tmp_path: Path) -> None:
    worker.start()
    file = tmp_path / "go"
    said: list[str] = []
    call = threading.Thread(target=lambda: said.append(worker.wait_for(str(file))), daemon=True)
    call.start()
    until(worker._lock.locked)
    pid = worker.pid
    receipt = idle_release()
    step = receipt.rung("context_reset")
    assert step is not None and step.outcome == "skipped" and "at work" in (step.why or "")
    assert worker.pid == pid
    file.touch()
    call.join(60)
    assert said == ["done"]
    idle_release()
    assert worker.pid is None


def test_r28_without_a_worker_nothing_is_reset() -> None:
    gc.collect()
    step = idle_release().rung("context_reset")
    assert step is not None and step.outcome == "skipped"
    assert "not disposable" in (step.why or "") and "lowtide.Worker" in (step.why or "")


def test_on_a_gpu_the_context_goes_too() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU")
    device = device_of("cuda:0")
    assert device is not None
    with lowtide.Worker(OnGpu, 256 * MIB) as worker:
        assert worker() == 8
        free = device.usage().free_bytes
        receipt = lowtide.release(to=f"free {(free >> 20) + 300} MiB", device="cuda:0")
        assert receipt.verdict == "released" and worker.pid is None, receipt.detailed()
        assert device.usage().free_bytes - free > 300 * MIB, "the context is more than the tensor"
        assert worker() == 8 and worker.starts == 2


def test_free_on_idle_ends_it(worker: lowtide.Worker) -> None:
    with lowtide.idle("50ms", device="cpu", to="1 MiB") as idle:
        with idle.work():
            assert worker(1) == 2
        pid = worker.pid
        until(lambda: idle.last is not None)
        assert pid is not None and not is_running(pid)
        with idle.work():
            assert worker(2) == 3
    assert worker.starts == 2


def test_an_exception_comes_back_with_its_traceback(worker: lowtide.Worker) -> None:
    with pytest.raises(ValueError, match="no such thing") as raised:
        worker.fails("no such thing")
    cause = raised.value.__cause__
    assert isinstance(cause, lowtide.WorkerTraceback)
    assert "in fails" in str(cause) and "workers.py" in str(cause)
    with pytest.raises(lowtide.WorkerError, match="Odd: one and two"):
        worker.fails_oddly()
    with pytest.raises(lowtide.WorkerError, match="SystemExit"):
        worker.exits()
    with pytest.raises(AttributeError, match="no_such_method"):
        worker.no_such_method()
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        worker.unpicklable()
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        worker(lambda: None)
    assert worker.starts == 1 and worker(1) == 2, "it lives"


def test_a_worker_that_dies_is_started_anew_and_that_is_said(
    worker: lowtide.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(lowtide.WorkerError, match=r"exit code 7 during a call; the next use"):
        worker.dies()
    assert worker.pid is None and worker(1) == 2
    with pytest.raises(lowtide.WorkerError, match="signal 9"):
        worker.is_killed()
    pid = worker.start().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: worker.pid is None)
    assert worker(1) == 2 and worker.starts == 4
    assert any("its process was ended by signal 9" in line for line in caplog.messages)


def test_a_load_that_fails_is_raised_and_tried_again() -> None:
    with lowtide.Worker(refuses) as worker:
        for starts in (1, 2):
            with pytest.raises(MemoryError, match="no room"):
                worker()
            assert worker.pid is None and worker.starts == starts
    with pytest.raises(TypeError, match="callable"):
        lowtide.Worker(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a function or class of a module, not a lambda"):
        lowtide.Worker(lambda: 3)
    with pytest.raises(TypeError, match="belongs to this one"):
        pickle.dumps(lowtide.Worker(refuses))


def test_calls_of_many_threads_come_one_after_another(worker: lowtide.Worker) -> None:
    said: list[int] = []
    threads = [
        threading.Thread(target=lambda: said.extend(worker.counted() for _ in range(20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(said) == list(range(1, 81)) and worker.starts == 1


def test_what_it_has_started_ends_with_it(worker: lowtide.Worker) -> None:
    for in_session in (False, True):  # In its group, and in a session of its own.
        other = worker.starts_another(alone=in_session)
        assert is_running(other)
        idle_release()
        assert not is_running(other), "a release proves that it ended"
    other = worker.starts_another()
    with pytest.raises(lowtide.WorkerError):
        worker.dies()
    until(lambda: not is_running(other))


def test_a_worker_that_nobody_has_ends() -> None:
    worker = lowtide.Worker(load_reranker, "mini")
    pid = worker.start().pid
    assert pid is not None
    del worker
    gc.collect()
    until(lambda: not is_running(pid))


def test_the_ladder_of_idle_has_it_as_its_seventh_step(worker: lowtide.Worker) -> None:
    worker.start()
    receipt = _releasers.releaser_of("cpu").release("idle", Ladder.GRADUAL, to="1 MiB")
    assert worker.pid is None
    names = [rung.rung for rung in receipt.rungs]
    assert names.index("fraction") < names.index("context_reset") < names.index("fallback")


PROGRAM = """
    import os, signal, sys, threading, time
    sys.path.insert(0, {tests!r})
    import lowtide
    from workers import Holder, MIB

    worker = lowtide.Worker(Holder, 4 * MIB).start()
    print(worker.pid, flush=True)
    {end}
"""


DURING_A_CALL = (
    "threading.Thread(target=worker.slow, args=(600,), daemon=True).start(); time.sleep(0.2)"
)


@pytest.mark.parametrize(
    "end",
    [
        "sys.exit(0)",
        "os._exit(0)",
        DURING_A_CALL,
        f"{DURING_A_CALL}; os.fork() == 0 and time.sleep(600); os._exit(0)",
    ],
    ids=["exit", "at once", "during a call", "during a call with a fork alive"],
)
def test_the_end_of_the_parent_ends_it(end: str) -> None:
    pid = int(alone(PROGRAM.format(tests=str(Path(__file__).parent), end=end)))
    until(lambda: not is_running(pid))


def test_ctrl_c_is_raised_here_and_the_worker_is_started_anew() -> None:
    end = """
    # A shell starts background programs with the signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        worker.slow(600)
    except KeyboardInterrupt:
        print("interrupted", worker.pid, worker(1), worker.starts)
    """
    said = alone(PROGRAM.format(tests=str(Path(__file__).parent), end=end))
    assert "interrupted None 2 2" in said


def test_a_forked_child_has_workers_of_its_own(worker: lowtide.Worker) -> None:
    pid = worker.start().pid
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if worker.pid is None else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert worker.pid == pid and worker(1) == 2


def test_an_answer_that_calls_the_worker_is_refused(worker: lowtide.Worker) -> None:
    """As a finaliser is that runs during a call: it would wait for that call, and the call for it."""
    raised: list[BaseException] = []

    def call() -> None:
        try:
            worker.handle()
        except RuntimeError as error:
            raised.append(error)

    for calls in (worker.counted, worker.close, worker.start):
        Handle.calls = staticmethod(calls)
        try:
            thread = threading.Thread(target=call, daemon=True)
            thread.start()
            thread.join(30)
            assert not thread.is_alive(), "it waits for itself"
        finally:
            Handle.calls = staticmethod(int)
    assert [type(error) for error in raised] == [RuntimeError] * 3
    assert all("under way in this thread" in str(error) for error in raised)
    assert worker(1) == 2 and worker.starts == 1, "and it works"


def test_a_worker_that_dies_while_it_is_sent_to_is_noticed_although_its_fork_lives(
    worker: lowtide.Worker,
) -> None:
    other = worker.forks()
    pid = worker.pid
    assert pid is not None
    raised: list[BaseException] = []

    def call() -> None:
        try:
            worker.size(bytes(64 * MIB))
        except lowtide.WorkerError as error:
            raised.append(error)

    os.kill(pid, signal.SIGSTOP)
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    until(lambda: sys._current_frames()[thread.ident or 0].f_code.co_name == "_send")
    os.kill(pid, signal.SIGKILL)
    thread.join(30)
    is_stuck = thread.is_alive()
    if is_stuck:
        os.kill(other, signal.SIGKILL)
        thread.join(30)
    assert not is_stuck, "it waits for somebody to read"
    assert "signal 9" in str(raised[0])
    until(lambda: not is_running(other))
    assert worker.size(b"ab") == 2


def test_a_thread_that_goes_on_calling_does_not_keep_the_program_from_ending(
    tmp_path: Path,
) -> None:
    program = """
    import atexit, multiprocessing.util, os, sys, threading, time
    sys.path.insert(0, {tests!r})
    import lowtide
    from workers import Holder, MIB

    said = threading.Event()
    # It runs after the workers have ended, and before multiprocessing waits for its processes.
    atexit.register(said.wait, 20)
    worker = lowtide.Worker(Holder, 4 * MIB).start()

    def serve():
        while not said.is_set():
            try:
                worker.says_and_waits({begun!r})
            except lowtide.WorkerError as error:
                print(error, flush=True)
                if "the program ends" in str(error):
                    said.set()

    threading.Thread(target=serve, daemon=True).start()
    while not os.path.exists({begun!r}):
        time.sleep(0.01)
    """
    tests, begun = str(Path(__file__).parent), str(tmp_path / "begun")
    said = alone(program.format(tests=tests, begun=begun))
    assert "during a call" in said and "the program ends" in said


def test_what_cannot_be_sent_or_called_is_refused_alike(worker: lowtide.Worker) -> None:
    word: Any = "Holder"
    number: Any = 5
    for wrong, told in (
        (lambda: lowtide.Worker(word), "load must be callable, not str"),
        (lambda: lowtide.Worker(lambda: None), "a worker cannot be given .*lambda"),
        (
            lambda: lowtide.Worker(Holder, threading.Lock()),
            "a worker cannot be given Holder and its arguments",
        ),
        (
            lambda: worker.call("size", threading.Lock()),
            "a worker cannot be given the arguments of size",
        ),
        (lambda: worker(lambda: None), "a worker cannot be given the arguments of Holder"),
        (lambda: worker.call(number), "method must be a name or None, not int"),
    ):
        with pytest.raises(TypeError, match=told):
            wrong()
    assert worker.starts == 0
