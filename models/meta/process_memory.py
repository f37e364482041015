"""Memory of a worker without a model and data. Imports nothing heavy, since plans count with it."""

LIBRARIES = 0.62e9
"""Bytes of Python, torch, transformers and Ray; in training also PEFT and DeepSpeed."""
CUDA = 1.0e9
"""Bytes of GPU memory for the CUDA context, its libraries, and fragmentation."""
