"""The hooks that Python and torch add to a release, one idea per file.

- `all.py`: every hook, in the order in which a release runs them
- `registry.py`: models, sessions and caches that the program has registered
- `to_host.py`, `sessions.py`: what happens to registered models and sessions
- `caches.py`: registered caches, `lru_cache`s with tensors, compiled code, stored tracebacks
- `libraries.py`: communicators, cuBLAS workspaces, cuFFT plans, IPC leftovers
- `processes.py`: workers, which lowtide started and may end; this process, which it may suspend
- `collector.py`: the garbage collector, and whether it would find something
- `hook.py`: what each of them is to the native ladder
"""
