"""A runner with every part that R18 names, shut down while its caller still has it.

Caches, groups, configuration, speculator, pooling runner, graph buffers, encoder cache, workspace
and model, all of which know each other. No list of names says what to drop: the heap does.
"""

from zoo.case import Case, big, examine
from zoo.packages.engine import Runner

CASE = Case(
    names=(r"\brunner\b",),
    cut=r"\brunner\b",
    release="lowtide.shutdown(runner)",
    cure="vars(runner).clear()",
    after="isinstance(runner, Runner)",
    holder="runner",
)


if __name__ == "__main__":
    runner = Runner(lambda: big(16))
    examine(CASE)
