"""Triton kernels, CUDA graphs and pinned copies, chosen by `kernels.switch`. hopflow works without them."""

from .switch import Kernels as Kernels
from .switch import using as using
