"""The sleep back end itself. vLLM imports it when `--sleep-mode-backend lowtide` was chosen."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from vllm.device_allocator.sleep_mode_backend import (  # type: ignore[import-not-found]
    SleepModeBackend,
)

from .._runtime.log import logger
from .._runtime.torch import torch
from .._sleep.sleep import sleep, wake
from .._sleep.tag import discard, tags
from .vllm import METHOD, POLICIES, owns_memory

if TYPE_CHECKING:
    from .._native import Receipt

DEFERRABLE = ("weights", "kv_cache")
"""The tags that a resume may leave asleep. vLLM expects every other one back with the first resume."""
FREED = ("released", "no-effect")
"""The verdicts after which nothing that was meant to leave is on the device."""


class LowtideBackend(SleepModeBackend):  # type: ignore[misc]  # vLLM is not installed where this is checked.
    """Sleeps and wakes vLLM's memory by `lowtide.tag`, with receipts from the driver's own numbers.

    Addresses stay, so captured graphs stay valid; they keep their own memory on the device. Saved pages are
    verified as they come back, and pages that did not change since the last sleep are not copied again.
    """

    def __init__(self) -> None:
        super().__init__()
        if not owns_memory():
            raise RuntimeError(
                f"the sleep back end 'lowtide' has no memory: this vLLM's worker has no {METHOD}, where it"
                " takes the scope of its allocations. Use a vLLM that lowtide knows (0.32.0), or 'cumem'"
            )

    def suspend(self, level: int = 1) -> None:
        """Frees device memory. Level 1 saves weights to the host, level 2 loses them; state of the runtime
        is saved at each level, keys, values and scratch memory are lost. What sleeps already stays as it is.

        Raises RuntimeError if memory stayed on the device. Nothing is lost then that was to be saved.
        """
        self._state = "SUSPENDED"
        awake = [one.name for one in known() if not one.is_asleep]
        is_saved = {name: policy == "offload" for name, policy in POLICIES.items()}
        if level != 1:
            is_saved["weights"] = False
        # What is saved goes first: if the host has no room, nothing has been lost.
        self._leave(sleep, [name for name in unique(awake) if is_saved[name]])
        self._leave(discard, [name for name in unique(awake) if not is_saved[name]])
        trim()

    def resume(self, tags: list[str] | None = None) -> None:
        """Brings memory back: that of `tags`, and of every tag that vLLM does not name. None means all.

        Raises TagError if there is no room; everything that was asleep is asleep then.
        """
        self._state = "RESUMING"
        trim()
        names = [
            name for name in asleep() if tags is None or name in tags or name not in DEFERRABLE
        ]
        if names:
            came = wake(*names)
            logger().info("vLLM: %s are awake, %.1f MiB came back", ", ".join(names), came / 2**20)

    def discard(self, tags: tuple[str, ...] | str) -> None:
        """Loses the memory of some tags. What sleeps already keeps its backup, as with vLLM's own."""
        self._state = "SUSPENDED"
        wanted = (tags,) if isinstance(tags, str) else tags
        awake = [one.name for one in known() if one.name in wanted and not one.is_asleep]
        self._leave(discard, unique(awake))

    def state(self) -> str:
        """Returns RUNNING if all memory is on the device; otherwise SUSPENDED, or RESUMING if some of it has
        been asked back and the rest still sleeps."""
        return str(self._state) if asleep() else "RUNNING"

    def _leave(self, way: Any, names: list[str]) -> None:
        if not names:
            return
        receipts: list[Receipt] = way(*names)
        for receipt in receipts:
            logger().info("vLLM: %s", str(receipt).partition("\n")[0])
        stayed = [receipt for receipt in receipts if receipt.verdict not in FREED]
        if stayed:
            raise RuntimeError(f"memory stays on the device: {stayed[0]}")

    @classmethod
    def is_supported(cls) -> bool:
        """Needs an NVIDIA GPU, and a torch with memory pools."""
        from vllm.platforms import current_platform  # type: ignore[import-not-found]

        module = torch()
        return bool(current_platform.is_cuda()) and hasattr(
            getattr(module, "cuda", None), "MemPool"
        )

    @classmethod
    def preserves_communicators(cls) -> bool:
        """Communicators have memory of their own, which stays."""
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """The context and what is loaded in it stay."""
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        """Addresses and communicators stay. But this was not tried with several GPUs, so the answer is no."""
        return False

    @classmethod
    def supports_durable_storage(cls) -> bool:
        """Backups are host memory of this process."""
        return False


def known() -> list[Any]:
    """Returns what each of vLLM's tags has."""
    return [one for one in tags() if one.name in POLICIES]


def asleep() -> list[str]:
    """Returns the names of vLLM's tags that are off the device."""
    return unique([one.name for one in known() if one.is_asleep])


def unique(names: list[str]) -> list[str]:
    """Returns each name once: a tag may be on several devices."""
    return list(dict.fromkeys(names))


def trim() -> None:
    """Returns what torch caches to the driver, as vLLM's own back end does before and after."""
    gc.collect()
    module = torch()
    if module is not None and module.cuda.is_initialized():
        module.cuda.empty_cache()
