"""What the other packages ask of the interpreter and of torch, and how they log."""

import sys

# Looked up now: at the end, the module `sys` is taken apart, too.
has_exit_begun = sys.is_finalizing
"""Returns whether the interpreter has begun to end, after the functions of `atexit`. A `__del__` of the program
may call lowtide then. Nothing can be imported any more and no other thread can run Python, so that every call
does nothing, silently."""
