"""The calls of a mock.

A test, or a dry run, replaces a model by a mock, which keeps the arguments of every call.
"""

from unittest import mock

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"model\.",),
    cut=r"model\.",
    cure="model.reset_mock()",
    holder="model",
)


if __name__ == "__main__":
    model = mock.MagicMock()
    model.generate(big())
    examine(CASE)
