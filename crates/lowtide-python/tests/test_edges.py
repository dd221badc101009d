"""References that no traverse slot shows: arrays, parts of tensors, scripted modules, hooks.

Every case runs in a process of its own: tracing and quantisation leave things behind. The holder has
to be named, each byte to be counted once, and the first cut to free the memory, by torch's storages
where there are some.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from typing import Any

import pytest
from alone import alone_with_torch

MIB = 1 << 20
LEAKS = {
    "array": ("kept = big().numpy()", "kept.base", 16),
    "view of an array": ("kept = big().numpy()[8:24].reshape(4, 4)", "kept.base.base", 16),
    "array of objects": ("kept = np.empty((2, 3), object); kept[1, 2] = big()", "kept[1, 2]", 16),
    "object in an array of no dimension": (
        "kept = np.array(None); kept[()] = big()",
        "kept[()]",
        16,
    ),
    "array in a list": ("kept = [1, big().numpy()]", "kept[1].base", 16),
    "array with attributes": (
        "class Mine(np.ndarray): pass\nkept = big().numpy().view(Mine)",
        "kept.base",
        16,
    ),
    "memory view": ("kept = memoryview(big().numpy())", "kept.obj.base", 16),
    "ctypes": ("import ctypes\nkept = (ctypes.c_char * 16).from_buffer(big().numpy())", "kept", 16),
    "COO": (
        """
indices = torch.zeros(2, MIB, dtype=torch.long)
kept = torch.sparse_coo_tensor(indices, torch.ones(MIB), (4, 4), check_invariants=False)
part = kept._indices()
del indices
""",
        "part",
        20,
    ),
    "CSR": ("kept = torch.ones(1024, 1024).to_sparse_csr()", "kept", 20),
    "MKL-DNN": ("kept = big().to_mkldnn()", "kept", 16),
    "scripted module": (
        "kept = torch.jit.script(torch.nn.Linear(2048, 2048, bias=False))",
        "kept",
        16,
    ),
    "module in native code": (
        "kept = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2048, 2048, bias=False)))._c",
        "kept",
        16,
    ),
    "traced module": (
        "kept = torch.jit.trace(torch.nn.Linear(2048, 2048, bias=False), torch.ones(1, 2048))",
        "kept",
        16,
    ),
    "quantised module": (
        """
import torch.ao.quantization as q
model = torch.nn.Sequential(torch.nn.Linear(2048, 2048, bias=False))
kept = q.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
del model
""",
        "kept",
        4,
    ),
    "tensor of a transform": (
        "kept = []\ntorch.func.vmap(lambda x: kept.append(x) or x.sum())(torch.ones(4, MIB))",
        "kept[0]",
        16,
    ),
}
NEEDS = {"quantised module": "torch.ao"}


def _run(leak: str) -> Any:
    code = f"""
        import gc, json, warnings, torch, numpy as np, lowtide
        warnings.simplefilter("ignore")
        MIB = 1 << 20
        def big(mib=16): return torch.ones(mib * MIB // 4)
        exec({leak!r})
        gc.collect()
        answer = lowtide.why(device="cpu")
        found = [held for held in answer.held if held.bytes >= MIB]
        for held in found:
            try:
                held.cuts[0].apply()
            except LookupError:
                pass  # The cut of another has done it.
        gc.collect()
        left = lowtide.why(device="cpu")
        print(json.dumps([answer.held_bytes, [held.paths for held in found],
                          left.held_bytes, str(answer) + str(left)]))
    """
    return json.loads(alone_with_torch(code).splitlines()[-1])


@pytest.mark.parametrize("name", LEAKS)
def test_the_holder_is_named_and_bytes_count_once(name: str) -> None:
    if find_spec("torch") is None or find_spec("numpy") is None:
        pytest.skip("torch and numpy are needed")
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not part of this torch")
    leak, path, mib = LEAKS[name]
    held_bytes, paths, left_bytes, text = _run(leak)
    assert abs(held_bytes - mib * MIB) < MIB, text
    assert any(path in one for several in paths for one in several), text
    assert not any("native code's" in one for several in paths for one in several), text
    assert left_bytes < MIB, text


def test_the_constant_of_a_traced_function_is_named() -> None:
    """torch itself keeps the traced code for good, so no cut can be promised."""
    said = _run(
        "weights = big()\nkept = torch.jit.trace(lambda x: x + weights[0], torch.ones(1))\ndel weights"
    )
    held_bytes, paths, _, text = said
    assert abs(held_bytes - 16 * MIB) < MIB, text
    assert ["kept"] in paths, text
    assert "by hand" in text and "until the process ends" in text, text
    assert " cut  " not in text, text


REGISTRIES = {
    "sys.getprofile()": "class F:\n def __call__(self, *a): pass\nf = F(); f.t = big()\n"
    "sys.setprofile(f)\ndel f",
    "sys.gettrace()": "class F:\n def __call__(self, *a): pass\nf = F(); f.t = big()\n"
    "sys.settrace(f)\ndel f",
    "signal.getsignal(10)": "import signal\nsignal.signal(10, lambda *a, t=big(): None)",
    "sys.get_asyncgen_hooks().firstiter": "sys.set_asyncgen_hooks(lambda g, t=big(): None)",
    "os.register_at_fork(after_in_child=…)": "import os\n"
    "os.register_at_fork(after_in_child=lambda t=big(): None)",
    "os.register_at_fork(before=…)": "import os\nos.register_at_fork(before=lambda t=big(): None)",
    "codecs.register_error": "import codecs\ncodecs.register_error('mine', lambda e, t=big(): None)",
    "codecs.register[": "import codecs\ncodecs.register(lambda name, t=big(): None)",
    "audit hook <lambda>()": "sys.addaudithook(lambda name, parts, t=big(): None)",
    "profile or trace function of thread 'worker', F.t": """
import threading
class F:
    def __call__(self, *a): pass
f = F(); f.t = big(); cell = [f]; del f
begun, ended = threading.Event(), threading.Event()
def run():
    sys.setprofile(cell.pop()); begun.set(); ended.wait(60)
threading.Thread(target=run, name="worker", daemon=True).start(); begun.wait(60)
""",
    "y (hooks of MulBackward0)[0]": "y = torch.ones(2, requires_grad=True) * 2\n"
    "y.grad_fn.register_hook(lambda a, b, t=big(): None)",
}
if sys.version_info >= (3, 12):
    REGISTRIES["callback of sys.monitoring <lambda>()"] = """
sys.monitoring.use_tool_id(3, "shop")
sys.monitoring.register_callback(3, sys.monitoring.events.PY_START, lambda *a, t=big(): None)
"""


@pytest.mark.parametrize("name", REGISTRIES)
def test_what_the_interpreter_keeps_is_named(name: str) -> None:
    said = _run("import sys\n" + REGISTRIES[name])
    _, paths, _, text = said
    assert any(name in one for several in paths for one in several), text


def test_what_checkpointing_computes_from_again_is_kept_by_its_graph() -> None:
    """The graph has a hook instead of values, and the hook has the function with its arguments."""
    said = _run(
        "from torch.utils.checkpoint import checkpoint\n"
        "weights = big()\n"
        "kept = checkpoint(lambda x, w=weights: (x * w[0]).sum(), torch.ones(1, requires_grad=True), "
        "use_reentrant=False)\ndel weights"
    )
    held_bytes, paths, _, text = said
    assert abs(held_bytes - 16 * MIB) < MIB, text
    assert any("kept" in one for several in paths for one in several), text
