"""Float types that a device supports."""

import torch


def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device without it (mps)."""
    return torch.float32 if device.type == "mps" else torch.float64
