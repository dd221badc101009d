"""`why(since=mark)`, and which task keeps memory."""

from __future__ import annotations

import gc
import types
import weakref
from typing import Any

import lowtide
import pytest
import torch
from kernel import MIB, weights

pytestmark = pytest.mark.usefixtures("clean")


def test_only_what_came_since_is_told_and_its_cut_frees(shop: Any) -> None:
    shop.older = weights(32 * MIB)
    mark = lowtide.mark()
    assert lowtide.why(since=mark, device="cpu").held_bytes == 0
    shop.view, shop.watched = shop.older[:5], {"a": weights(16 * MIB)}
    answer = lowtide.why(since=mark, device="cpu")
    assert (answer.held_bytes, answer.tensors) == (16 * MIB, 1), answer
    assert "shop.watched['a']" in str(answer) and "older" not in str(answer)
    answer.cuts[0].apply()
    assert not shop.watched


def test_a_mark_keeps_nothing_and_an_address_that_is_used_again_is_new(shop: Any) -> None:
    shop.one = torch.ones(4 << 20)
    mark, known = lowtide.mark(), weakref.ref(shop.one)
    address = shop.one.data_ptr()
    del shop.one
    assert known() is None
    shop.two = [torch.ones(4 << 20) for _ in range(3)]
    gc.collect()
    answer = lowtide.why(since=mark, device="cpu")
    assert answer.held_bytes >= 3 * 16 * MIB, (address, [one.data_ptr() for one in shop.two])


class Task:
    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize(
    ("items", "name"),
    [
        (["mmmu", "chartqa", "video"], "chartqa"),
        ([7, 8, 9], "task 8"),
        ([object(), object(), object()], "task 2"),
        ([Task("a"), Task("b"), Task("c")], "b"),
    ],
)
def test_the_task_that_keeps_memory_is_named(
    items: list[Any], name: str, shop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lowtide")
    shop.watched = []
    for item in lowtide.tasks(items, device="cpu"):
        kept = weights(80 * MIB)
        if item is items[1]:
            shop.watched.append(kept)
        del kept
    told = [record.getMessage() for record in caplog.records]
    assert [one.split(" on ")[0] for one in told if one.startswith("after ")][1] == f"after {name}"
    (words,) = [one for one in told if f"{name} keeps 80.0 MiB: `shop.watched[0]` → " in one]
    assert "del sys.modules['shop'].watched[0]" in words
    assert "task 3 keeps" not in str(told) and "video keeps" not in str(told)


def test_what_a_task_keeps_is_one_line_that_frees_all_of_it(
    shop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shop.watched = []
    shop.log = types.SimpleNamespace(samples=shop.watched)  # A second way to the same list.
    for task in lowtide.tasks(["first", "second"], device="cpu"):
        for _ in range(4 if task == "second" else 0):
            shop.watched.append(weights(16 * MIB))
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    told = record.getMessage()
    assert told.count("second keeps") == 1 and "second keeps 64.0 MiB" in told, told
    assert ".clear()  # cut 1" in told and "del " not in told, told
    lowtide.cut(1)
    assert shop.watched == []
