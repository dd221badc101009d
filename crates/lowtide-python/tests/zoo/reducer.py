"""A function that pickles a class.

`copyreg.pickle` registers it in a dict that `pickle` keeps, too, in native code. The way that a person
would write leads over `copyreg`.
"""

import copyreg
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"copyreg\.dispatch_table", r"weights"),
    cut=r"del sys\.modules\['copyreg'\]\.dispatch_table",
    cure="del copyreg.dispatch_table[Model]",
    holder="copyreg.dispatch_table[Model]",
)


class Model:
    pass


def register(weights: Any) -> None:
    def reduce(model: Model) -> Any:
        return Model, (weights,)

    copyreg.pickle(Model, reduce)


if __name__ == "__main__":
    register(big())
    examine(CASE)
