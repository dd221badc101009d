"""A numpy array over a tensor's memory.

`tensor.numpy()` copies nothing: the array keeps the tensor, in its `base`. numpy's arrays do not
take part in garbage collection, so the collector's tools do not see this reference at all.
"""

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"scores\.base",),
    cut=r"del .*scores",
    cure="scores = scores[:10].copy()",
    holder="scores",
    cpu="numpy has no arrays on a device",
)


if __name__ == "__main__":
    scores = big().numpy()
    examine(CASE)
