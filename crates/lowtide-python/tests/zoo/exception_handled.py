"""An exception that is being handled.

"Out of memory: free something and try again", inside the `except` block. As long as it runs, the
exception holds its traceback, that holds the frames, and they hold the very batch that was too
large.
"""

from zoo.case import PINNED, Case, big, examine

CASE = Case(
    names=(r"exception", r"serve\(\) line \d+", r"\bbatch\b"),
    cut=r"clear_frames|except|handl",
    verdict=PINNED,
    because="whoever handles the exception may still want its traceback",
    then="cure",
    by_hand="the exception is handled right now: it goes when its block ends",
    cure="import sys, traceback; traceback.clear_frames(sys.exc_info()[2])",
    holder="serve.__code__",
)


def serve() -> None:
    batch = big()
    raise MemoryError(f"no room for {batch.shape[0]} scores")


if __name__ == "__main__":
    try:
        serve()
    except MemoryError:
        examine(CASE)
