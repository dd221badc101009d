"""What keeps memory in few programs: calls at exit, audit hooks, codecs, functions of other threads."""
