"""Data of a connection that is still registered.

`selector.register(socket, events, data=request)`: the connection was closed without `unregister`.
"""

import selectors
import socket

from zoo.case import OWN, PINNED, Case, big, examine

CASE = Case(
    names=(r"selector\._fd_to_key",),
    cut=r"selector",
    verdict=PINNED,
    because=OWN,
    then="cut",
    cure="selector.close(); del selector",
    holder="selector",
)


if __name__ == "__main__":
    left, right = socket.socketpair()
    selector = selectors.DefaultSelector()
    selector.register(left, selectors.EVENT_READ, data={"body": big()})
    examine(CASE)
