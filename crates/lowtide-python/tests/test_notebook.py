"""What a notebook displays, and the magics, with IPython's real shell."""

from __future__ import annotations

import html
import json
import re
from importlib.util import find_spec
from typing import Any

import pytest
from alone import alone_with_torch

pytestmark = pytest.mark.skipif(find_spec("IPython") is None, reason="IPython is not installed")

SHELL = """
    import contextlib, io, json, sys, torch, lowtide
    assert "IPython" not in sys.modules and "lowtide._notebook" not in sys.modules
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from torch.multiprocessing.reductions import StorageWeakRef
    watched = []
    def big():
        made = torch.ones(4 << 20)
        watched.append(StorageWeakRef(made.untyped_storage()))
        return made
    shell = InteractiveShell.instance()
    shell.display_pub = CapturingDisplayPublisher()
    shell.user_ns.update(big=big, torch=torch, lowtide=lowtide)
    def cells(*codes, fails=False):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for code in codes:
                assert shell.run_cell(code, store_history=True).success is not fails, out.getvalue()
        return out.getvalue()
    def shown():
        return shell.display_pub.outputs[-1]["data"]
    cells("%load_ext lowtide")
"""


def _run(code: str) -> Any:
    return json.loads(alone_with_torch(SHELL + code).splitlines()[-1])


def _framed(shown: str) -> Any:
    """What a frame of a notebook shows."""
    (page,) = re.findall('srcdoc="(.*?)"', shown, re.DOTALL)
    (data,) = re.findall('id="data">(.*?)</script>', html.unescape(page), re.DOTALL)
    return json.loads(data)


def test_an_answer_is_a_small_view_and_its_cuts_work_cells_later() -> None:
    code = """
    cells("kept = [big()]", "big()", "def f(batch): raise ValueError")
    cells("f(big())", fails=True)
    cells("if True:\\n    %why device='cpu'")
    data = shown()
    cells("answer = lowtide.why(device='cpu')", "answer", "1 + 1", "answer")
    short = repr(shell.user_ns["answer"])
    before = [one.expired() for one in watched]
    cells("lowtide.cut(1)", "2 + 2", "lowtide.cut('all')")
    after = [one.expired() for one in watched]
    print(json.dumps([data, short, before, after]))
    """
    data, short, before, after = _run(code)
    framed, text = _framed(data["text/html"]), data["text/plain"]
    (answer,) = framed["documents"]
    for word in ("kept[0]", "Out[3]", "the traceback of cell 5"):
        assert any(word in one["path"] for one in answer["held"]) and word in text, text
    assert (
        [one["cuts"][0]["number"] for one in answer["held"][:3]]
        == [1, 2, 3]
        == answer["plan"]["all"]
    )
    assert framed["small"] and "lowtide.cut(3)" in text and "cuts 1, 2 and 3" in text
    assert len(short) < 160 and "\n" not in short
    paths = " ".join(one["path"] for one in answer["held"])
    assert not re.search(
        "_oh|displayhook|last_traceback|user_ns|InteractiveTB", paths + text + short
    )
    assert not any(before) and all(after)


def test_the_last_displayed_answer_is_meant() -> None:
    code = """
    cells("first, second = big(), torch.zeros(1 << 20)")
    cells("one = lowtide.why(first)", "other = lowtide.why(second)", "display(one)")
    cells("lowtide.cut(1)")
    print(json.dumps([sorted({"first", "second"} & set(shell.user_ns))]))
    """
    assert _run(code) == [["second"]]


def test_a_model_that_graphs_and_outputs_hold_is_one_row_and_stays_whole() -> None:
    code = """
    cells("model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(3)])", "model")
    cells("y = model(torch.ones(1, 1024))", "def bad(m):\\n    h = m(torch.ones(1, 1024))\\n    raise ValueError")
    cells("bad(model)", fails=True)
    cells("del model", "%why device='cpu'")
    data = shown()["text/plain"]
    shell.user_ns["watched"] = [StorageWeakRef(one.weight.untyped_storage()) for one in shell.user_ns["Out"][3]]
    cells("assert Out[3][0].weight is not None", "print(lowtide.cut(1))")
    print(json.dumps([data, [one.expired() for one in shell.user_ns["watched"]]]))
    """
    text, expired = _run(code)
    rows = [line for line in text.splitlines() if " MiB  " in line and "0.0 MiB" not in line]
    assert len(rows) == 1 and "Out[3] (torch.nn.modules.container.Sequential, 6 pieces)" in rows[0]
    assert "the autograd graph of y" in rows[0] and "lowtide.cut(1)" in rows[0], text
    assert all(expired), text


