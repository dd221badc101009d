"""The pytest plug-in: a test that leaves device memory behind fails, and says who holds it.

`def test_serve(device_memory): …` is held to it. `device_memory.assert_released()` does the same for
a part of a test. The device is the current accelerator, or what LOWTIDE_DEVICE names.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ._testing import assert_released


class DeviceMemory:
    """What a test may ask about device memory."""

    within = 0.01
    """How much more may be in use after the test, as a share; a test may set it."""

    def in_use_bytes(self) -> int | None:
        """In use by this process, says the driver; `None` where there is no device."""
        from ._release import releaser_of

        return releaser_of(None).read().in_use_bytes

    def assert_released(self, within: float = 0.01) -> assert_released:
        """A block that has to give back what it takes."""
        from ._testing import assert_released

        return assert_released(within)


@pytest.fixture(name="lowtide")
def _lowtide() -> ModuleType:
    """The package itself."""
    import lowtide

    return lowtide


@pytest.hookimpl(tryfirst=True, hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    outcome: Any = yield
    if call.when == "call":
        item.stash[_failed] = outcome.get_result().failed


_failed: pytest.StashKey[bool] = pytest.StashKey()


@pytest.fixture
def device_memory(request: pytest.FixtureRequest) -> Iterator[DeviceMemory]:
    """Fails the test where it leaves device memory behind."""
    from ._testing import assert_released

    memory = DeviceMemory()
    block = assert_released(memory.within)
    block.__enter__()
    yield memory
    # A test that failed has its frames kept for the report, and they may hold anything.
    if not request.node.stash.get(_failed, False):
        block._within = memory.within
        block.__exit__(None, None, None)
