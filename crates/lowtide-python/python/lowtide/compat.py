"""Functions under the names that other projects use."""

from __future__ import annotations


def empty_cuda_cache() -> None:
    """Returns cached memory to the driver. Never raises: without torch or a device, and at the end of
    the interpreter, it does nothing.

    `empty_device_cache` does the same and returns a receipt.
    """
    try:
        from ._release.release import empty_device_cache

        empty_device_cache()
    except Exception as failure:  # noqa: BLE001  A clean-up must not break the program.
        from ._runtime import has_exit_begun

        if not has_exit_begun():
            from ._runtime.log import logger

            logger().debug("the cache was not emptied: %s: %s", type(failure).__name__, failure)
