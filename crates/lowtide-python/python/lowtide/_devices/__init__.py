"""Devices: what torch, the driver and the kernel report about memory, one object per device.

- `device.py`: the base class, with everything that the native releaser asks of a device
- `choose.py`: which device a call is about
- `cuda.py`: CUDA and ROCm; `cuda_pools.py`: the segments and memory pools of torch's CUDA allocator
- `accelerator.py`: every other accelerator, by `torch.accelerator`, also for a torch that has none
- `cpu.py`: host memory

Nothing here creates a context or initialises a device.
"""
