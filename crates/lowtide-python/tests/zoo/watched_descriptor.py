"""A callback for a descriptor of the event loop.

`loop.add_reader` keeps the callback and its arguments until `remove_reader`.
"""

import asyncio
import os

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"loop",),
    cut=r"cancel\(\)",
    cure="loop.remove_reader(reading)",
    holder="loop",
)


if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    reading, writing = os.pipe()
    loop.add_reader(reading, print, big())
    examine(CASE)
