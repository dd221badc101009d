"""Classes of the program: what `@releases` names, the last resort of `Releasable`, and the end of the
interpreter."""

from __future__ import annotations

import gc
import textwrap
from typing import Any

import lowtide
import pytest
from alone import ended_with_torch
from kernel import SIZE, in_use, is_about, weights

pytestmark = pytest.mark.usefixtures("clean")


@lowtide.releases("pipeline", "model")
class Generator:
    def __init__(self) -> None:
        self.pipeline = ["tokenizer"]
        self.model: Any = weights()
        self.embeddings: Any = weights(SIZE // 4)


@pytest.mark.parametrize("how", ["teardown", "shutdown", "release", "stage"])
def test_only_what_the_class_names_is_dropped(how: str) -> None:
    generator = Generator()
    before = in_use()
    if how == "teardown":
        receipt = generator.teardown()  # type: ignore[attr-defined]
    elif how == "shutdown":
        receipt = lowtide.shutdown(generator, device="cpu")
    elif how == "release":
        receipt = lowtide.release(generator, device="cpu")
    else:
        with lowtide.stage("generator", device="cpu") as stage:
            stage.own(generator)
        receipt = stage.receipt
    assert receipt is not None and receipt.verdict == "released", receipt
    assert receipt.claim is not None and is_about(receipt.claim.bytes, SIZE, 1 << 20), receipt
    assert is_about(before - in_use(), SIZE)
    assert (generator.pipeline, generator.model) == (None, None)
    assert generator.embeddings is not None, "the class did not name it"
    drop = receipt.rung("drop")
    assert drop is not None
    assert [touch.what for touch in drop.touched] == ["Generator.pipeline", "Generator.model"]


def test_the_names_of_a_parent_count_too_and_one_that_releases_all_releases_all() -> None:
    @lowtide.releases("draft")
    class Child(Generator):
        def __init__(self) -> None:
            super().__init__()
            self.draft: Any = weights()

    @lowtide.releases()
    class Grandchild(Child): ...

    child, grandchild = Child(), Grandchild()
    lowtide.shutdown(child, device="cpu")
    assert (child.draft, child.model) == (None, None) and child.embeddings is not None
    lowtide.shutdown(grandchild, device="cpu")
    assert (grandchild.draft, grandchild.embeddings) == (None, None)


def test_what_is_no_class_is_refused_with_what_to_write() -> None:
    decorate: Any = lowtide.releases("model")
    with pytest.raises(TypeError, match="lowtide.releases decorates a class, not 5"):
        decorate(5)
    bare: Any = lowtide.releases
    with pytest.raises(TypeError, match=r"@lowtide.releases\(\) for all"):

        @bare
        class _WithoutParentheses: ...


def test_what_can_hold_no_memory_is_answered_with_what_to_give() -> None:
    for nothing, named in ((None, "None"), (5, "5"), ("engine", "'engine'")):
        with pytest.raises(TypeError, match=f"^{named} holds no memory; give the object that does"):
            lowtide.audit(nothing)
        # A clean-up after a failed load does not fail again.
        receipt = lowtide.shutdown(nothing, device="cpu")
        assert receipt.advice[-1].startswith(f"{named} holds no memory: give the object that does")


class Reranker(lowtide.Releasable):
    def __init__(self) -> None:
        self.model: Any = weights()
        self.torn_down: list[str] = []


def test_release_is_teardown() -> None:
    before = in_use()
    reranker = Reranker()
    assert reranker.release().verdict == "released"
    assert is_about(in_use(), before) and reranker.model is None


def test_the_end_of_an_object_tears_it_down_by_its_own_method() -> None:
    log: list[str] = []

    class Parent:
        def teardown(self) -> None:
            log.append(f"parent {is_about(in_use(), before)}")

        def __del__(self) -> None:
            log.append("parent's end")

    class Own(lowtide.Releasable, Parent):
        def __init__(self) -> None:
            self.model: Any = weights()
            self.me = self  # A cycle: the collector ends it.

        def teardown(self) -> lowtide.Receipt:
            receipt = super().teardown()
            log.append(receipt.verdict)
            return receipt

    before = in_use()
    own = Own()
    assert is_about(in_use() - before, SIZE)
    del own
    gc.collect()
    assert log == ["parent True", "released", "parent's end"]
    assert is_about(in_use(), before)
    log.clear()
    own = Own()
    own.teardown()
    log.clear()
    own.me = None  # type: ignore[assignment]
    del own
    assert log == ["parent's end"], "what was torn down is not torn down again"


def test_del_gives_memory_back() -> None:
    before = in_use()
    reranker = Reranker()
    assert is_about(in_use() - before, SIZE)
    del reranker
    assert is_about(in_use(), before)


def test_an_end_that_fails_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    class Bad(Reranker):
        def teardown(self) -> Any:
            raise ValueError("no")

    bad = Bad()
    del bad
    assert capfd.readouterr().err == ""


def run(code: str) -> str:
    """Runs a program and returns what it wrote to stderr."""
    on_the_host = "import os; os.environ['LOWTIDE_DEVICE'] = 'cpu'\n"
    ended = ended_with_torch(on_the_host + textwrap.dedent(code))
    assert ended.status == 0, ended.errors
    assert "ended" in ended.output, ended.output
    return ended.errors


CALLS = [
    "lowtide.empty_device_cache()",
    "lowtide.release()",
    "lowtide.shutdown(self)",
    "lowtide.release(self, to='1 MiB')",
    "lowtide.compat.empty_cuda_cache()",
    "lowtide.restore()",
    "lowtide.idle('5m').work().leave()",
    "lowtide.Stages().between('task')",
    "lowtide.audit(self)",
    "kept.work().leave(), kept.close()",
    "gate.pause(), gate.resume()",
    "[one for one in lowtide.tasks(['a'])]",
    "infer()",
    "self.enter()",
]


@pytest.mark.parametrize("holder", ["module", "cycle", "class"])
def test_after_exit_has_begun_calls_do_nothing_silently(holder: str) -> None:
    calls = "\n".join(f"                    {call}" for call in CALLS)
    put = {
        "module": "kept_alive = Late()",
        "cycle": "late = Late(); late.me = late; late.f = lambda: late; del late",
        "class": "Late.kept = Late()",
    }[holder]
    said = run(
        f"""
        import gc, sys, torch, lowtide
        gc.disable()
        kept, gate = lowtide.idle("1h"), lowtide.Gate()

        @lowtide.after_inference
        def infer():
            pass

        class Late:
            def __init__(self):
                self.model = torch.zeros(1000)
            def enter(self):
                with lowtide.stage("late") as stage:
                    stage.own(self)
            def __del__(self):
                if not sys.is_finalizing():
                    print("too early")
                try:
                    pass
{calls}
                finally:
                    pass

        class Module(lowtide.Releasable):
            def __init__(self):
                self.model = torch.zeros(1000)

        {put}
        module = Module()
        print("ended")
        """.replace("                    " + calls.strip().split("\n")[0], calls.split("\n")[0])
    )
    assert said == "", said


def test_a_program_without_logging_is_warned_once_of_what_stays() -> None:
    said = run(
        """
        import torch, lowtide
        class Runner: pass
        runner = Runner()
        runner.model = torch.zeros(32 << 20)
        held = [runner.model]
        receipt = lowtide.shutdown(runner)
        assert receipt.verdict == "pinned"
        print("ended", receipt)
        """
    )
    assert said.startswith("shutdown Runner on cpu: pinned") and said.count("\n") == 1, said


def test_empty_cuda_cache_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    lowtide.compat.empty_cuda_cache()

    def breaks(device: object = None) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr("lowtide._release.release.empty_device_cache", breaks)
    from lowtide.compat import empty_cuda_cache

    empty_cuda_cache()
