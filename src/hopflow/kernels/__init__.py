"""Triton kernels, CUDA graphs and pinned copies, chosen by `kernels.switch`. hopflow works without them.

They are for CUDA tensors. Code outside of this folder asks whether a kernel supports a tensor only if the tensor is on
a CUDA device, so that on a CPU nothing here is called.
"""

from .switch import Kernels as Kernels
from .switch import using as using
