"""Set before hopflow is imported: checked shapes, one torch thread per worker, repeatable property tests."""

import os
from importlib.util import find_spec

os.environ["OMP_NUM_THREADS"] = "1"  # two workers on two cores; inherited by the processes that tests start

import torch
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

torch.set_num_threads(1)
if find_spec("beartype"):  # a machine may have only what hopflow itself needs
    install_import_hook("hopflow", "beartype.beartype")

settings.register_profile(
    "hopflow", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("hopflow")
