"""Kernels of each device, all with the names of device.base.Kernels."""
