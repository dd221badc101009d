"""Memory that IPython keeps: results, names of the user, the last traceback. With the real shell."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest
from alone import alone_with_torch

# It is not imported: all other tests would walk over its objects.
pytestmark = pytest.mark.skipif(find_spec("IPython") is None, reason="IPython is not installed")

CELLS = {
    "a name": (["model = {'a': big()}"], "model['a']"),
    "a result": (["big()[:4]"], "Out[1]"),
    "an older result": (["big()[:4]", "1", "2", "3"], "Out[1]"),
    "a named result": (["model = big()", "model"], "Out[2]"),
    "a part of a result": (["[big()]"], "Out[1][0]"),
    "a result without Out": (["big()", "Out.clear(); del _1"], "_"),
    "a failed cell": (
        ["def f(batch):\n    raise ValueError('no')", "f(big())"],
        "the traceback of cell 2, frame f() line 2: batch",
    ),
    "an error with a tensor": (["raise ValueError(big())"], "the traceback of cell 1"),
    "a timed cell": (["%time kept = [big()]"], "kept[0]"),
}


def _run(cells: list[str], *, ask_inside: bool) -> Any:
    code = f"""
        import contextlib, gc, io, json, torch, lowtide
        from IPython.core.interactiveshell import InteractiveShell
        from torch.multiprocessing.reductions import StorageWeakRef
        watched = []
        def big():
            made = torch.ones(4 << 20)
            watched.append(StorageWeakRef(made.untyped_storage()))
            return made
        shell = InteractiveShell.instance()
        shell.user_ns["big"] = big
        with contextlib.redirect_stdout(io.StringIO()):
            for cell in {cells!r}:
                shell.run_cell(cell, store_history=True)
        gc.collect()
        assert not all(one.expired() for one in watched), "the leak is gone"
        if {ask_inside}:
            # Not as the value of a cell, which IPython would keep.
            shell.run_cell("import lowtide; answer = lowtide.why(device='cpu')")
            answer = shell.user_ns.pop("answer")
        else:
            answer = lowtide.why(device="cpu")
        (held,) = [held for held in answer.held if held.bytes >= 1 << 20]
        cut = held.cuts[0].code or "import lowtide; lowtide.cut(1)"
        # What is typed to drop a failed cell has these names.
        told = str(answer).replace("sys.last_", "")
        assert not [word for word in ("_oh", "displayhook", "last_", "hidden") if word in told]
        if {ask_inside}:
            assert shell.run_cell(cut).success
        else:
            exec(cut, {{}})
        print(json.dumps([held.paths, cut, all(one.expired() for one in watched), str(answer)]))
    """
    return json.loads(alone_with_torch(code).splitlines()[-1])


@pytest.mark.parametrize("ask_inside", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_what_ipython_keeps_is_named_and_its_cut_frees(name: str, ask_inside: bool) -> None:
    cells, path = CELLS[name]
    paths, cut, is_freed, text = _run(cells, ask_inside=ask_inside)
    assert any(path in one for one in paths), text
    assert not any("native code's" in one or "f_globals" in one for one in paths), text
    assert is_freed, f"{cut}\n{text}"
