"""`why` is bounded: long chains are named in linear time, nothing loops, and too little memory is a
MemoryError.

No test here asserts a time. Work is counted where it can be, and what would never end runs in a
process of its own, which is given up after two minutes.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any

import lowtide
import pytest
from alone import alone
from lowtide._why.naming import edges as _edges  # noqa: F401 (imported before it is replaced)
from lowtide._why.references import readers


class Link:
    def __init__(self, following: Any) -> None:
        self.next = following


class Slotted:
    __slots__ = ("next",)

    def __init__(self, following: Any) -> None:
        self.next = following


class Payload:
    pass


CHAINS: dict[str, Any] = {
    "attributes": Link,
    "slots": Slotted,
    "lists": lambda following: [following],
    "tuples": lambda following: (following,),
    "dicts": lambda following: {"next": following},
    "in turn": lambda following: Link([{"next": following}]),
}
shelf: dict[str, Any] = {}


@pytest.fixture
def chain() -> Any:
    yield
    at, shelf["head"] = shelf.get("head"), None
    while at is not None and type(at) is not Payload:  # Freeing it at once would recurse.
        if type(at) in (list, tuple):
            at = at[0]
        else:
            at = at["next"] if type(at) is dict else at.next


@pytest.mark.usefixtures("chain")
@pytest.mark.parametrize("kind", CHAINS)
def test_the_names_of_a_long_chain_take_work_in_proportion(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    real = readers.references

    def counting(holder: object, held: object) -> Any:
        nonlocal asked
        asked += 1
        return real(holder, held)

    for name in ("lowtide._why.naming.edges", "lowtide._why.references.readers"):
        monkeypatch.setattr(sys.modules[name], "references", counting)
    counts = []
    for links in (500, 2_000):
        held = Payload()
        at: Any = held
        for _ in range(links):
            at = CHAINS[kind](at)
        shelf["head"] = at
        del at
        asked = 0
        gone = weakref.ref(held)
        del held
        answer = lowtide.why(gone())
        counts.append(asked)
        assert "shelf['head']" in answer.held[0].path, answer.held[0].path
        assert len(answer.held[0].path) <= 400
    # Four times the links: the same few questions, or four times as many at the most.
    assert counts[1] <= 4.5 * counts[0], counts
    assert counts[1] <= 3_000, counts


def test_a_very_long_chain_has_an_answer() -> None:
    """A million links in the long tests. Work that is not in proportion would not end either way."""
    links = 1_000_000 if os.environ.get("LOWTIDE_LONG") == "1" else 250_000
    said = alone(
        f"""
        import lowtide
        class Link:
            def __init__(self, following): self.next = following
        class Payload: pass
        at = held = Payload()
        for _ in range({links}):
            at = Link(at)
        head = at
        del at
        answer = lowtide.why(held)
        print(answer.held[0].paths, answer)
        import os; os._exit(0)  # To free the chain would recurse at each link.
        """
    )
    assert "head.next.next" in said and f" … {links - 100:,}"[:7] in said


def test_the_header_tells_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naming counts: a clock that moves by a second at each look is looked at before and after it."""
    from lowtide._why import why
    from lowtide._why.naming import found as naming

    now = 0.0
    real = naming.Naming.answer

    def clock() -> float:
        return now

    def slow(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal now
        now += 7.0
        return real(self, *args, **kwargs)

    monkeypatch.setattr(why.time, "perf_counter", clock)
    monkeypatch.setattr(naming.Naming, "answer", slow)
    answer = lowtide.why(shelf)
    assert answer.took_s == 7.0
    assert "7.00 s" in str(answer).splitlines()[0], answer


def test_asyncio_at_work_in_another_thread() -> None:
    """On Python 3.12.1 the collector's view of `_asyncio` shows freed objects, and whoever holds them
    for a moment makes a list that never ends (gh-122695)."""
    said = alone(
        """
        import asyncio, threading, _asyncio, gc
        import lowtide

        class Held: pass
        held, ready, done = Held(), threading.Event(), threading.Event()
        _asyncio.kept = [held]

        async def wait():
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.set_result, 1)
            await future

        async def work():
            for _ in range(50):
                await asyncio.gather(*(wait() for _ in range(20)))
            ready.set()
            while not done.is_set():
                await asyncio.gather(*(wait() for _ in range(20)))
                await asyncio.sleep(0.001)

        thread = threading.Thread(target=asyncio.run, args=(work(),))
        thread.start()
        ready.wait()
        for _ in range(5):
            answer = lowtide.why(held)
            lowtide.why(_asyncio)
            lowtide.why(device="cpu")
        print(answer.held[0].paths)
        gc.collect()
        done.set()
        thread.join()
        gc.collect()
        print("ended")
        """
    )
    assert "kept" in said and "ended" in said


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is Linux's")
@pytest.mark.parametrize("question", ["why(device='cpu')", "why(held)"])
def test_too_little_memory_is_a_memory_error(question: str) -> None:
    """At every limit there is an answer or a MemoryError, and the program goes on.

    Nothing of the program is unmapped: low addresses belong to some interpreters.
    """
    said = alone(
        f"""
        import ctypes, mmap, os, resource, sys, lowtide

        # A page at 4 MiB, unless the interpreter is there itself.
        library = ctypes.CDLL(None)
        library.mmap.argtypes = [ctypes.c_size_t] * 6
        library.mmap.restype = ctypes.c_size_t
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if library.mmap(4 << 20, 4096, mmap.PROT_READ, flags, 2**64 - 1, 0) != 4 << 20:
            assert "00400000-" in open("/proc/self/maps").read()

        class Request:
            def __init__(self, number):
                self.number, self.headers = number, {{"tags": [number]}}

        # A third of the objects and every fifth limit by default, all of them in the long tests.
        is_long = os.environ.get("LOWTIDE_LONG") == "1"
        made = [Request(number) for number in range(300_000 if is_long else 100_000)]
        for one, other in zip(made, made[1:]):
            one.next = other
        held = made[-1]
        lowtide.{question}
        said = {{"answer": 0, "MemoryError": 0}}

        def in_use():
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")

        step = 1 if is_long else 5
        for mib in [*range(0, 40, step), *range(40, 400, 10 * step), 1000]:
            child = os.fork()
            if child == 0:
                limit = in_use() + (mib << 20)
                resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
                try:
                    lowtide.{question}
                except MemoryError:
                    # It reads without a buffer, and the page is in the first lines.
                    maps = os.open("/proc/self/maps", os.O_RDONLY)
                    os._exit(7 if b"00400000-" in os.read(maps, 4096) else 8)
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert status in (0, 7), f"at {{mib}} MiB it ended with {{status}}"
            said["MemoryError" if status == 7 else "answer"] += 1
        print(said)
        os._exit(0)
        """
    )
    assert "'answer': 0" not in said and "'MemoryError': 0" not in said, said
