"""Devices: what torch, the driver and the kernel report about memory, one class for each kind of device.

Nothing here creates a context or initialises a device.
"""
