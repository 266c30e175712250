"""The machine that a speed was measured on."""

import os
import platform
from typing import Any

import torch

from .. import __version__


def machine(device: torch.device) -> dict[str, Any]:
    """Device, number of cores and threads, and versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "hopflow": __version__,
    }