def test_the_extension_gives_the_name_that_answers_use_and_a_mistake_is_one_line() -> None:
    code = """
    told = cells("del lowtide", "%reload_ext lowtide", "lowtide.why") and ""
    for line in ("%why model", "%why 1 +"):
        with contextlib.redirect_stderr(io.StringIO()) as err:
            told = cells(line, fails=True) + err.getvalue()
        print(json.dumps(told), file=sys.stderr)
        assert len(told.strip().splitlines()) == 1, told
    print(json.dumps(told))
    """
    assert "SyntaxError" in _run(code)


def test_names_of_the_program_are_escaped() -> None:
    code = """
    hostile = type("<script>alert(1)</script>", (), {})()
    hostile.kept = big()
    shell.user_ns["<img src=x>"] = hostile
    del hostile
    cells("%why device='cpu'")
    print(json.dumps(shown()["text/html"]))
    """
    shown = _run(code)
    assert set(re.findall("<([a-z]+)", shown)) == {"div", "b", "iframe"}, "the page is an attribute"
    page = html.unescape(shown)
    assert "<img" not in page and page.count("<script") == 2 and 'sandbox="allow-scripts"' in page
    assert any("<img src=x>" in one["path"] for one in _framed(shown)["documents"][0]["held"])


def test_memory_is_drawn_while_the_cell_runs() -> None:
    code = """
    cells("%memory cpu\\nimport time\\nkept = big()\\ntime.sleep(1.3)", "%memory cpu")
    said = [one["data"]["text/html"] for one in shell.display_pub.outputs]
    told = cells("%memory xpu:7", fails=True)
    print(json.dumps([said, told]))
    """
    said, _ = _run(code)
    news = [one for one in said if "postMessage" in one]
    framed = [_framed(one)["documents"] for one in said if "<iframe" in one]
    assert len(news) >= 2 and all("iframe[name=lowtide-1]" in one for one in news)
    assert len(framed[0]) == 1 and len(framed[1]) >= 4
    lines = [one["ledgers"][0]["lines"] for one in framed[1]]
    live = [sum(one["bytes"] for one in each if one["kind"] == "live") for each in lines]
    assert live[-1] - live[0] > 14 << 20
    assert len(framed) == 4 and said[-1] == "", "the script goes, the last chart stays"


def test_a_cell_is_a_stage() -> None:
    code = """
    cells("%%stage 'reranker'\\nmodel = stage.own(torch.nn.Linear(8, 8))\\ntext = '''a\\n  b'''")
    receipt, text = shown(), shell.user_ns["text"]
    said = cells("%%stage broken\\nx = 1\\nraise KeyError('of mine')", fails=True)
    failed = shown()
    report = lowtide._stages.stage.stages_of().report()
    names = [one.name for one in report.stages]
    both = [one._repr_html_() for one in (report, lowtide.release())]
    print(json.dumps([receipt, text, said, names, both, repr(report), failed]))
    """
    receipt, text, said, names, shown, report, failed = _run(code)
    assert "broken" in _framed(failed["text/html"])["documents"][0]["name"], (
        "a cell that fails shows what it leaves"
    )
    assert "reranker" in receipt["text/html"].partition("<iframe")[0] and text == "a\n  b"
    assert "of mine" in said and "Cell In[3], line 2" in re.sub(r"\x1b\[[0-9;]*m", "", said)
    assert names == ["reranker", "broken"]
    assert [one["name"] for one in _framed(shown[0])["documents"][0]["stages"]] == names
    assert report.startswith("<StagesReport of 2 stages")
