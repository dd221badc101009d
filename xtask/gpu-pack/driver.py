"""The driver's functions through ctypes, for scripts that ask them without a framework."""

from __future__ import annotations

import ctypes
from functools import cache

MIB = 1 << 20
NOT_FOUND = 500
Word = ctypes.c_uint64
_pages: list[object] = []


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> int:
    """Calls a function, with whole numbers as words. Returns its code, or that there is none of this name."""
    function = getattr(_library(), name, None)
    if function is None:
        return NOT_FOUND
    return int(function(*[Word(one) if isinstance(one, int) else one for one in arguments]))


def make(name: str, *arguments: object) -> int:
    """Calls a function that writes a handle first. Returns the handle, 0 if there is none."""
    handle = Word()
    call(name, ctypes.byref(handle), *arguments)
    return handle.value


def pinned_on(device: int) -> object:
    """Returns the properties of pinned memory of a device: type 1, no handles, location type 1 and its number."""
    return (ctypes.c_uint32 * 64)(1, 0, 1, device)


def registered_page() -> int:
    """Registers a page of host memory, which stays until the end. Returns its address."""
    memory = ctypes.create_string_buffer(3 * 4096)
    _pages.append(memory)
    at = (ctypes.addressof(memory) + 4095) // 4096 * 4096
    call("cuMemHostRegister_v2", at, 4096, 0)
    return at


def holds(at: int, data: bytes) -> bool:
    """Returns whether device memory can be read and has these bytes."""
    found = ctypes.create_string_buffer(len(data))
    return call("cuMemcpyDtoH_v2", found, at, len(data)) == 0 and found.raw == data
