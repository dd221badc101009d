"""The hooks that Python and torch add to a release, one idea per file.

- `all.py`: every hook, in the order in which a release runs them
- `registry.py`: models, sessions and caches that the program has registered
- `to_host.py`, `sessions.py`, `caches.py`: what happens to the registered ones
- `process_groups.py`, `libraries.py`: communicators, cuBLAS workspaces, cuFFT plans, IPC leftovers
- `tracebacks.py`, `lru_caches.py`, `compile_caches.py`: caches that nobody registers
- `workers.py`: processes that lowtide started and may end
- `collector.py`: the garbage collector; `watched.py`: whether it would find something
"""
