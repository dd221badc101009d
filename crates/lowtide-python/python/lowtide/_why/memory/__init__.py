"""Which objects hold device memory, how much, and who holds it in native code.

- `probe.py`: asked by the native walk about every object that may hold memory
- `storages.py`: the storages behind ordinary tensors; `unusual.py`: everything less common
- `autograd.py`: objects that tensors keep alive through autograd and views; `parts.py`: tensors
  inside of other objects
"""
