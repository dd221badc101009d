"""Data of a connection that is still registered.

`selector.register(socket, events, data=request)`: the connection was closed without `unregister`.
"""

import selectors
import socket

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"selector\._fd_to_key",),
    cut=r"selector",
    cure="selector.close(); del selector",
    holder="selector",
)


if __name__ == "__main__":
    left, right = socket.socketpair()
    selector = selectors.DefaultSelector()
    selector.register(left, selectors.EVENT_READ, data={"body": big()})
    examine(CASE)
