"""Every cut that `why` prints runs as it stands, and frees what it says.

Tensors are leaked in every way of `holders.py`, alone and in random combinations. The statement of
the answer is then executed verbatim, in an empty namespace: it has the imports that it needs. torch's
own storage decides whether the memory is gone.
"""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import holders
import lowtide
import pytest
import torch
from alone import alone_with_torch, in_a_fork
from lowtide._why.references import suspended
from torch.multiprocessing.reductions import StorageWeakRef

MIB = 1 << 20
SIZE = 3 * MIB
SEED = int(os.environ.get("CUTS_SEED", "14"))
# A third of the heaps by default, all of them in the long tests.
HEAPS = int(os.environ.get("CUTS_HEAPS", "60" if os.environ.get("LOWTIDE_LONG") == "1" else "20"))


def collect_young() -> None:
    """Collects what a test has made. A whole collection goes through all of torch, every time."""
    gc.collect(1)


def leak(put: Callable[[Any], Any], size: int = SIZE) -> tuple[StorageWeakRef, Any]:
    """Makes a tensor and puts it somewhere; nothing here holds it afterwards."""
    tensor = torch.ones(size // 4)
    storage = StorageWeakRef(tensor.untyped_storage())
    end = put(tensor)
    del tensor
    # One that only garbage holds would fail at the question as well: that is not held.
    collect_young()
    assert not storage.expired(), "nothing holds it"
    return storage, end


def ask() -> Any:
    """What the answer says of the tensor."""
    answer = lowtide.why(device="cpu")
    (held,) = [held for held in answer.held if SIZE <= held.bytes < 2 * SIZE]
    return held


def is_freed_by_its_cut(storage: StorageWeakRef, may_be_by_hand: bool = False) -> None:
    held = ask()
    told = "\n".join(held.lines())
    cut = held.cuts[0] if held.cuts else None
    if cut is not None and cut.code is None and cut.number is not None:
        # Nobody would write the statement.
        assert f"lowtide.cut({cut.number})" in told, told
        lowtide.cut(cut.number)
        assert storage.expired(), f"not freed:\n{told}"
        return
    if cut is None or cut.code is None:
        assert may_be_by_hand, f"not a statement:\n{told}"
        assert any("by hand" in line for line in held.lines()), told
        return
    assert str(cut) == cut.code
    assert cut.code in told, told
    assert "…" not in cut.code
    assert cut.freed_bytes - cut.kept_bytes >= SIZE, told
    try:
        exec(cut.code, {})
    except Exception as error:  # noqa: BLE001 (whatever it is, the answer printed it)
        raise AssertionError(f"{type(error).__name__}: {error}\n{told}") from None
    assert storage.expired(), f"not freed:\n{told}"


@pytest.mark.parametrize("name", holders.HOLDERS)
def test_a_cut_of_a_holder_runs_as_it_stands_and_frees(shop: Any, name: str) -> None:
    def put(tensor: Any) -> None:
        shop.held = holders.HOLDERS[name](tensor)

    storage, _ = leak(put)
    is_freed_by_its_cut(storage)


def skip_without_its_package(name: str) -> None:
    if name in holders.NEEDS:
        pytest.importorskip(holders.NEEDS[name], reason=f"{holders.NEEDS[name]} is not installed")


@pytest.mark.parametrize("name", holders.PLACES)
def test_a_cut_in_a_place_runs_as_it_stands_and_frees(shop: Any, name: str) -> None:
    skip_without_its_package(name)
    test = in_a_fork(cut_in_a_place) if name in holders.WITH_COMPILER else cut_in_a_place
    test(shop, name)


def cut_in_a_place(shop: Any, name: str) -> None:
    storage, end = leak(lambda tensor: holders.PLACES[name](tensor, shop))
    try:
        is_freed_by_its_cut(storage, name in holders.BY_HAND)
    finally:
        if end is not None:
            end()


WHERE_REGISTERED = {
    "a_default_of_a_hook": (
        "shop.model._forward_hooks[",
        "del sys.modules['shop'].model._forward_hooks[",
    ),
    "a_keyword_default_of_a_callback": (
        "shop.callbacks[0][1]",
        "del sys.modules['shop'].callbacks[0]",
    ),
    "a_hook_of_a_node": (
        "shop.loss (hooks of MulBackward0)[",
        "shop'].loss.grad_fn … hooks[",
    ),
    "a_method_that_was_replaced": ("shop.Model.forward", "].Model.forward = sys.modules['shop']"),
    "a_profile_function": ("sys.getprofile()", "sys.setprofile(None)"),
    "hooks_for_saved_tensors_that_a_variable_has_too": (
        "_top_saved_tensors_default_hooks(True)[0]",
        "_pop_saved_tensors_default_hooks()",
    ),
    "a_hook_of_readline": ("readline.set_startup_hook", "readline'].set_startup_hook(None)"),
    "the_completer_of_readline": ("readline.set_completer", "readline'].set_completer(None)"),
}
"""What the path and the statement say: the hook goes, and not only what it holds."""


@pytest.mark.parametrize("name", WHERE_REGISTERED)
def test_a_hook_is_named_and_removed_where_it_was_registered(shop: Any, name: str) -> None:
    skip_without_its_package(name)
    _, end = leak(lambda tensor: holders.PLACES[name](tensor, shop))
    held = ask()
    path, statement = WHERE_REGISTERED[name]
    assert path in held.path, held
    cut = held.cuts[0]
    assert statement in (cut.code or cut.steps[0].action), held
    if end is not None:
        end()


@pytest.mark.parametrize(
    ("name", "is_here"),
    [
        ("a_subclass_of_thread_local", True),
        ("an_entry_of_a_thread_local_of_another_thread", False),
        ("a_thread_local_of_another_thread", False),
    ],
)
def test_a_thread_local_is_said_to_be_of_the_thread_that_has_it(
    shop: Any, name: str, is_here: bool
) -> None:
    done = threading.Event()
    # With another thread, too: its attributes are not this thread's.
    other = threading.Thread(target=done.wait, args=(60,))
    other.start()
    _, end = leak(lambda tensor: holders.PLACES[name](tensor, shop))
    held = ask()
    try:
        assert ("of another thread" in held.path) == (not is_here), held
        assert (held.cuts[0].code is None) == (not is_here), held
    finally:
        done.set()
        other.join()
        if end is not None:
            end()


def put_at_random(seed: int, tensor: Any, shop: Any) -> None:
    """Puts it into some holders within each other, and into another beside them."""
    chance = random.Random(seed)
    names = chance.choices(list(holders.HOLDERS), k=chance.randint(2, 5))
    paths = chance.choice((1, 1, 2))
    print(f"seed {seed}: {paths} × {names}")
    shop.held = tensor
    for name in names:
        shop.held = holders.HOLDERS[name](shop.held)
    if paths == 2:
        shop.again = [holders.HOLDERS[chance.choice(names)](tensor)]


@pytest.mark.parametrize("seed", range(SEED, SEED + HEAPS))
def test_a_cut_in_a_random_heap_runs_as_it_stands_and_frees(shop: Any, seed: int) -> None:
    storage, _ = leak(lambda tensor: put_at_random(seed, tensor, shop))
    is_freed_by_its_cut(storage)


def test_memory_that_native_references_keep_is_not_promised_to_the_collector() -> None:
    """A gradient with a graph of its own holds its leaf in C++, where the collector does not look."""
    gc.collect()
    leaf = torch.ones(SIZE // 4, requires_grad=True)
    storage = StorageWeakRef(leaf.untyped_storage())
    (leaf**2).sum().backward(create_graph=True)
    del leaf
    gc.collect()
    assert not storage.expired(), "this torch frees it"
    answer = lowtide.why(device="cpu")
    text = str(answer)
    promised = sum(action.bytes or 0 for action in answer.actions)
    for found in gc.get_objects():
        if type(found) is torch.Tensor and found.grad is not None:
            found.grad = None
    del found
    assert storage.expired()
    assert promised < SIZE, text
    assert "native" in text and "create_graph" in text, text


def test_the_cut_of_a_leaf_drops_the_gradient_that_holds_it(shop: Any) -> None:
    """`del shop.leaf` alone frees nothing after `backward(create_graph=True)`."""

    def put(tensor: Any) -> None:
        shop.leaf = tensor.requires_grad_()
        (shop.leaf**2).sum().backward(create_graph=True)

    for way in ("code", "apply"):
        storage, _ = leak(put)
        answer = lowtide.why(device="cpu")
        (held,) = [held for held in answer.held if held.bytes >= SIZE]
        cut = held.cuts[0]
        assert cut.code is not None and ".grad = None" in cut.code, answer
        assert cut.freed_bytes - cut.kept_bytes >= SIZE, answer
        if way == "code":
            exec(cut.code, {})
        else:
            cut.apply()
        assert storage.expired(), f"{way} does not free:\n{answer}"


def test_what_the_collector_frees_with_a_graph_is_promised() -> None:
    """A dead cycle with a loss: its graph holds tensors in C++, and goes with it."""
    gc.collect()

    class Trainer:
        pass

    gc.disable()
    try:
        trainer: Any = Trainer()
        trainer.self = trainer
        trainer.weight = torch.ones(SIZE // 4, requires_grad=True)
        storage = StorageWeakRef(trainer.weight.untyped_storage())
        trainer.loss = (trainer.weight * trainer.weight).sum()
        del trainer
        answer = lowtide.why(device="cpu")
        promised = sum(action.bytes or 0 for action in answer.actions)
        assert promised >= SIZE, answer
        for action in answer.actions:
            exec(action.action, {})
        assert storage.expired(), answer
    finally:
        gc.enable()


def test_bytes_that_native_code_holds_are_not_promised_to_a_cut(shop: Any) -> None:
    """A consumer of DLPack holds the memory, whoever else lets go of it."""
    capsule: Any = None

    def put(tensor: Any) -> None:
        nonlocal capsule
        capsule = torch.utils.dlpack.to_dlpack(tensor)
        shop.held = tensor

    storage, _ = leak(put)
    held = ask()
    cut = held.cuts[0]
    exec(cut.code or "", {})
    if not storage.expired():
        assert cut.freed_bytes - cut.kept_bytes < SIZE or "capsule" in str(held.lines())
    del capsule


def test_the_first_cut_leaves_a_queued_job_whole(shop: Any) -> None:
    """What is registered is taken out; the others of its kind go on."""

    def put(tensor: Any) -> None:
        shop.jobs = [lambda: 1, lambda: tensor, lambda: 3]

    storage, _ = leak(put)
    is_freed_by_its_cut(storage)
    assert [job() for job in shop.jobs] == [1, 3]


def test_a_generator_goes_where_closing_it_frees_nothing(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python 3.12.3 does."""
    monkeypatch.setattr(suspended, "_drops_variables", lambda *_: False)

    def put(tensor: Any) -> None:
        def stream() -> Iterator[int]:
            rows = tensor
            yield len(rows)

        shop.stream = stream()
        next(shop.stream)

    storage, _ = leak(put)
    assert ask().cuts[0].code is not None
    is_freed_by_its_cut(storage)


def test_what_goes_with_a_cut_is_named(shop: Any) -> None:
    def put(tensor: Any) -> None:
        def serve() -> Any:
            return tensor

        shop.routes = {"/": serve}

    leak(put)
    held = ask()
    assert held.cuts[0].goes == ("serve()",)
    assert "serve() goes too" in "\n".join(held.lines())


def test_a_path_is_python_and_is_whole_in_the_data(shop: Any) -> None:
    def put(tensor: Any) -> None:
        shop.held = tensor
        for _ in range(12):
            shop.held = {"a key that makes the path long": [shop.held]}

    leak(put)
    held = ask()
    assert "…" not in held.path
    assert eval(held.path, {"shop": shop}) is not None
    assert max(len(line) for line in held.lines() if "cut" not in line) <= 240


def test_receipts_and_audits_say_a_statement_or_by_hand(shop: Any) -> None:
    """What stays is either dropped by a statement that runs, or a sentence says what to do."""

    class Runner:
        model: Any

    def put(tensor: Any) -> None:
        shop.runner = Runner()
        shop.runner.model = torch.nn.Linear(1, 1, bias=False)
        shop.runner.model.weight = torch.nn.Parameter(tensor)
        shop.runner.model.weight.requires_grad_(False)

    def watch(runner: Any, steps: list[str]) -> Any:
        model = runner.model
        steps += str(lowtide.audit(runner)).splitlines()
        receipt = lowtide.shutdown(runner, device="cpu")
        steps += receipt.advice
        del model
        return receipt

    storage, _ = leak(put)
    shop.cache = {"model": [shop.runner.model]}
    steps: list[str] = []
    receipt = watch(shop.runner, steps)
    assert receipt.verdict == "pinned", receipt
    said = [line.partition("→")[2].strip() for line in steps if "→" in line]
    said += [holder.remedy() for holder in receipt.holders]
    assert set(said) >= {line for line in receipt.advice if "model" in line}, receipt
    by_hand = [line for line in said if line.startswith("by hand: ")]
    code = [line for line in said if not line.startswith("by hand: ")]
    assert len(by_hand) == 2 and all("del model" in line for line in by_hand), said
    assert len(code) == 2, said
    for holder in receipt.holders:
        assert (holder.cut is None) != (holder.by_hand is None), holder.to_dict()
    exec(code[-1], {})
    # Others held all of it, so that the shutdown has left the runner as it was.
    shop.runner.model = None
    assert storage.expired(), said


def test_a_model_that_an_optimizer_and_a_graph_hold_stays_whole() -> None:
    code = """
        import torch, lowtide
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(3)])
        registry, keep = {"a": model}, [model]
        opt = torch.optim.SGD(model.parameters())
        y = model(torch.ones(1, 1024))
        answer = lowtide.why(device="cpu")
        (held,) = [held for held in answer.held if held.bytes >= 1 << 20]
        assert held.type.endswith("Sequential") and held.tensors == 6, answer
        steps = {step.path for step in held.cuts[0].steps}
        assert {"model", "keep[0]"} <= steps and not any("weight" in one for one in steps), steps
    """
    alone_with_torch(code)
