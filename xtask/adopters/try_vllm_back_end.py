"""The sleep back end `lowtide` against vLLM's own abstract class, its registry and its worker's method.

Started by `try_vllm.py`, in a process of its own: the driver double stands in for a GPU (LD_LIBRARY_PATH), and
this script calls the allocator as torch would. It is not a vLLM run on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import sys
from types import SimpleNamespace
from typing import Any

MIB = 1 << 20
TAGS = ("weights", "kv_cache", "runtime", "workspace")
SIZES = {"weights": 6, "kv_cache": 8, "runtime": 2, "workspace": 4}


def main() -> None:
    # As an engine starts: the plug-ins are loaded, then the worker is imported.
    from vllm.device_allocator import sleep_mode_backend as slot
    from vllm.plugins import load_general_plugins

    assert "lowtide" not in slot.SleepModeBackendFactory._registry
    load_general_plugins()
    assert set(slot.SleepModeBackendFactory._registry) == {"cumem", "lowtide"}
    from vllm.v1.worker.gpu_worker import Worker

    scopes(Worker)
    back_end_class = slot.SleepModeBackendFactory.get_backend_class("lowtide")
    capabilities(slot, back_end_class)
    sleeps(back_end_class())
    print("back end: right")


def worker(back_end: str, sleep_mode: bool = True) -> Any:
    """What the method reads of a worker."""
    model = SimpleNamespace(
        sleep_mode_backend=back_end, enable_sleep_mode=sleep_mode, enable_cumem_allocator=False
    )
    return SimpleNamespace(vllm_config=SimpleNamespace(model_config=model))


def scopes(cls: Any) -> None:
    """The worker takes our scopes where our name was chosen, and vLLM's own everywhere else."""
    import lowtide

    method = cls._maybe_get_memory_pool_context
    assert list(inspect.signature(method).parameters) == ["self", "tag"]
    for other in (worker("cumem"), worker("lowtide", sleep_mode=False)):
        for tag in TAGS:
            assert isinstance(method(other, tag), contextlib.nullcontext), tag
    policies = {tag: method(worker("lowtide"), tag) for tag in TAGS}
    assert all(isinstance(scope, lowtide.Tag) for scope in policies.values())
    found = {tag: scope.policy for tag, scope in policies.items()}
    print(f"policies: {found}")
    assert found == dict.fromkeys(("weights", "runtime"), "offload") | dict.fromkeys(
        ("kv_cache", "workspace"), "discard"
    )


def capabilities(slot: Any, cls: Any) -> None:
    """It is a whole implementation of vLLM's abstract class, and says what is true."""
    assert issubclass(cls, slot.SleepModeBackend) and not inspect.isabstract(cls)
    for name, found in vars(slot.SleepModeBackend).items():
        if callable(found) and not name.startswith("_"):
            theirs = inspect.signature(getattr(slot.SleepModeBackend, name))
            ours = inspect.signature(getattr(cls, name))
            assert list(theirs.parameters) == list(ours.parameters), name
    names = [
        name
        for name, found in vars(slot.SleepModeBackend).items()
        if isinstance(found, classmethod)
    ]
    answers = {name: getattr(cls, name)() for name in names}
    print(f"capabilities: {answers}")
    assert answers["preserves_communicators"] and not answers["supports_durable_storage"]
    # This vLLM is built for the CPU, so that vLLM refuses the back end before it starts.
    assert answers["is_supported"] is False
    try:
        slot.SleepModeBackendFactory.create_backend(SimpleNamespace(sleep_mode_backend="lowtide"))
    except ValueError as error:
        assert "not supported" in str(error), error
    else:
        raise AssertionError("a back end that is not supported was made")


def sleeps(back_end: Any) -> None:
    """Levels 1 and 2, resume by tags, discard, states."""
    import lowtide
    from lowtide import _native

    native = ctypes.CDLL(_native.__file__)
    native.lowtide_tag_malloc.restype = ctypes.c_void_p
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0

    def used() -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return (total.value - free.value) // MIB

    def write(tag: str, data: bytes) -> None:
        at = ctypes.c_uint64(addresses[tag])
        assert cuda.cuMemcpyHtoD_v2(at, data, ctypes.c_size_t(len(data))) == 0

    def read(tag: str) -> bytes:
        found = ctypes.create_string_buffer(16)
        assert (
            cuda.cuMemcpyDtoH_v2(found, ctypes.c_uint64(addresses[tag]), ctypes.c_size_t(16)) == 0
        )
        return found.raw

    def asleep() -> list[str]:
        return sorted(one.name for one in lowtide.tags() if one.is_asleep)

    from lowtide._adopt.vllm import POLICIES

    addresses, data = {}, {tag: tag.encode().ljust(16) for tag in TAGS}
    for tag in TAGS:
        scope = _native.TagScope(tag, POLICIES[tag], 0)
        scope.begin()
        size = ctypes.c_ssize_t(SIZES[tag] * MIB)
        addresses[tag] = native.lowtide_tag_malloc(size, ctypes.c_int(0), None)
        scope.end()
        assert addresses[tag], _native.tag_refusal()
        write(tag, data[tag])
    whole = sum(SIZES.values())
    assert back_end.state() == "RUNNING"
    # A first sleep makes what every sleep needs, which stays; from then on the numbers are exact.
    back_end.suspend(1)
    back_end.resume()

    before = used()
    back_end.suspend(1)
    assert (back_end.state(), before - used(), asleep()) == ("SUSPENDED", whole, sorted(TAGS))
    back_end.suspend(2)  # What sleeps stays as it is: the weights are saved.
    back_end.resume(["weights"])
    assert (back_end.state(), asleep()) == ("RESUMING", ["kv_cache"]), asleep()
    assert (read("weights"), read("runtime")) == (data["weights"], data["runtime"])
    back_end.resume(["kv_cache"])
    assert (back_end.state(), asleep(), used()) == ("RUNNING", [], before)

    back_end.suspend(2)
    status = {one.name: one for one in lowtide.tags()}
    assert asleep() == sorted(TAGS) and status["weights"].backup_bytes == 0
    assert status["runtime"].backup_bytes > 0
    back_end.resume(None)
    assert read("runtime") == data["runtime"]
    write("weights", data["weights"])

    back_end.discard(("kv_cache",))
    assert (back_end.state(), before - used(), asleep()) == (
        "SUSPENDED",
        SIZES["kv_cache"],
        ["kv_cache"],
    )
    back_end.suspend(1)
    back_end.discard(("weights",))  # It is asleep with a backup, which stays.
    back_end.resume()
    assert (back_end.state(), read("weights"), used()) == ("RUNNING", data["weights"], before)

    # A second engine in this process would sleep with the first.
    from vllm.v1.worker.gpu_worker import Worker

    try:
        Worker._maybe_get_memory_pool_context(worker("lowtide"), "weights")
    except RuntimeError as error:
        assert "another engine" in str(error), error
    else:
        raise AssertionError("two engines share a tag")
    print(
        f"levels 1 and 2: {whole} MiB left the device and came back, by tags, at the same addresses"
    )


if __name__ == "__main__":
    main()
    sys.stdout.flush()
