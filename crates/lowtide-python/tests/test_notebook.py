"""What a notebook displays, and the magics, with IPython's real shell."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from typing import Any

import pytest
from alone import alone_with_torch
from lowtide._runtime.view import View

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


def test_an_answer_is_a_small_table_and_its_cuts_work_cells_later() -> None:
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
    html, text = data["text/html"], data["text/plain"]
    for word in (
        "kept[0]",
        "Out[3]",
        "the traceback of cell 5",
        "lowtide.cut(3)",
        "cuts 1, 2 and 3",
    ):
        assert word in html and word in text, html + text
    assert len(short) < 160 and "\n" not in short
    assert not re.search(
        "_oh|displayhook|last_traceback|user_ns|InteractiveTB", html + text + short
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
    html = _run(code)
    assert not re.search("<script|<img|http|src=x>", html.replace("&lt;img src=x&gt;", "")), html
    view = View("<b>", [("1 & 2", "<script>", "del x['<i>']")], ["<u>"]).html()
    assert set(re.findall("<([a-z]+)", view)) == {"div", "b", "table", "tr", "td", "code"}


def test_a_cell_is_a_stage() -> None:
    code = """
    cells("%%stage 'reranker'\\nmodel = stage.own(torch.nn.Linear(8, 8))\\ntext = '''a\\n  b'''")
    receipt, text = shown(), shell.user_ns["text"]
    said = cells("%%stage broken\\nx = 1\\nraise KeyError('of mine')", fails=True)
    failed = shown()
    report = lowtide._stages.stage.stages_of().report()
    names = [one.name for one in report.stages]
    html = [one._repr_html_() for one in (report, lowtide.release())]
    print(json.dumps([receipt, text, said, names, html, repr(report), failed]))
    """
    receipt, text, said, names, html, report, failed = _run(code)
    assert "broken" in failed["text/html"], "a cell that fails shows what it leaves"
    assert "reranker" in receipt["text/html"] and text == "a\n  b"
    assert "of mine" in said and "Cell In[3], line 2" in re.sub(r"\x1b\[[0-9;]*m", "", said)
    assert names == ["reranker", "broken"] and "broken" in html[0]
    assert "<table" in html[0] and report.startswith("<StagesReport of 2 stages")
