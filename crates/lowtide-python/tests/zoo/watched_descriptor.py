"""A callback for a descriptor of the event loop.

`loop.add_reader` keeps the callback and its arguments until `remove_reader`.
"""

import asyncio
import os

from zoo.case import OWN, PINNED, Case, big, examine

CASE = Case(
    names=(r"loop",),
    cut=r"cancel\(\)",
    verdict=PINNED,
    because=OWN,
    then="cut",
    cure="loop.remove_reader(reading)",
    holder="loop",
)


if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    reading, writing = os.pipe()
    loop.add_reader(reading, print, big())
    examine(CASE)
