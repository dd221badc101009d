"""A gradient with a graph of its own.

`backward(create_graph=True)`, for a gradient penalty. The gradient's graph holds the weight and the
weight holds the gradient, both in C++. The collector does not see that cycle and never frees it.
"""

from zoo.case import Case, big, examine

CASE = Case(
    names=(
        r"native",
        r"create_graph",
    ),
    cut=r"set \.grad",
    cure="\nimport gc, torch\nfor one in gc.get_objects():\n    if type(one) is torch.Tensor and one.grad is not None:\n        one.grad = None\ndel one\n",
    by_hand="nothing refers to the tensors any more, and the collector does not see them",
    verdict="no-effect|pinned|partial|released",
    because="the collector cannot free it, and no reference is left that could be cut",
    frees=False,
    then="cure",
)


def penalty() -> None:
    weight = big(requires_grad=True)
    weight.square().mean().backward(create_graph=True)


if __name__ == "__main__":
    penalty()
    examine(CASE)
