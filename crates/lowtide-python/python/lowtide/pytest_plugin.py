"""The pytest plug-in: a test that leaves device memory in use fails, and names the holders.

A test with the fixture is checked: `def test_serve(device_memory): …`.
`device_memory.assert_released()` checks a part of a test. The device is the current accelerator, or
what LOWTIDE_DEVICE names.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ._release.testing import assert_released


class DeviceMemory:
    """The device memory of a test."""

    within = 0.01
    """The tolerance after the test, as a share of what was in use. A test may set it."""

    def in_use_bytes(self) -> int | None:
        """Returns what this process uses, as the driver reports it, or `None` without a device."""
        from ._release.releasers import releaser_of

        return releaser_of(None).read().in_use_bytes

    def assert_released(self, within: float = 0.01) -> assert_released:
        """Returns a context manager that fails if its block leaves device memory in use."""
        from ._release.testing import assert_released

        return assert_released(within)


@pytest.fixture(name="lowtide")
def _lowtide() -> ModuleType:
    """The package `lowtide`."""
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
    """Fails the test if it leaves device memory in use."""
    from ._release.testing import NOT_MEASURED, assert_released

    __tracebackhide__ = True
    memory = DeviceMemory()
    block = assert_released(memory.within)
    block.__enter__()
    if block._before is None:
        pytest.skip(NOT_MEASURED)
    yield memory
    # pytest keeps the frames of a failed test for its report, and they may hold memory.
    if not request.node.stash.get(_failed, False):
        block._within = memory.within
        block.__exit__(None, None, None)
